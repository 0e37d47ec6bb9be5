"""What the log of a tape does to an allocator: what it makes and lets go of, in order, with the lifetimes
that a compiler, a frame or an operation gives them, whatever was made before it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import chain

from memsheet.allocator.whole_script import shift_events
from memsheet.formulas.tapes.evaluate import Axes, entry_bytes
from memsheet.formulas.tapes.kernel_scratch import kernel_scratch_bytes
from memsheet.formulas.tapes.tape import Event, Log, Tape
from memsheet.frozen import NamedTuple, dataclass, field

DEFAULT, GATHERS, REDUCES, BESIDE, CASTS = range(5)
"""Streams: that of the model, that which parameters are gathered in, that which gradients are reduced in,
that which a layer makes something in beside the model's, and that in which a rank's part of parameters is
cast before it is gathered.
"""


class Lifetimes(Enum):
    """How long what a layer's forward makes for itself is there."""

    RECORDED = "recorded"  # from its operation to its last use
    # the same, and what comes later takes its place: torch._inductor/codegen/wrapper.py, buffer_reuse_key
    REUSED = "reused"
    NONE = "none"  # it is never made: everything is part of some other kernel
    CALLED = "called"  # until the call that made it returns: the frame of its module has let go of it then
    LATE = "late"  # until the layer is through

    __hash__ = object.__hash__  # see sheet.Component


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """A tape with its sizes, and its forward with lifetimes, which are ``kept``. ``heirs``: which storage
    takes the place of which; ``arrivals``: when backward leaves a
    parameter's gradient, and which; ``handed_back``: the gradient of what came in;
    ``recomputed_stays``: what is there after a forward that ran again;
    ``varies``: whether its lifetimes are not known; ``patterns``: what its logs were found to do;
    ``lifetimes``: the same with others; ``scratch``: bytes that kernels take for themselves, by the result
    that they make last; ``arriving``: which storage a gradient of so many bytes was taken for.
    """

    tape: Tape
    sizes: tuple[int, ...]
    kept: Lifetimes
    heirs: Mapping[int, int]
    arrivals: tuple[tuple[int, int], ...]
    handed_back: frozenset[int]
    recomputed_stays: frozenset[int]
    varies: bool = False
    patterns: dict[PlainKey, Pattern] = field(default_factory=dict)
    lifetimes: dict[Lifetimes, Sized | None] = field(default_factory=dict)
    scratch: Mapping[int, Sequence[int]] = field(default_factory=dict)
    arriving: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, tape: Tape, axes: Axes, lifetimes: Lifetimes | None = None) -> Sized:
        """``lifetimes``: None of a part that has no others than those that are recorded."""
        sizes = [int(entry_bytes(entry, axes)) for entry in tape.entries]
        scratch: dict[int, list[int]] = {}
        for beside, kernel in tape.scratch:
            if size := kernel_scratch_bytes(kernel, axes):
                scratch.setdefault(beside, []).append(size)
        kind = lifetimes or Lifetimes.RECORDED
        return cls._of_sizes(tape, sizes, kind, scratch, varies=lifetimes is not None)

    @classmethod
    def _of_sizes(
        cls,
        tape: Tape,
        sizes: Sequence[int],
        lifetimes: Lifetimes,
        scratch: Mapping[int, Sequence[int]],
        *,
        varies: bool,
    ) -> Sized:
        heirs = dict[int, int]()
        if lifetimes is Lifetimes.NONE:
            stays = tape.saved | tape.outputs | tape.handed
            made = {index for event, index in tape.forward if event is Event.ALLOC} - stays
            sizes = [0 if index in made else size for index, size in enumerate(sizes)]
        elif lifetimes is Lifetimes.REUSED:
            heirs = _reused_storages(tape, sizes, tape.forward, tape.handed | tape.outputs)
        arrivals = tuple((at, i) for at, (event, i) in enumerate(tape.backward) if event is Event.GRADIENT)
        stays = tape.saved | tape.kept | tape.handed
        back = _handed_back(tape, sizes)
        return cls(tape, tuple(sizes), lifetimes, heirs, arrivals, back, stays, varies, scratch=scratch)

    @property
    def forward(self) -> Log:
        """What forward makes and lets go of, in order."""
        return _forward_log(self.tape, self.kept)

    def of_lifetimes(self, lifetimes: Lifetimes) -> Sized | None:
        """The same with other lifetimes than those recorded, where what is handed back and every gradient are
        the same.
        """
        if lifetimes not in self.lifetimes:
            other = self._of_sizes(self.tape, self.sizes, lifetimes, self.scratch, varies=True)
            gradients = all(other.sizes[index] == self.sizes[index] for _, index in self.arrivals)
            same = gradients and other.handed_back == self.handed_back
            self.lifetimes[lifetimes] = other if same else None
        return self.lifetimes[lifetimes]

    def pattern(self, key: PlainKey) -> Pattern:
        """What a log was found to do."""
        found = self.patterns.get(key)
        if found is None:
            found = self.patterns[key] = _pattern_of(self, LogKey(*key))
        return found


@lru_cache(maxsize=256)
def _forward_log(tape: Tape, lifetimes: Lifetimes) -> Log:
    """What a tape's forward makes and lets go of, in order."""
    match lifetimes:
        case Lifetimes.CALLED:
            return _released_by_frames(tape)
        case Lifetimes.LATE:
            return tuple(sorted(tape.forward, key=lambda one: one[0] is Event.FREE))
        case Lifetimes.NONE | Lifetimes.REUSED | Lifetimes.RECORDED:
            return tape.forward


def _handed_back(tape: Tape, sizes: Sequence[int]) -> frozenset[int]:
    """The gradient of what came in: the last thing that goes, if it is as large."""
    if not tape.backward or not tape.handed:
        return frozenset()
    event, index = tape.backward[-1]
    same = sizes[index] == sizes[next(iter(tape.handed))]
    return frozenset({index} if event is Event.FREE and same and not tape.entries[index].gradient else ())


def _reused_storages(tape: Tape, sizes: Sequence[int], log: Log, keeps: frozenset[int]) -> dict[int, int]:
    """What is made takes the place of what went last of the same dtype and size."""
    heirs: dict[int, int] = {}
    gone: dict[tuple[str, int], list[int]] = {}
    for event, index in log:
        waiting = gone.setdefault((tape.entries[index].dtype.name, sizes[index]), [])
        if event is Event.FREE and index not in keeps:
            waiting.append(index)
        elif event is Event.ALLOC and waiting and index not in tape.handed:
            heirs[index] = waiting.pop()
    return heirs


def _released_by_frames(tape: Tape) -> Log:
    """A forward in which whatever goes does so when the module that made it has returned, or, of what that
    hands back, the module around it; what the layer itself names, when the layer is through. Nothing goes
    earlier than is recorded.
    """
    last = dict[str, int]()  # by module, the event with which it made the last of its storages
    for at, (event, index) in enumerate(tape.forward):
        module = tape.entries[index].path.partition("/")[0] if event is Event.ALLOC else ""
        while module:
            last[module] = at
            module = module.rpartition(".")[0]
    end = len(tape.forward)

    def released(numbered: tuple[int, tuple[Event, int]]) -> tuple[int, bool]:
        at, (event, index) = numbered
        if event is not Event.FREE:
            return at, False
        module, _, what = tape.entries[index].path.partition("/")
        frame = module.rpartition(".")[0] if what == OUTPUT else module
        return max(at, last.get(frame, end)), True

    return tuple(one for _, one in sorted(enumerate(tape.forward), key=released))


OUTPUT = "output"
"""Of a module, what it hands back."""


class Pass(Enum):
    """Which log of a tape is played."""

    FORWARD = "forward"
    AGAIN = "again"  # the forward, as far as recompute runs it
    BACKWARD = "backward"

    __hash__ = object.__hash__  # see sheet.Component


class LogKey(NamedTuple):
    """What decides the allocations of a part's log: which events of it, and whether a parameter's gradient
    goes as soon as it is made (``adds``); what is not freed, and what is there already; bytes that its first
    product of matrices takes for good.
    """

    run: Pass
    adds: bool
    start: int
    stop: int | None
    keeps: frozenset[int]
    there: tuple[int, ...]
    workspace: int = 0


PlainKey = tuple[Pass, bool, int, int | None, frozenset[int], tuple[int, ...], int]
"""A ``LogKey`` without its names, which take as long to make as its log to play: equal where that is."""


class Pattern(NamedTuple):
    """What a part of a log does, whatever was made before it: what it makes is numbered from 0, what was
    there already from ``THERE``, in its order. ``outside``: the places in ``events`` at which something of
    that goes, and its own; ``left``: what is there afterwards; ``scratch``: what kernels make for themselves.
    """

    sizes: array[int]
    streams: bytearray
    events: array[int]
    outside: tuple[tuple[int, int], ...]
    left: tuple[tuple[int, int], ...]
    scratch: tuple[int, ...] = ()

    def placed(self, request: int, there: Sequence[int]) -> array[int]:
        """Its events where it makes requests from this one on, and so many are there."""
        events = shift_events(self.events, request)
        for place, number in self.outside:
            events[place] = ~there[number]
        return events


class LogPlace(NamedTuple):
    """A log in a script, with the first of its requests and of its events, and what was there."""

    sized: Sized
    key: PlainKey
    pattern: Pattern
    request: int
    event: int
    there: list[int]

    def of_lifetimes(self, lifetimes: Lifetimes) -> Pattern | None:
        """What it does with others than those recorded: this one's own where that is the same, None where it
        asks for another number or leaves something else.
        """
        sized, mine = self.sized.of_lifetimes(lifetimes), self.pattern
        if sized is None:
            return None
        its = sized.pattern(self.key)
        alike = (len(its.sizes), len(its.events), its.left) == (len(mine.sizes), len(mine.events), mine.left)
        return None if not alike else mine if (its.sizes, its.events) == (mine.sizes, mine.events) else its


THERE = 1 << 40


def _pattern_of(sized: Sized, key: LogKey) -> Pattern:
    """A log's course with the sizes of what it makes."""
    beside = tuple([(index, len(inside)) for index, inside in sized.scratch.items()])
    taken = key._replace(workspace=bool(key.workspace))
    course = _course_of(sized.tape, sized.kept, taken, beside, tuple(sized.heirs.items()))
    sizes = [*sized.sizes, *chain(*sized.scratch.values()), key.workspace]
    made = array("q", [sizes[place] for place in course.made])
    return Pattern(made, course.streams, course.events, course.outside, course.left, course.scratch)


class Course(NamedTuple):
    """What a log does whatever sizes there are: as ``Pattern``, but of what it makes only which it is
    (``made``): a storage by its number, behind them what kernels make for themselves, one after another, and
    last the workspace.
    """

    made: list[int]
    streams: bytearray
    events: array[int]
    outside: tuple[tuple[int, int], ...]
    left: tuple[tuple[int, int], ...]
    scratch: tuple[int, ...]


@lru_cache(maxsize=1024)
def _course_of(
    tape: Tape,
    lifetimes: Lifetimes,
    key: LogKey,
    beside: tuple[tuple[int, int], ...],
    inherited: tuple[tuple[int, int], ...],
) -> Course:
    """``beside``: how many kernels' own come with a storage; ``inherited``: which takes the place of which. A
    question asks for the same at every length.
    """
    forward = _forward_log(tape, lifetimes)
    logs = {Pass.FORWARD: forward, Pass.AGAIN: tape.recomputed, Pass.BACKWARD: tape.backward}
    log = logs[key.run][key.start : key.stop]
    if key.adds:
        log = tuple((Event.FREE if event is Event.GRADIENT else event, index) for event, index in log)
    held, heirs = {index: THERE + place for place, index in enumerate(key.there)}, dict(inherited)
    last, own = len(tape.entries), dict[int, range]()
    for index, count in beside:
        own[index] = range(last, last + count)
        last += count
    made, events, inside = list[int](), list[int](), list[int]()
    places, spare = set(heirs.values()) if key.run is Pass.FORWARD else set[int](), dict[int, int]()
    product = _first_product(tape, forward) if key.workspace else None
    for at, (event, index) in enumerate(log):
        if at == product:
            events.append(len(made))
            made.append(last)
        if event is Event.ALLOC and index not in held:
            place = spare.pop(heirs[index], None) if index in heirs else None
            if place is None:
                place = len(made)
                events.append(place)
                made.append(index)
            held[index] = place
        elif event is Event.FREE and index in held and index not in key.keeps:
            number = held.pop(index)
            if index in places:
                spare[index] = number
            else:
                events.append(~number)
        for extra in own[index] if event is Event.ALLOC and index in own else ():
            number = len(made)
            inside.append(number)
            events += (number, ~number)
            made.append(extra)
    if product == len(log):
        events.append(len(made))
        made.append(last)
    events += [~number for number in spare.values()]
    streams = bytearray(
        BESIDE if index < len(tape.entries) and tape.entries[index].side_stream else DEFAULT for index in made
    )
    outside = tuple((at, ~event - THERE) for at, event in enumerate(events) if ~event >= THERE)
    return Course(made, streams, array("q", events), outside, tuple(held.items()), tuple(inside))


def _first_product(tape: Tape, forward: Log) -> int:
    """How many events of a forward come before the workspace of its first product of matrices: those up to
    its result's.
    """
    made = next((one.writes[0] for one in tape.forward_operations if one.terms and one.writes), None)
    entries = tape.entries
    events = enumerate(forward, 1)
    return next(
        (
            at
            for at, (event, i) in events
            if event is Event.ALLOC
            and made == (entries[i].shape, entries[i].dtype)
            and "/output" in entries[i].path
        ),
        0,
    )
