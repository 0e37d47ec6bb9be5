"""Whether ranges mean what they say: the truth lies inside nine times out of ten, and no wider than it must.

By counter (allocated, reserved, device) and engine: how many figures lie inside their ranges, how wide those
are, and the interval score, in which a range pays for its width and twenty times over for what it misses by
(Gneiting and Raftery 2007, Strictly Proper Scoring Rules, Prediction, and Estimation, equation 43). All are
shares of what was measured. Nothing here is fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from asking import MEMORY, SERVING, Outcome, Row, cluster_for

NOMINAL = 0.9
"""How often the truth is to lie inside a range."""
CLASSES = (("a point", 0.0), ("to 2%", 0.02), ("to 5%", 0.05), ("to 10%", 0.10), ("to 25%", 0.25))
"""Ranges by their widths; wider ones are the last class."""
WIDEST = "wider"
UNSPECIFIED = "peak_bytes_unspecified"
COUNTERS = tuple(metric for metric in MEMORY if metric != UNSPECIFIED)


@dataclass(frozen=True, slots=True)
class Interval:
    """A prediction with its range beside the figure, as shares of it: ``miss`` is how far it lies outside."""

    row: Row
    engine: str
    kind: str

    @property
    def width(self) -> float:
        return (self.row.high - self.row.low) / self.row.measured

    @property
    def miss(self) -> float:
        """How far the figure lies beyond the range, less half of the last digit that was printed."""
        if self.row.inside:
            return 0.0
        return max(self.row.low - self.row.measured, self.row.measured - self.row.high, 0) / self.row.measured

    @property
    def score(self) -> float:
        return self.width + 2 / (1 - NOMINAL) * self.miss


def intervals(outcomes: Iterable[Outcome], metrics: Sequence[str]) -> list[Interval]:
    return [
        Interval(row, str(outcome.case["plan"].get("engine")), kind_of(outcome))
        for outcome in outcomes
        for row in outcome.rows
        if row.metric in metrics
    ]


def kind_of(outcome: Outcome) -> str:
    """Training or inference, whatever else a case is about."""
    return "train" if outcome.case["plan"].get("task") == "train" else "inference"


def calibration_line(held: Sequence[Interval]) -> dict[str, Any]:
    """Rows, share inside, median width and mean score of some intervals."""
    return {
        "rows": len(held),
        "inside": sum(one.row.inside for one in held) / len(held),
        "median_width": median(one.width for one in held),
        "score": sum(one.score for one in held) / len(held),
    }


def width_class(width: float) -> str:
    return next((name for name, most in CLASSES if width <= most), WIDEST)


def calibration(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Lines by kind, counter and engine, with one of all engines before them, and by the widths of ranges."""
    found: list[dict[str, Any]] = []
    for metric in (*COUNTERS, UNSPECIFIED, *SERVING):
        held = intervals(outcomes, (metric,))
        for kind in sorted({one.kind for one in held}, reverse=True):
            of_kind = [one for one in held if one.kind == kind]
            found.append({"kind": kind, "metric": metric, "engine": "", **calibration_line(of_kind)})
            engines = sorted({one.engine for one in of_kind})
            for engine in engines if len(engines) > 1 else ():
                rows = [one for one in of_kind if one.engine == engine]
                found.append({"kind": kind, "metric": metric, "engine": engine, **calibration_line(rows)})
    return found


def by_width(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """How often the truth lies inside, by how wide the range is: over every counter of a GPU's memory."""
    held = intervals(outcomes, MEMORY)
    classes = [*(name for name, _ in CLASSES), WIDEST]
    groups = {name: [one for one in held if width_class(one.width) == name] for name in classes}
    return [{"width": name, **calibration_line(rows)} for name, rows in groups.items() if rows]


def _is_one_card(case: Mapping[str, Any]) -> bool:
    """Whether a case's cards are named, and of one kind."""
    return "hardware" not in case or cluster_for(case["hardware"]) is not None


def verdicts(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Verdicts on jobs of which it is known whether they ran, by kind and engine: right, wrong, uncertain.
    Where a source does not name its cards, or has two kinds of them, no verdict is given.
    """
    run = [one for one in outcomes if one.refused is None and _is_one_card(one.case)]
    judged = [one for one in run if one.case.get("truth", {}).get("fits") is not None]
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for one in judged:
        groups.setdefault((kind_of(one), str(one.case["plan"].get("engine"))), []).append(one)
    return [
        {
            "kind": kind,
            "engine": engine,
            **_counted(held),
            "on_one_gpu": _counted([one for one in held if _is_alone(one)]),
        }
        for (kind, engine), held in sorted(groups.items(), reverse=True)
    ]


def _is_alone(outcome: Outcome) -> bool:
    return (outcome.case["hardware"].get("count") or 1) == 1


def _counted(outcomes: Sequence[Outcome]) -> dict[str, int]:
    told = {"right": True, "wrong": False, "uncertain": None}
    return {name: sum(one.verdict is verdict for one in outcomes) for name, verdict in told.items()}
