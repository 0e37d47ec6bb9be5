"""What a job of several models comes to phase by phase, whoever shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.frozen import NamedTuple
from memsheet.plan.device import Cluster
from memsheet.report.shared.words import INSTANTS
from memsheet.sheet import Bytes, Instant, Sheet
from memsheet.units import format_bytes

LACKS = "'s pool lacks up to "
"""In the note that a server does not start with as little as it has."""


def highest_instant(sheet: Sheet, room: int = 0) -> Instant:
    """Where a card may hold most; of a phase that may pass ``room`` where it is fullest, there: its instants
    share what the allocator keeps.
    """
    highest, fullest = max(sheet.instants, key=lambda one: _most_at(sheet, one)), fullest_instant(sheet)
    shared = highest.phase == fullest.phase and _most_at(sheet, fullest) > room
    return fullest if shared else highest


def _most_at(sheet: Sheet, when: Instant) -> int:
    return int(sheet.at(when, without=()).high)


class PhaseNeed(NamedTuple):
    """A phase: where it is fullest, what is expected on a card there with the least and the most that any of
    its instants may have, what each role has of it, and what is free.
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


def phase_needs(sheet: Sheet, cluster: Cluster | None, whole: Bytes | None = None) -> Iterator[PhaseNeed]:
    """Every phase of a card, in order; the largest of their ends are those of the card. ``whole``: what a
    card is told to need, where what files leave open makes that wider: no phase takes more than the job, and
    what may come on top may come in any.
    """
    peak = sheet.device
    phases: dict[str, list[Instant]] = {}
    for instant in sheet.instants:
        phases.setdefault(instant.phase, []).append(instant)
    for phase, instants in phases.items():
        worst = max(instants, key=lambda one: (sheet.at(one, without=()).value, sheet.at(one).value))
        size = _with_ends_of_job(_most_of_instants(sheet, instants), peak, whole or peak)
        held: dict[str, int] = {}
        for item in sheet.items:
            if worst in item.at:
                role = item.path.partition("/")[0]
                held[role] = held.get(role, 0) + int(item.at[worst].value)
        free = cluster.device.framework_bytes - int(size.value) if cluster else None
        yield PhaseNeed(phase, worst, size, held, free)


def _most_of_instants(sheet: Sheet, instants: list[Instant]) -> Bytes:
    """The largest of each end, for another instant than the expected one may reach higher."""
    sizes = [sheet.at(one, without=()) for one in instants]
    ends = (max(int(getattr(one, end)) for one in sizes) for end in ("low", "value", "high"))
    return Bytes(*ends).ordered


def _with_ends_of_job(size: Bytes, peak: Bytes, whole: Bytes) -> Bytes:
    def moved(end: str) -> int:
        own, before, after = (int(getattr(one, end)) for one in (size, peak, whole))
        return min(own, after) if after <= before else own + after - before

    return Bytes(moved("low"), size.value, moved("high"))


def doubted_reasons(answer: Answer) -> tuple[str, ...]:
    """Why a job of several models is not sure by its own sheets: a server that may not start, and what in the
    phase that may take most is known in a range alone.
    """
    verdict, cluster = answer.verdict, answer.cluster
    if verdict is None or cluster is None or verdict.result is not Result.UNCERTAIN:
        return ()
    found = [f"{note}, or may not start" for note in answer.notes if LACKS in note]
    room = cluster.device.framework_low_bytes
    sheet = max(answer.sheets, key=lambda one: one.device.high)
    if sheet.device.low <= room < sheet.device.high:
        found.append(_widest_words(sheet, room))
    return tuple(found)


def _widest_words(sheet: Sheet, room: int) -> str:
    """Where a card may be fullest, and what there may take most beyond what is expected of it."""
    highest = highest_instant(sheet, room)
    most = sheet.at(highest, without=())
    items = [item for item in sheet.items if highest in item.at]
    widest = max(items, key=lambda item: item.at[highest].high - item.at[highest].low)
    size, where = widest.at[highest], INSTANTS[highest]
    told = f"{where} may take up to {format_bytes(int(most.high))} of the {format_bytes(room)} that are there"
    what = widest.path.replace("/", "'s ", 1)
    ends = f"{format_bytes(int(size.low))} to {format_bytes(int(size.high))}"
    return f"{told}: {what} takes {ends}" if size.low != size.high else told


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
