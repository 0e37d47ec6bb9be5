"""Depth does not cost: a few layers are traced, and the events of one of them are repeated as often as the model has such layers.

A traced stack is ``before | repeated | after``: whole periods of its pattern, the middle one standing for all that were left out.
Every stretch of events that belongs to the middle is written once for each layer it stands for: upwards in forward and in the
optimizer, downwards in backward. The period beside the middle must have made the very same events; where it has not, the caller
traces every layer instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from memsheet.timeline import Mark, Storage, Timeline

SIDES = 2  # periods traced before and after the one that is repeated: its neighbours must be ordinary too


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """A stack's layers: those that repeat begin at ``start``, with a pattern of ``period`` layers, ``count`` times."""

    layers: int
    start: int
    period: int
    count: int

    @property
    def traced_periods(self) -> int:
        return 2 * SIDES + 1

    @property
    def worthwhile(self) -> bool:
        return self.count > self.traced_periods

    @property
    def left_out(self) -> range:
        """The layers that are not built."""
        first = self.start + self.traced_periods * self.period
        return range(first, self.start + self.count * self.period)

    @property
    def middle(self) -> range:
        """The traced layers whose events are repeated."""
        first = self.start + SIDES * self.period
        return range(first, first + self.period)

    @property
    def copies(self) -> int:
        return len(self.left_out) // self.period + 1


@dataclass(frozen=True, slots=True)
class Shallow:
    """A traced timeline of fewer layers. ``tags``: the layer each event belongs to, -1 for none; ``layers``: that of each storage."""

    timeline: Timeline
    tags: tuple[int, ...]
    layers: tuple[int, ...]


class NotUniformError(ValueError):
    """Layers that should be alike are not, so that one cannot stand for the others."""


def deepen(shallow: Shallow, depth: Depth) -> Timeline:
    """The timeline of all layers. Raises NotUniformError where the traced layers do not repeat."""
    _check_alike(shallow, depth)
    return _Writer(shallow, depth).written()


def _check_alike(shallow: Shallow, depth: Depth) -> None:
    """The middle and the period after it make the same events, in the same places of the step."""
    middle = depth.middle
    after = range(middle.stop, middle.stop + depth.period)
    if _tokens(shallow, middle) != _tokens(shallow, after):
        raise NotUniformError


def _tokens(shallow: Shallow, layers: range) -> list[tuple[bool, int, str, str, int]]:
    """What the events of some layers are, numbers of layers aside."""
    rows = shallow.timeline.storages
    found = []
    for event, tag in zip(shallow.timeline.events, shallow.tags, strict=True):
        if tag in layers:
            number = event if event >= 0 else ~event
            made = shallow.layers[number]
            found.append((event >= 0, rows[number].bytes, rows[number].op, rows[number].path, made - tag if made >= 0 else 0))
    return found


class _Writer:
    """Writes the deep timeline from the shallow one, stretch by stretch."""

    def __init__(self, shallow: Shallow, depth: Depth) -> None:
        self.shallow, self.depth = shallow, depth
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self.marks: list[Mark] = []
        self._new: dict[tuple[int, int], int] = {}  # (shallow storage, how many periods higher) → its number here
        self._place = dict(_places(shallow))
        self._at = {place: number for number, place in self._place.items()}

    def written(self) -> Timeline:
        marks = list(self.shallow.timeline.marks)
        for start, stop, repeated in self._stretches():
            while marks and marks[0].at <= start:
                self.marks.append(Mark(len(self.events), marks.pop(0).instant))
            for copy in self._copies(start, stop, repeated=repeated):
                self._stretch(start, stop, copy)
        self.marks += [Mark(len(self.events), mark.instant) for mark in marks]
        return Timeline(storages=tuple(self.storages), events=tuple(self.events), marks=tuple(self.marks))

    def _stretches(self) -> Iterator[tuple[int, int, bool]]:
        """The events cut where the middle or what lies above it begins or ends, and at marks."""
        middle, cuts, tags = self.depth.middle, [mark.at for mark in self.shallow.timeline.marks], self.shallow.tags
        at = 0
        for (place, _), run in groupby(range(len(tags)), key=lambda n: (_place(tags[n], middle), bisect_right(cuts, n))):
            length = sum(1 for _ in run)
            yield at, at + length, place == 0
            at += length

    def _copies(self, start: int, stop: int, *, repeated: bool) -> Iterable[int]:
        """How many periods above its shallow place a stretch is written: the middle once for every layer it stands for."""
        top = self.depth.copies - 1
        if not repeated:
            return (top,) if self.shallow.tags[start] >= self.depth.middle.stop else (0,)
        return range(top + 1) if self._goes_up(start, stop) else range(top, -1, -1)

    def _goes_up(self, start: int, stop: int) -> bool:
        """Whether layers come in order here: seen by the layer before this stretch, or the one after it."""
        tags, middle = self.shallow.tags, self.depth.middle
        before = tags[start - 1] if start else -1
        after = tags[stop] if stop < len(tags) else -1
        if before in (middle.start - 1, middle.stop):
            return before < middle.start
        if after in (middle.start - 1, middle.stop):
            return after >= middle.stop
        raise NotUniformError

    def _stretch(self, start: int, stop: int, copy: int) -> None:
        for number in range(start, stop):
            self._write(self.shallow.timeline.events[number], self.shallow.tags[number], copy)

    def _write(self, event: int, tag: int, higher: int) -> None:
        """One event, ``higher`` periods above where it was traced."""
        if event >= 0:
            self._new[event, higher] = len(self.storages)
            self.events.append(len(self.storages))
            self.storages.append(self.shallow.timeline.storages[event])
            return
        found = self._new.pop(self._meant(~event, tag, higher), None)
        if found is None:
            raise NotUniformError
        self.events.append(~found)

    def _meant(self, storage: int, tag: int, higher: int) -> tuple[int, int]:
        """The storage that an event means: one as many layers away as in the shallow stack, and its height there."""
        made, middle, period = self.shallow.layers[storage], self.depth.middle, self.depth.period
        top = self.depth.copies - 1
        if (made < 0 and tag in middle) or (tag < 0 and made in middle):  # it would be released once for every layer, or for one of them
            raise NotUniformError
        if made < 0 or tag < 0:
            return storage, top if made >= middle.stop else 0
        deep = made + higher * period
        height = min(max((deep - middle.start) // period, 0), top)
        layer = deep - height * period
        return (storage, height) if layer == made else (self._at.get((layer, self._place[storage][1]), -1), height)


def _place(tag: int, middle: range) -> int:
    """-1 below the middle (or in no layer), 0 in it, 1 above."""
    return 0 if tag in middle else 1 if tag >= middle.stop else -1


def _places(shallow: Shallow) -> Iterator[tuple[int, tuple[int, int]]]:
    """For each storage of a layer: (layer, which of that layer's it is)."""
    counts: dict[int, int] = {}
    for number, layer in enumerate(shallow.layers):
        if layer >= 0:
            counts[layer] = counts.get(layer, -1) + 1
            yield number, (layer, counts[layer])


def depth_of(layers: int, runs: Sequence[tuple[int, int]]) -> Depth | None:
    """The longest run of a stack that is worth folding. ``runs``: (layers of the pattern, how often) in order."""
    start, found = 0, list[Depth]()
    for period, count in runs:
        found.append(Depth(layers=layers, start=start, period=period, count=count))
        start += period * count
    best = max(found, key=lambda depth: len(depth.left_out), default=None)
    return best if best is not None and best.worthwhile and start == layers else None
