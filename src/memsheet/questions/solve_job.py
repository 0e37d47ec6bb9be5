"""The largest share of the card that a job's server may take so that every phase fits."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from memsheet.budget import Answer, budget_of
from memsheet.errors import input_error
from memsheet.jobs.document import read_job
from memsheet.questions.job import NOWHERE, answer_job

TARGET = "gpu-memory-utilization"
HUNDREDTHS = 100
"""Shares are looked at in hundredths: what people write."""


class SolvedShare(NamedTuple):
    """``share``: the largest at which every phase fits, None where none does. ``answer``: at it, or at the
    least; ``beyond``: at the next one, None where there is none.
    """

    share: float | None
    answer: Answer
    beyond: Answer | None


def largest_share(document: Mapping[str, Any], where: Mapping[str, Any] = NOWHERE) -> SolvedShare:
    """The largest share of the server of a job (``memsheet/job/1``), in hundredths, other roles as they are.

    What a card needs grows with the share, so the edge is found by halves; every step is a whole answer.
    Raises InputError where the job has no server, or several, or no cards are named.
    """
    servers = [role.name for role in read_job(document).roles if role.serves]
    if len(servers) != 1:
        reason = f"has {len(servers)} servers, and the share of one is solved for"
        raise input_error("job", None, reason, "a job with one role that serves")
    known: dict[int, Answer] = {}

    def ask(hundredths: int) -> Answer:
        if hundredths not in known:
            known[hundredths] = answer_job(with_share(document, servers[0], hundredths / HUNDREDTHS), where)
        return known[hundredths]

    if ask(1).verdict is None:
        raise input_error("gpus", None, "is missing", "for example --gpus 8xH100-80GB")
    low, high = 0, HUNDREDTHS + 1  # the one fits, the other does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _has_room(ask(middle)) else (low, middle)
    found = ask(max(low, 1))
    share = low / HUNDREDTHS if low and _starts(found) else None
    return SolvedShare(share, found, ask(high) if high <= HUNDREDTHS else None)


def with_share(document: Mapping[str, Any], name: str, share: float) -> dict[str, Any]:
    """The document with a server's share in the place of its own."""
    changed = deepcopy(dict(document))
    plan = changed["roles"][name]["plan"]
    plan.pop("serving.memory_fraction", None)
    plan["serving"] = {**(plan.get("serving") or {}), "memory_fraction": share}
    return changed


def _has_room(answer: Answer) -> bool:
    """Whether every phase fits surely, whatever the server's pool holds."""
    verdict, cluster = answer.verdict, answer.cluster
    assert verdict is not None
    assert cluster is not None
    return verdict.device.high <= budget_of(cluster).low_bytes and not verdict.host_short_bytes


def _starts(answer: Answer) -> bool:
    from memsheet.budget import Result

    return answer.verdict is not None and answer.verdict.result is Result.FITS
