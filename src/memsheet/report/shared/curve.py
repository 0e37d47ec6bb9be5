"""A timeline as a curve over its steady step, in no more columns than there is room for: each column shows
its largest event.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from memsheet.errors import input_error
from memsheet.frozen import dataclass
from memsheet.sheet import Component, Instant
from memsheet.timeline import Timeline

PLACE = {component: place for place, component in enumerate(Component)}


@dataclass(frozen=True, slots=True)
class Column:
    """Events ``first`` to ``end`` (exclusive), and what each component holds after the one of them after
    which most is held, in bytes.

    ``held`` is in the order of ``Component``; ``at`` is that event.
    """

    first: int
    end: int
    at: int
    held: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return sum(self.held)


@dataclass(frozen=True, slots=True)
class Span:
    """Events ``first`` to ``end`` (exclusive) of one instant."""

    instant: Instant
    first: int
    end: int


def timeline_columns(timeline: Timeline, most: int) -> tuple[Column, ...]:
    """The steady step in at most ``most`` columns, from what is held as it begins. Raises InputError where
    nothing happens in it.

    The largest event of a column stands for it, the first of equals, so that no high-water mark is ever lost.
    """
    first, end = steady_step_window(timeline)
    count = min(most, end - first)
    edges = [first + (end - first) * number // count for number in range(count + 1)]
    made, states = [], _held_bytes_by_event(timeline, first)
    for left, right in pairwise(edges):
        largest, at, held = -1, left, list[int]()
        for event, whole, now in (next(states) for _ in range(left, right)):
            if whole > largest:
                largest, at, held = whole, event, now[:]
        made.append(Column(left, right, at, tuple(held)))
    return tuple(made)


def steady_step_window(timeline: Timeline) -> tuple[int, int]:
    """The events of the steady step; the one before it is the first, for the step begins with what that
    left.
    """
    first, end = max(timeline.start - 1, 0), len(timeline.events)
    if not timeline.marks or first >= end:
        raise input_error("timeline", None, "holds no event of a steady step: there is nothing to draw")
    return first, end


def instant_spans(timeline: Timeline) -> tuple[Span, ...]:
    """The instants of the steady step in order; marks of one instant that follow each other are one, and
    empty ones are left out.
    """
    first, end = steady_step_window(timeline)
    made: list[Span] = []
    for mark, until in zip(timeline.marks, [*(mark.at for mark in timeline.marks[1:]), end], strict=True):
        if until <= mark.at:
            continue
        if made and made[-1].instant is mark.instant:
            made[-1] = Span(mark.instant, made[-1].first, until)
        else:
            made.append(Span(mark.instant, mark.at if made else first, until))
    return tuple(made)


def _held_bytes_by_event(timeline: Timeline, first: int) -> Iterator[tuple[int, int, list[int]]]:
    """From event ``first`` on: the event, the sum held after it, and the components' parts (one list, changed
    in place).
    """
    rows = [(storage.bytes, PLACE[storage.component]) for storage in timeline.storages]
    held, whole = [0] * len(PLACE), 0
    for number, event in enumerate(timeline.events):
        size, place = rows[event] if event >= 0 else rows[~event]
        change = size if event >= 0 else -size
        held[place] += change
        whole += change
        if number >= first:
            yield number, whole, held
