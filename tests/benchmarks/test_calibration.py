"""How well ranges are calibrated is counted as it is defined."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from asking import Outcome, Row
from calibration import NOMINAL, Interval, by_width, calibration, verdicts, width_class
from reliability import inside_share, narrower_share, reliability

GIB = 2**30


def row(low: float, high: float, measured: float = 10, metric: str = "peak_reserved_bytes") -> Row:
    return Row(
        id="a", metric=metric, predicted=int((low + high) / 2 * GIB), low=int(low * GIB), high=int(high * GIB),
        measured=int(measured * GIB), inside=low <= measured <= high, suspect="",
    )  # fmt: skip


def outcome(
    rows: tuple[Row, ...],
    verdict: bool | None = True,
    task: str = "train",
    count: int = 1,
    card: str | None = "H100-80GB",
) -> Outcome:
    case: dict[str, Any] = {
        "id": "a", "group": "g", "kind": task, "plan": {"engine": "fsdp2", "task": task}, "truth": {"fits": True},
        "hardware": {"count": count, "device": card},
    }  # fmt: skip
    return Outcome(case=case, metrics=tuple(one.metric for one in rows), rows=rows, verdict=verdict)


def test_a_range_that_holds_the_truth_pays_for_its_width_alone() -> None:
    assert Interval(row(9, 11), "fsdp2", "train").score == pytest.approx(0.2)


@pytest.mark.parametrize(("low", "high", "missed"), [(11, 12, 0.1), (7, 8, 0.2)])
def test_a_range_that_misses_pays_twenty_times_for_that(low: float, high: float, missed: float) -> None:
    found = Interval(row(low, high), "fsdp2", "train").score
    assert found == pytest.approx((high - low) / 10 + 2 / (1 - NOMINAL) * missed)


def test_lines_are_of_each_counter_and_engine() -> None:
    held = [outcome((row(9, 11), row(8, 9, metric="peak_allocated_bytes"))), outcome((row(10.5, 11),))]
    lines = {(line["metric"], line["engine"]): line for line in calibration(held)}
    assert lines["peak_reserved_bytes", ""]["rows"] == 2
    assert lines["peak_reserved_bytes", ""]["inside"] == 0.5
    assert lines["peak_allocated_bytes", ""]["inside"] == 0
    assert sum(line["rows"] for line in by_width(held)) == 3


@pytest.mark.parametrize(("width", "name"), [(0, "a point"), (0.02, "to 2%"), (0.021, "to 5%"), (3, "wider")])
def test_widths_have_classes(width: float, name: str) -> None:
    assert width_class(width) == name


def test_uncertain_verdicts_are_counted_beside_right_and_wrong() -> None:
    held = [outcome((), True), outcome((), False, count=8), outcome((), None), outcome((), None, count=8)]
    nameless = outcome((), None, card=None)
    (line,) = verdicts([*held, nameless])
    assert (line["right"], line["wrong"], line["uncertain"]) == (1, 1, 2)
    assert line["on_one_gpu"] == {"right": 1, "wrong": 0, "uncertain": 1}


POINTS = [
    {"metric": "device_bytes", "predicted": 10, "low": 9, "high": 12, "measured": measured}
    for measured in (10, 11, 13, 14, 8)
]


@pytest.mark.parametrize(("stretch", "share"), [(0, 0.2), (0.5, 0.4), (1, 0.4), (1.5, 0.6), (2, 1.0)])
def test_more_figures_lie_inside_as_ranges_are_stretched(stretch: float, share: float) -> None:
    assert inside_share(POINTS, stretch) == share


def test_ranges_are_counted_by_their_widths() -> None:
    assert [narrower_share(POINTS, width) for width in (0.2, 0.25, 0.3, 0.4)] == [0, 0.4, 0.8, 1]


def test_a_plot_is_drawn_of_figures_and_of_nothing_else() -> None:
    drawn = reliability(POINTS, "a & b")
    assert drawn.startswith("<svg")
    assert "a &amp; b" in drawn
    assert "device (5)" in drawn
    with pytest.raises(ValueError, match="no figures"):
        reliability([], "")
