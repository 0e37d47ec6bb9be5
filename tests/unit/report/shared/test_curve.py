"""The curve of a timeline: whatever the number of columns, every high-water mark is in it and every byte has
a component.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsheet.errors import InputError
from memsheet.report.shared.curve import PLACE, instant_spans, timeline_columns
from memsheet.sheet import Component, Instant
from memsheet.timeline import Mark, Storage, Timeline, held_bytes_after_events, highest_peak
from timelines import PEAK_BYTES, timelines, training


@given(timelines(), st.integers(1, 80))
def test_every_column_shows_the_most_that_is_held_in_it(timeline, most):
    curve, shown = list(held_bytes_after_events(timeline)), timeline_columns(timeline, most)
    assert len(shown) <= most
    assert [column.bytes for column in shown] == [max(curve[column.first : column.end]) for column in shown]
    assert [column.bytes for column in shown] == [curve[column.at] for column in shown]
    assert max(column.bytes for column in shown) == highest_peak(timeline).bytes


@given(timelines(), st.integers(1, 80))
def test_columns_follow_each_other_over_the_whole_steady_step(timeline, most):
    shown = timeline_columns(timeline, most)
    assert shown[0].first == max(timeline.start - 1, 0)
    assert shown[-1].end == len(timeline.events)
    assert all(one.end == other.first for one, other in pairwise(shown))


@given(timelines())
def test_with_room_for_all_events_each_has_a_column(timeline):
    assert [column.bytes for column in timeline_columns(timeline, 10**6)] == list(
        held_bytes_after_events(timeline)
    )[max(timeline.start - 1, 0) :]


@given(timelines())
def test_spans_are_in_order_and_cover_the_step(timeline):
    found = instant_spans(timeline)
    assert all(one.end == other.first and one.instant is not other.instant for one, other in pairwise(found))
    assert all(span.first < span.end for span in found)
    assert found[-1].end == len(timeline.events)


def test_the_parts_of_a_known_peak():
    top = max(timeline_columns(training(), 50), key=lambda column: column.bytes)
    held = {component: top.held[place] for component, place in PLACE.items() if top.held[place]}
    assert top.bytes == PEAK_BYTES
    assert held == {
        Component.PARAMETERS: PEAK_BYTES - 2 * 2**20 - held[Component.OPTIMIZER_STATES] - (6 * 2**30 + 2**28),
        Component.OPTIMIZER_STATES: 3 * 8 * (2**31 // 24),
        Component.INPUTS: 2 * 2**20,
        Component.SAVED_ACTIVATIONS: 3 * 2**30 + 2**28,
        Component.TEMPORARIES: 3 * 2**30,
    }


@pytest.mark.parametrize(
    "timeline",
    [
        Timeline(storages=(), events=(), marks=()),
        Timeline(storages=(Storage(1, Component.INPUTS, "", ""),), events=(0,), marks=()),
        Timeline(storages=(), events=(), marks=(Mark(0, Instant.FORWARD),)),
    ],
)
def test_without_a_steady_step_there_is_nothing_to_draw(timeline):
    with pytest.raises(InputError, match="nothing to draw"):
        timeline_columns(timeline, 10)
