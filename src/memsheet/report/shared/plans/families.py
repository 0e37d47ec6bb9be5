"""Plans by how they save memory, in words: their order, and why some are not ranked."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.plan.plan import MAX_VIOLATION
from memsheet.report.shared.plans.words import format_seconds, plan_summary
from memsheet.search.train.families import Family
from memsheet.search.train.rank import Ranking
from memsheet.units import format_bytes


def uneven_lines(ranking: Ranking) -> Iterator[str]:
    """What is said of a plan that only the worst routing keeps from being sure to fit; nothing where there is
    none.
    """
    if ranking.uneven is None:
        return
    planned, device = ranking.uneven.planned, ranking.uneven.device
    yield (
        f"{format_seconds(planned.seconds)} a step with {plan_summary(planned)}: fits in "
        f"{format_bytes(int(device.value))} (at most {format_bytes(int(device.high))}) "
        f"where a rank is given {1 + MAX_VIOLATION:g} times an even share of tokens (MaxVio "
        f"{MAX_VIOLATION:g} under an auxiliary loss, arXiv:2408.15664, "
        "table 2); where all tokens choose its experts it needs "
        f"{format_bytes(int(planned.verdict.device.high))} and does not"
    )


def family_sort_key(family: Family) -> tuple[float, int]:
    """The fastest first, then what comes nearest to fitting."""
    return (
        family.seconds if family.seconds is not None else float("inf"),
        family.host_missing_bytes + family.missing_bytes,
    )
