"""The verdict: what a framework gets of a card against the range of a sheet."""

from __future__ import annotations

import pytest

from memsheet.budget import Budget, Result, budget_of, judge_sheets, largest_components, worst_sheet
from memsheet.catalog import find_device
from memsheet.plan.device import cluster_of
from memsheet.sheet import Bytes, Component, Derived, Instant, Item, Sheet

BUDGET = Budget(low_bytes=75, capacity_bytes=78, high_bytes=80)
WHY = Derived("made for a test")


def sheet(*sizes: tuple[Component, Instant, Bytes], rank: int = 0) -> Sheet:
    return Sheet(
        rank=rank,
        items=tuple(Item(component, "x", {instant: size}, WHY) for component, instant, size in sizes),
    )


def one(low: int, value: int, high: int, rank: int = 0) -> Sheet:
    return sheet((Component.PARAMETERS, Instant.LOAD, Bytes(low, value, high)), rank=rank)


@pytest.mark.parametrize(
    ("size", "result"),
    [
        ((60, 70, 75), Result.FITS),  # the high end fits the least a framework may get
        ((60, 70, 76), Result.UNCERTAIN),  # the high end does not
        ((80, 85, 90), Result.UNCERTAIN),  # the low end fits the most a framework may get
        ((81, 85, 90), Result.DOES_NOT_FIT),  # nor does the low end
        ((75, 75, 75), Result.FITS),
    ],
)
def test_a_range_is_judged_by_its_ends(size: tuple[int, int, int], result: Result) -> None:
    assert judge_sheets((one(*size),), BUDGET).result is result


def test_headroom_is_what_the_expected_value_leaves_and_negative_where_it_does_not_fit() -> None:
    assert judge_sheets((one(60, 70, 75),), BUDGET).headroom_bytes == 8
    assert judge_sheets((one(90, 100, 110),), BUDGET).headroom_bytes == -22


def test_the_worst_rank_is_judged() -> None:
    ranks = (one(10, 20, 30), one(10, 15, 90, rank=4), one(1, 2, 3, rank=8))
    assert worst_sheet(ranks).rank == 4
    assert judge_sheets(ranks, BUDGET).rank == 4


def test_the_peak_is_a_maximum_over_instants_of_sums_not_a_sum_of_maxima() -> None:
    """Activations are gone when the optimizer's temporaries come: 60 + 10, or 60 + 15, never 60 + 10 + 15."""
    held = sheet(
        (Component.PARAMETERS, Instant.BACKWARD, Bytes.exact(60)),
        (Component.SAVED_ACTIVATIONS, Instant.BACKWARD, Bytes.exact(10)),
        (Component.PARAMETERS, Instant.OPTIMIZER_STEP, Bytes.exact(60)),
        (Component.TEMPORARIES, Instant.OPTIMIZER_STEP, Bytes.exact(15)),
    )
    assert held.allocated == Bytes.exact(75)
    assert held.peak_instant is Instant.OPTIMIZER_STEP
    assert judge_sheets((held,), BUDGET).instant is Instant.OPTIMIZER_STEP


def test_three_totals_are_never_confused() -> None:
    held = sheet(
        (Component.PARAMETERS, Instant.LOAD, Bytes.exact(50)),
        (Component.ALLOCATOR_SLACK, Instant.LOAD, Bytes(0, 5, 9)),
        (Component.CONTEXT, Instant.LOAD, Bytes(1, 2, 3)),
    )
    assert (held.allocated, held.reserved, held.device) == (
        Bytes.exact(50),
        Bytes(50, 55, 59),
        Bytes(51, 57, 62),
    )


def test_the_largest_components_come_first_and_empty_ones_not_at_all() -> None:
    sizes = [
        (Component.PARAMETERS, 5),
        (Component.GRADIENTS, 50),
        (Component.TEMPORARIES, 0),
        (Component.KV_CACHE, 7),
        (Component.INPUTS, 1),
    ]
    found = largest_components(
        sheet(*((component, Instant.LOAD, Bytes.exact(size)) for component, size in sizes))
    )
    assert [component for component, _ in found] == [
        Component.GRADIENTS,
        Component.KV_CACHE,
        Component.PARAMETERS,
    ]


def test_the_budget_is_what_a_framework_gets_not_the_number_on_the_box() -> None:
    device = find_device("A100-80GB")
    budget = budget_of(cluster_of(device, 8), reserve_bytes=10**9)
    assert budget.capacity_bytes == device.framework_bytes - 10**9
    assert budget.low_bytes <= budget.capacity_bytes <= budget.high_bytes
    assert device.framework_high_bytes < 80 * 2**30
