"""Depth does not cost: a few layers are traced, and the events of one of them are repeated as often as the
model has such layers.

A traced stack is ``before | repeated | after``: whole periods of its pattern, the middle one standing for all
that were left out. Every stretch of events that belongs to the middle is written once for each layer it
stands for: upwards in forward and in the optimizer, downwards in backward. What a layer does for its
neighbours (gathers the next one's parameters, lets go of the last one's buffers) it does for those at the
same distance. The periods beside the middle must have made the very same events and storages; where they have
not, the caller traces every layer instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby

from memsheet.frozen import dataclass, replace
from memsheet.plan.model import Stack
from memsheet.timeline import Mark, Storage, Timeline

SIDES = 2  # periods traced before and after the one that is repeated: its neighbours must be ordinary too


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Layers of the stack whose modules are named ``path.N``: those that repeat begin at ``start``, with a
    pattern of ``period`` layers, ``count`` times.
    """

    path: str
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

    def within(self, first: int, after: int) -> Depth | None:
        """The whole periods among layers ``first`` to ``after``, where enough of them are there to leave some
        out.
        """
        skipped = max(0, -(-(first - self.start) // self.period))
        count = (min(after, self.start + self.count * self.period) - self.start) // self.period - skipped
        inside = replace(self, start=self.start + skipped * self.period, count=max(count, 0))
        return inside if inside.worthwhile else None


@dataclass(frozen=True, slots=True)
class Shallow:
    """A traced timeline of fewer layers. ``tags``: the layer each event belongs to, -1 for none; ``layers``:
    that of each storage.
    """

    timeline: Timeline
    tags: tuple[int, ...]
    layers: tuple[int, ...]


class NotUniformError(ValueError):
    """Layers that should be alike are not, so that one cannot stand for the others."""


def extend_timeline_layers(shallow: Shallow, depth: Depth) -> Timeline:
    """The timeline of all layers. Raises NotUniformError where the traced layers do not repeat."""
    _check_alike(shallow, depth)
    return _Writer(shallow, depth).written()


def _check_alike(shallow: Shallow, depth: Depth) -> None:
    """The middle and the period after it make the same events, in the same places of the step; and they and
    the period before it own the same storages, in the same order. A middle that owns nothing was not found.
    """
    middle = depth.middle
    before, after = (range(middle.start + by, middle.stop + by) for by in (-depth.period, depth.period))
    owned = [_layer_storages(shallow, layers) for layers in (before, middle, after)]
    alike = _layer_event_keys(shallow, middle) == _layer_event_keys(shallow, after)
    if not alike or owned != [owned[0]] * len(owned) or not any(owned[0]):
        raise NotUniformError


def _layer_storages(shallow: Shallow, layers: range) -> list[list[tuple[int, str, str]]]:
    """What the storages of some layers are, layer by layer."""
    rows = list(zip(shallow.layers, shallow.timeline.storages, strict=True))
    return [[(row.bytes, row.op, row.path) for owner, row in rows if owner == layer] for layer in layers]


def _layer_event_keys(shallow: Shallow, layers: range) -> list[tuple[bool, int, str, str, int]]:
    """What the events of some layers are, numbers of layers aside."""
    rows = shallow.timeline.storages
    found = []
    for event, tag in zip(shallow.timeline.events, shallow.tags, strict=True):
        if tag in layers:
            number = event if event >= 0 else ~event
            made = shallow.layers[number]
            found.append(
                (
                    event >= 0,
                    rows[number].bytes,
                    rows[number].op,
                    rows[number].path,
                    made - tag if made >= 0 else 0,
                )
            )
    return found


class _Writer:
    """Writes the deep timeline from the shallow one, stretch by stretch."""

    def __init__(self, shallow: Shallow, depth: Depth) -> None:
        self.shallow, self.depth = shallow, depth
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self.marks: list[Mark] = []
        self._new: dict[
            tuple[int, int], int
        ] = {}  # (its layer, which of that layer's it is) → a storage's number here
        self._place = dict(_storage_layer_indices(shallow))

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
        middle, cuts, tags = (
            self.depth.middle,
            [mark.at for mark in self.shallow.timeline.marks],
            self.shallow.tags,
        )
        at = 0
        for (place, _), run in groupby(
            range(len(tags)), key=lambda n: (_side_of_middle(tags[n], middle), bisect_right(cuts, n))
        ):
            length = sum(1 for _ in run)
            yield at, at + length, place == 0
            at += length

    def _copies(self, start: int, stop: int, *, repeated: bool) -> Iterable[int]:
        """How many periods above its shallow place a stretch is written: the middle once for every layer it
        stands for.
        """
        top = self.depth.copies - 1
        if not repeated:
            return (top,) if self.shallow.tags[start] >= self.depth.middle.stop else (0,)
        return range(top + 1) if self._goes_up(start, stop) else range(top, -1, -1)

    def _goes_up(self, start: int, stop: int) -> bool:
        """Whether layers come in order here: the one before this stretch and the one after it are the
        middle's neighbours.
        """
        tags, below, above = self.shallow.tags, self.depth.middle.start - 1, self.depth.middle.stop
        beside = (tags[start - 1] if start else -1, tags[stop] if stop < len(tags) else -1)
        if beside not in ((below, above), (above, below)):
            raise NotUniformError
        return beside[0] == below

    def _stretch(self, start: int, stop: int, copy: int) -> None:
        for number in range(start, stop):
            self._write(self.shallow.timeline.events[number], self.shallow.tags[number], copy)

    def _write(self, event: int, tag: int, higher: int) -> None:
        """One event, ``higher`` periods above where it was traced."""
        number = event if event >= 0 else ~event
        key = self._storage_of_event(number, tag, higher)
        if (event >= 0) == (key in self._new):
            raise NotUniformError
        if event >= 0:
            self._new[key] = len(self.storages)
            self.events.append(len(self.storages))
            self.storages.append(self.shallow.timeline.storages[number])
        else:
            self.events.append(~self._new.pop(key))

    def _storage_of_event(self, storage: int, tag: int, higher: int) -> tuple[int, int]:
        """The storage that an event means: one as many layers away as in the shallow stack."""
        made, middle = self.shallow.layers[storage], self.depth.middle
        if (made < 0 and tag in middle) or (
            tag < 0 and made in middle
        ):  # it would be written once for every layer, or for one of them
            raise NotUniformError
        if made < 0:
            return -1, storage
        if (
            tag not in middle and made not in middle
        ):  # neither is repeated: layers are themselves, not neighbours
            higher = self.depth.copies - 1 if made >= middle.stop else 0
        return made + higher * self.depth.period, self._place[storage][1]


def _side_of_middle(tag: int, middle: range) -> int:
    """-1 below the middle (or in no layer), 0 in it, 1 above."""
    return 0 if tag in middle else 1 if tag >= middle.stop else -1


def _storage_layer_indices(shallow: Shallow) -> Iterator[tuple[int, tuple[int, int]]]:
    """For each storage of a layer: (layer, which of that layer's it is)."""
    counts: dict[int, int] = {}
    for number, layer in enumerate(shallow.layers):
        if layer >= 0:
            counts[layer] = counts.get(layer, -1) + 1
            yield number, (layer, counts[layer])


def depth_of(stack: Stack) -> Depth | None:
    """The longest run of a stack that is worth folding."""
    start, found = 0, list[Depth]()
    for run in stack.runs:
        found.append(
            Depth(path=stack.path, layers=stack.layers, start=start, period=len(run.pattern), count=run.count)
        )
        start += len(run.pattern) * run.count
    best = max(found, key=lambda depth: len(depth.left_out), default=None)
    return best if best is not None and best.worthwhile else None
