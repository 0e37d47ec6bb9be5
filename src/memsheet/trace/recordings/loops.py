"""Loops of a layer's code on record: the first turn and the last as they ran, and all between them as one
step, whose storages are as large as those of all its turns together.

What a loop lets go within its own turns is gone with them; what outlives them is joined by where it was made,
under what name, and where it goes. A part is only put so if its largest moments stay as large to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memsheet.frozen import dataclass, field
from memsheet.recording import ALLOCATED, MADE_GRADIENT, PLACES, RELEASED
from memsheet.trace.recordings.parts import FoundPass, PartStorage

Symbol = tuple[str, str, int]
GRAM = 4
"""Events that are compared before a loop is looked for."""
FEWEST_TURNS = 3
LEVELS = 3
"""Loops in loops."""


def fold_loops(one: FoundPass) -> FoundPass:
    """A part with the turns in the midst of its loops joined; as it is where that would change its peaks."""
    for _ in range(LEVELS):
        folded = _Fold(one).folded_pass()
        if folded is None or _pass_peaks(folded) != _pass_peaks(one):
            return one
        one = folded
    return one


def loop_middles(symbols: Sequence[object]) -> Iterator[range]:
    """The turns but the first and the last of every loop in a row of events."""
    following = _next_repeat(symbols)
    at = 0
    while at < len(symbols):
        period = following[at] - at
        turns = _turn_count(symbols, at, period) if period > 0 else 1
        if turns >= FEWEST_TURNS:
            yield range(at + period, at + (turns - 1) * period)
            at += turns * period
        else:
            at += 1


def _next_repeat(symbols: Sequence[object]) -> list[int]:
    """Of each event the place of the next with which as many begin alike; 0 where there is none."""
    later: dict[tuple[object, ...], int] = {}
    found = [0] * len(symbols)
    for at in range(len(symbols) - 1, -1, -1):
        gram = tuple(symbols[at : at + GRAM])
        found[at] = later.get(gram, 0)
        later[gram] = at
    return found


def _turn_count(symbols: Sequence[object], start: int, period: int) -> int:
    at = start
    while at + period < len(symbols) and symbols[at] == symbols[at + period]:
        at += 1
    return 1 + (at - start) // period


def _pass_peaks(one: FoundPass) -> tuple[int, int, int]:
    """The most bytes in forward, what is there after it, and the most in backward."""
    live = most = 0
    ends: list[int] = []
    for log in (one.forward, one.backward):
        for what, place in log:
            size = one.storages[place].bytes
            live += size if what == ALLOCATED else -size if what == RELEASED else 0
            most = max(most, live)
        ends += [most, live]
        most = live
    return ends[0], ends[1], ends[2]


@dataclass(slots=True)
class _Fold:
    """The folding of one part. A zone is a span of events that become one step."""

    one: FoundPass
    made: FoundPass = field(default_factory=FoundPass)
    born: dict[int, int] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)
    named: frozenset[int] = frozenset()
    zones: list[int] = field(default_factory=list)
    joined: dict[tuple[object, ...], list[int]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)

    def folded_pass(self) -> FoundPass | None:
        """The part folded; None where nothing loops."""
        one, log = self.one, [*self.one.forward, *self.one.backward]
        self.zones = [-1] * len(log)
        spans = [*_loop_spans(one, one.forward, 0), *_loop_spans(one, one.backward, len(one.forward))]
        if not spans:
            return None
        for zone, span in enumerate(spans):
            self.zones[span.start : span.stop] = [zone] * len(span)
        for at, (what, place) in enumerate(log):
            (self.born if what == ALLOCATED else self.gone if what == RELEASED else {})[place] = at
        gradients = {place for what, place in log if what == MADE_GRADIENT}
        self.named = frozenset(
            gradients.union(one.handed, one.outputs, one.waiting, one.lingering)
            | {place for place, storage in enumerate(one.storages) if storage.width}
        )
        for place in range(len(one.storages)):
            if (key := self._join_key(place)) is not None:
                self.joined.setdefault(key, []).append(place)
        self.made.forward = list(self._folded_log(log, 0, len(one.forward)))
        self.made.backward = list(self._folded_log(log, len(one.forward), len(log)))
        for name in PLACES:
            kept = dict.fromkeys(self.places[n] for n in getattr(one, name) if n in self.places)
            setattr(self.made, name, list(kept))
        return self.made

    def _zone_of(self, at: int | None) -> int:
        return -1 if at is None else self.zones[at]

    def _join_key(self, place: int) -> tuple[object, ...] | None:
        """With what a storage is joined: made in the midst of a loop, gone in that of another or never."""
        born, gone = self._zone_of(self.born.get(place)), self.gone.get(place)
        if born < 0 or place in self.named or (gone is not None and self._zone_of(gone) < 0):
            return None
        storage = self.one.storages[place]
        kept = (place in self.one.saved, place in self.one.cached)
        return (born, self._zone_of(gone), storage.path, storage.hidden, *kept)

    def _is_transient(self, place: int) -> bool:
        born = self._zone_of(self.born.get(place))
        return born >= 0 and born == self._zone_of(self.gone.get(place))

    def _folded_log(self, log: Sequence[tuple[str, int]], start: int, stop: int) -> Iterator[tuple[str, int]]:
        done: set[int] = set()
        for at in range(start, stop):
            zone = self.zones[at]
            if zone < 0:
                yield log[at][0], self._new_place(log[at][1])
            elif zone not in done:
                done.add(zone)
                yield from self._zone_step([log[n] for n in range(at, stop) if self.zones[n] == zone])

    def _zone_step(self, events: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
        """What a zone lets go of others', then what it makes that outlives it."""
        for wanted in (RELEASED, ALLOCATED, MADE_GRADIENT):
            once: set[int] = set()
            for what, place in events:
                if what != wanted or self._is_transient(place):
                    continue
                number = self._new_place(place)
                if number not in once:
                    once.add(number)
                    yield what, number

    def _new_place(self, place: int) -> int:
        """The number of a storage among those that are made, joined ones as one."""
        if place not in self.places:
            alike = self._joined_places(place)
            storage = self.one.storages[place]
            total = sum(self.one.storages[each].bytes for each in alike)
            self.places.update(dict.fromkeys(alike, len(self.made.storages)))
            self.made.storages.append(PartStorage(storage.path, total, storage.width, storage.hidden))
        return self.places[place]

    def _joined_places(self, place: int) -> list[int]:
        key = self._join_key(place)
        return [place] if key is None else self.joined[key]


def _loop_spans(one: FoundPass, log: Sequence[tuple[str, int]], offset: int) -> Iterator[range]:
    symbols = [(what, one.storages[place].path, one.storages[place].width) for what, place in log]
    for middle in loop_middles(symbols):
        yield range(middle.start + offset, middle.stop + offset)
