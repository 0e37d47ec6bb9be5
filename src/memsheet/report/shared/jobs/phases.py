"""What a job of several models comes to phase by phase, whoever shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from memsheet.budget import Answer
from memsheet.frozen import NamedTuple
from memsheet.plan.device import Cluster
from memsheet.sheet import Bytes, Instant, Sheet


class PhaseNeed(NamedTuple):
    """A phase where it is fullest: what is on a card there, what each role has of it, and what is free. Each
    end of the range is the largest over the phase's instants, as that of a sheet's peak is.
    """

    phase: str
    instant: Instant
    device: Bytes
    by_role: Mapping[str, int]
    free_bytes: int | None


def fullest_instant(sheet: Sheet) -> Instant:
    """Where a card holds most, all that is on it counted: sleeping memory stays in torch's counters."""
    return max(
        sheet.instants, key=lambda instant: (sheet.at(instant, without=()).value, sheet.at(instant).value)
    )


def phase_needs(sheet: Sheet, cluster: Cluster | None) -> Iterator[PhaseNeed]:
    """Every phase of a card, in order."""
    phases: dict[str, list[Instant]] = {}
    for instant in sheet.instants:
        phases.setdefault(instant.phase, []).append(instant)
    for phase, instants in phases.items():
        worst = max(instants, key=lambda one: (sheet.at(one, without=()).value, sheet.at(one).value))
        size = reduce(Bytes.max, (sheet.at(one, without=()) for one in instants))
        held: dict[str, int] = {}
        for item in sheet.items:
            if worst in item.at:
                role = item.path.partition("/")[0]
                held[role] = held.get(role, 0) + int(item.at[worst].value)
        free = cluster.device.framework_bytes - int(size.value) if cluster else None
        yield PhaseNeed(phase, worst, size, held, free)


def role_rows(answer: Answer) -> Iterator[tuple[str, str]]:
    """Every role of a job and what it is, in words."""
    job: Mapping[str, Any] = answer.job or {}
    for name, role in job.get("roles", {}).items():
        plan = role.get("plan", {})
        place = job.get("placement", {}).get(name)
        cards = f", cards {place[0]} to {place[0] + place[1] - 1}" if place else ""
        kind = (
            "serves" if plan.get("task") == "infer" else "trains" if role.get("trained", True) else "is read"
        )
        serving = plan.get("serving") or {}
        share = serving.get("memory_fraction") if isinstance(serving, Mapping) else None
        taken = f", {share:g} of the card" if isinstance(share, int | float) else ""
        engine = plan.get("engine") or ""
        yield name, f"{kind} {role.get('model') or plan.get('model')}, {engine}{taken}{cards}"
