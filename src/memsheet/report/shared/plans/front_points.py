"""What a chart of memory against time marks, on paper and on a terminal."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from memsheet.budget import Result
from memsheet.frozen import dataclass
from memsheet.report.shared.plans.words import plan_summary, request_words

if TYPE_CHECKING:
    from memsheet.search.train.rank import Ranking


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A plan with a name. ``best``: the one to take first, which was accounted and timed by itself;
    ``range_s``, ``range_bytes``: its ranges (of others the value twice). ``turn``: who is named first where
    room is short.
    """

    seconds: float
    device_bytes: int
    words: str
    best: bool = False
    range_s: tuple[float, float]
    range_bytes: tuple[int, int]
    turn: int = 0


def marks_of(ranking: Ranking) -> tuple[Mark, ...]:
    """The front from the fastest on, and the plan to take first."""
    turns = _farthest_point_order([(point.seconds, point.device_bytes) for point in ranking.front])
    front = tuple(
        Mark(
            seconds=point.seconds,
            device_bytes=point.device_bytes,
            words=request_words(point.engine, point.request),
            turn=turn + 1,
            range_s=(point.seconds, point.seconds),
            range_bytes=(point.device_bytes, point.device_bytes),
        )
        for point, turn in zip(ranking.front, turns, strict=True)
    )
    best = next((planned for planned in ranking.plans if planned.time is not None), None)
    if best is None or best.time is None:
        return front
    device, time = best.verdict.device, best.time
    first = Mark(
        seconds=float(time.value),
        device_bytes=int(device.value),
        words=plan_summary(best),
        best=True,
        range_s=(float(time.low), float(time.high)),
        range_bytes=(int(device.low), int(device.high)),
    )
    return (*front, first)


def _farthest_point_order(points: list[tuple[float, int]]) -> list[int]:
    """The ends first, then always the one that lies farthest from those before it."""
    if not points:
        return []
    points = [(log(seconds), size) for seconds, size in points]
    wide = max(points[-1][0] - points[0][0], 1e-12)
    high = max(points[0][1] - points[-1][1], 1)
    order = list(dict.fromkeys((0, len(points) - 1)))
    while len(order) < len(points):
        rest = (number for number in range(len(points)) if number not in order)
        order.append(
            max(
                rest,
                key=lambda n: min(
                    abs(points[n][0] - points[m][0]) / wide + abs(points[n][1] - points[m][1]) / high
                    for m in order
                ),
            )
        )
    return [order.index(number) for number in range(len(points))]


def front_title(ranking: Ranking) -> str:
    return (
        f"Memory against time: {ranking.model.name} on "
        f"{ranking.cluster.count:,}×{ranking.cluster.device.name}"
    )


PAPER = (
    "Grey: plans that fit.",
    "Dots: none takes less of both.",
    "Diamond: the plan to take first, replayed, with its ranges.",
)
"""What the marks of a picture are."""


def front_under(ranking: Ranking, signs: tuple[str, ...] = PAPER) -> str:
    """What is asked, and what the marks are."""
    fit, first = ranking.looked_at.get(Result.FITS, 0), ranking.plans[0].request if ranking.plans else {}
    asked = "".join(
        f" · {name} {int(first[name]):,}" for name in ("seq_len", "global_batch") if first.get(name)
    )
    return " ".join(
        (f"{fit:,} of {ranking.legal:,} legal plans of {', '.join(ranking.engines)} fit{asked}.", *signs)
    )
