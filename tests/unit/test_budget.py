"""The verdict: what a framework gets of a card against the range of a sheet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memsheet.budget import (
    Budget,
    Result,
    budget_of,
    host_shortage,
    judge_sheets,
    largest_components,
    worst_sheet,
)
from memsheet.catalog import find_device, process_overheads
from memsheet.plan.device import cluster_of
from memsheet.sheet import AGREEMENT_PER_MILLE, Bytes, Component, Derived, Instant, Item, Sheet, Witness

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


def test_what_formulas_describe_of_a_step_has_a_range_and_what_is_counted_or_traced_has_none() -> None:
    """0.5 % of activations each way, not beyond the range that items have already; none at loading, and none
    of a component.
    """
    held = sheet(
        (Component.PARAMETERS, Instant.LOAD, Bytes.exact(5000)),
        (Component.PARAMETERS, Instant.BACKWARD, Bytes.exact(5000)),
        (Component.SAVED_ACTIVATIONS, Instant.BACKWARD, Bytes(2000, 2000, 2025)),
        (Component.TEMPORARIES, Instant.BACKWARD, Bytes.exact(1000)),
    )
    assert held.at(Instant.LOAD) == Bytes.exact(5000)
    assert held.at(Instant.BACKWARD) == held.allocated == held.device == Bytes(7985, 8000, 8025)
    assert held.of(Component.TEMPORARIES) == Bytes.exact(1000)
    assert replace(held, witness=Witness.TRACED).allocated == Bytes(8000, 8000, 8025)
    assert sheet((Component.TEMPORARIES, Instant.PREFILL, Bytes.exact(1000))).allocated == Bytes.exact(1000)


def test_slack_that_is_replayed_leaves_what_is_reserved_no_end_without_that_range() -> None:
    """Segments of the step stay, so that loading has as many reserved."""
    held = sheet(
        (Component.PARAMETERS, Instant.LOAD, Bytes.exact(5000)),
        (Component.ALLOCATOR_SLACK, Instant.LOAD, Bytes.exact(3000)),
        (Component.PARAMETERS, Instant.BACKWARD, Bytes.exact(5000)),
        (Component.SAVED_ACTIVATIONS, Instant.BACKWARD, Bytes.exact(2000)),
        (Component.ALLOCATOR_SLACK, Instant.BACKWARD, Bytes.exact(1000)),
    )
    assert held.allocated == Bytes(6990, 7000, 7010)
    assert held.reserved == Bytes(7985, 8000, 8015)


@pytest.mark.parametrize("name", ["allocator_slack", "allocator_slack_expandable"])
def test_the_range_of_slack_by_a_share_is_wider_than_that_of_formulas(name: str) -> None:
    """So that searches, which add up items alone, have the ends of sheets."""
    low, value, high = (process_overheads()[name][f"{end}_per_mille"] for end in ("low", "value", "high"))
    margin = AGREEMENT_PER_MILLE * (1 + value / 1000)
    assert min(value - low, high - value) > margin


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


@pytest.mark.parametrize(
    ("ranks", "per_node", "short"),
    [
        ((30,), 1, 0), ((31,), 1, 1),
        ((30, 0, 0, 0), 4, 0),  # one process for all cards says its memory once
        ((20, 20), 2, 10), ((20, 0), 2, 0),
        ((10, 10, 10, 10), 2, 0),  # of four ranks a node has two
    ],
)  # fmt: skip
def test_a_node_needs_what_its_ranks_hold(ranks: tuple[int, ...], per_node: int, short: int) -> None:
    device = find_device("A100-80GB")
    cluster = replace(cluster_of(device, len(ranks), per_node=per_node), host_bytes=30)
    sheets = tuple(replace(one(1, 1, 1, rank), host_bytes=size) for rank, size in enumerate(ranks))
    assert host_shortage(sheets, cluster) == short
