"""Steps under fully_shard as a script of allocations: how the tapes of a stage's parts are played into it.

Which stream a tensor belongs to decides which pool of the allocator serves it: gathered buffers are made in
the stream of the copy-in, reduced gradients in that of the reduce-scatter, and no pool gives to another
(torch 2.13 _fsdp_collectives.py:334-352, 508-540).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import chain

from memsheet.allocator.whole_script import live_peak_bytes, shift_events
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


@dataclass(slots=True)
class Script:
    """Allocations so far: the bytes and stream of each, and the order in which they come and go (``n``,
    ``~n``). ``logs``: where those of parts lie whose lifetimes are not known; ``scratch``: which of them
    kernels make for themselves.
    """

    sizes: array[int] = field(default_factory=lambda: array("q"))
    streams: bytearray = field(default_factory=bytearray)
    events: array[int] = field(default_factory=lambda: array("q"))
    logs: list[LogPlace] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)

    def take(self, size: int, stream: int = DEFAULT) -> int:
        number = len(self.sizes)
        self.sizes.append(size)
        self.streams.append(stream)
        self.events.append(number)
        return number

    def take_all(self, sizes: Sequence[int], stream: int = DEFAULT) -> list[int]:
        """One after another."""
        first = len(self.sizes)
        numbers = [*range(first, first + len(sizes))]
        self.sizes.extend(sizes)
        self.streams += bytes([stream]) * len(sizes)
        self.events.extend(numbers)
        return numbers

    def give(self, numbers: Iterable[int]) -> None:
        self.events.extend([~number for number in numbers])

    def digest(self, *beside: Hashable) -> tuple[Hashable, ...]:
        """What tells this script, with what goes ``beside`` it, from all others: three hashes of 64 bits. To
        load hashlib takes longer than to play a step.
        """
        held = (self.streams, self.sizes, self.events)
        return (*beside, *(hash(bytes(numbers)) for numbers in held))

    def largest(self, start: int) -> int:
        """Bytes of the largest that is made from event ``start`` on."""
        return max((self.sizes[event] for event in self.events[start:] if event >= 0), default=0)

    def live_peak(self, start: int) -> int:
        """The most bytes asked for and not released, from event ``start`` on."""
        return live_peak_bytes(self.events, self.sizes, start)

    def without_scratch(self) -> array[int]:
        """Bytes of each, those of kernels' own at none."""
        sizes = array("q", self.sizes)
        for number in self.scratch:
            sizes[number] = 0
        return sizes

    def of_lifetimes(self, lifetimes: Lifetimes) -> Script | None:
        """The same script with parts of these lifetimes, where it has those that are recorded; None where it
        would not ask for as much in the same order.
        """
        other = Script(array("q", self.sizes), self.streams, array("q", self.events))
        patterns: dict[int, Pattern] = {}
        for place in self.logs:
            mine = place.pattern
            its = patterns.get(id(mine)) or place.of_lifetimes(lifetimes)
            if its is None:
                return None
            patterns[id(mine)] = its
            if its is mine:
                continue
            if its.sizes != mine.sizes:
                other.sizes[place.request : place.request + len(its.sizes)] = its.sizes
            if its.events != mine.events:
                events = its.placed(place.request, place.there)
                other.events[place.event : place.event + len(events)] = events
        return other


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """A tape with its sizes, and its forward with lifetimes, which are ``kept``. ``heirs``: which storage
    takes the place of which; ``arrivals``: when backward leaves a
    parameter's gradient, and which; ``handed_back``: the gradient of what came in;
    ``recomputed_stays``: what is there after a forward that ran again;
    ``varies``: whether its lifetimes are not known; ``patterns``: what its logs were found to do;
    ``lifetimes``: the same with others; ``scratch``: bytes that kernels take for themselves, by the result
    that they make last.
    """

    tape: Tape
    sizes: tuple[int, ...]
    kept: Lifetimes
    heirs: Mapping[int, int]
    arrivals: tuple[tuple[int, int], ...]
    handed_back: frozenset[int]
    recomputed_stays: frozenset[int]
    varies: bool = False
    patterns: dict[LogKey, Pattern] = field(default_factory=dict)
    lifetimes: dict[Lifetimes, Sized | None] = field(default_factory=dict)
    scratch: Mapping[int, Sequence[int]] = field(default_factory=dict)

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

    def pattern(self, key: LogKey) -> Pattern:
        """What a log was found to do."""
        found = self.patterns.get(key)
        if found is None:
            found = self.patterns[key] = _pattern_of(self, key)
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


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One part of a stage. ``light``: the forward that runs first where ``own`` runs again in backward."""

    own: Sized
    light: Sized | None


@dataclass(slots=True)
class Played:
    """A part between its forward and its backward. ``held``: what is there, by the tape's own numbers;
    ``given``: what the part before handed over; ``masks``: what goes with its backward, as it was made for
    all parts that come after it; ``named``: what came in and goes by a name until the layers are through.
    """

    part: Recorded
    held: dict[int, int]
    given: int | None
    lingering: list[int]  # until the model's forward is over
    masks: Sequence[int] = ()
    named: Sequence[int] = ()


Stop = tuple[int, Callable[[dict[int, int]], object]]
"""After how many events of a tape's pass something is done, which is told what is there (by the tape's
own numbers) and may take it over.
"""


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
    key: LogKey
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


def _play_log(
    script: Script,
    run: Pass,
    sized: Sized,
    held: dict[int, int],
    keeps: frozenset[int],
    *,
    adds: bool = False,
    start: int = 0,
    stop: int | None = None,
    workspace: int = 0,
) -> None:
    """One log, or its events from ``start`` to ``stop``. What is in ``held`` is there already and is not made
    again; ``keeps`` are not freed. ``adds``: a parameter's gradient goes as soon as it is made. Logs are
    long, and a step has one for each layer and pass, all alike.
    """
    key = LogKey(run, adds, start, stop, keeps, tuple(held), workspace)
    pattern = sized.pattern(key)
    base, there = len(script.sizes), [*held.values()]
    if sized.varies:
        script.logs.append(LogPlace(sized, key, pattern, base, len(script.events), there))
    script.sizes += pattern.sizes
    script.streams += pattern.streams
    script.events += pattern.placed(base, there)
    if pattern.scratch:
        script.scratch += [base + number for number in pattern.scratch]
    held.clear()
    for index, at in pattern.left:
        held[index] = at + base if at < THERE else there[at - THERE]


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


def play_forward(
    script: Script,
    part: Recorded,
    given: int | None,
    *,
    lingers: bool = False,
    workspace: int = 0,
    keeps_input: bool = True,
    names_input: bool = False,
    stops: Iterable[Stop] = (),
) -> tuple[Played, int | None]:
    """A part's forward, and the number of what it hands on. ``lingers``: what stays until the model's forward
    is over is the caller's to free (``Played.lingering``), else it goes with the part's forward.
    ``workspace``: bytes that its first product of matrices takes for good, once its result has a place (torch
    aten/src/ATen/native/cuda/Blas.cpp, cuda/CublasHandlePool.cpp). ``keeps_input``: where it runs again,
    from what it was handed, and not from what a part before it is run again with. ``names_input``: the
    model's forward goes on naming what it was handed. ``stops``: what else is done on the way, in order, of a
    part that takes no workspace.
    """
    sized = part.light or part.own
    tape = sized.tape
    handed = next(iter(tape.handed), None)
    held = {} if handed is None or given is None else {handed: given}
    cached = tape.cached if lingers else frozenset[int]()
    named = tape.handed - tape.saved if names_input else frozenset[int]()
    again = (
        keeps_input and part.light is not None and not tape.hosted
    )  # what goes to the host comes back from there
    keeps = tape.outputs | cached | named | (tape.handed if again else frozenset())
    if workspace and sized.heirs:
        script.take(workspace)
        workspace = 0
    done = 0
    for end, do in stops:
        _play_log(script, Pass.FORWARD, sized, held, keeps, start=done, stop=end)
        do(held)
        done = end
    _play_log(script, Pass.FORWARD, sized, held, keeps, start=done, workspace=workspace)
    out = next((held.pop(index) for index in tape.outputs if index in held), None)
    stays = cached - tape.saved - tape.handed
    goes_on = [held.pop(index) for index in named if index in held and not again]
    return Played(
        part, held, given, [held.pop(index) for index in list(held) if index in stays], named=goes_on
    ), out


def play_backward(
    script: Script,
    played: Played,
    gradient: int | None,
    *,
    adds: bool = False,
    workspace: int = 0,
    stops: Iterable[Stop] = (),
) -> tuple[list[int], int | None]:
    """A part's backward: its parameters' gradients, which stay unless one ``adds`` them to others, and the
    gradient that it hands back. ``workspace`` as in ``play_forward``; ``stops``: what else is done on the
    way, in order.
    """
    sized, tape = played.part.own, played.part.own.tape
    back, done, ahead = sized.handed_back, 0, dict[int, int]()
    if gradient is not None and played.part.light and not workspace and not stops:
        done = tape.ahead_of_recompute
    if gradient is not None and done:
        ahead[_arriving_gradient(sized, script.sizes[gradient])] = gradient
        _play_log(script, Pass.BACKWARD, sized, ahead, back, adds=adds, stop=done)
    held = _run_again(script, played) if played.part.light else played.held
    held |= ahead
    if gradient is not None and not done and tape.backward and tape.backward[0][0] is Event.ALLOC:
        held[_arriving_gradient(sized, script.sizes[gradient])] = gradient
    elif gradient is not None and not done:
        script.give((gradient,))  # nothing of it trains
    if workspace:
        first = (
            at for at, (event, i) in enumerate(tape.backward, 1) if event is Event.ALLOC and i not in held
        )
        stops = ((next(first, 0), lambda _: script.take(workspace)), *stops)
    for end, do in stops:
        _play_log(script, Pass.BACKWARD, sized, held, back, adds=adds, start=done, stop=end)
        do(held)
        done = end
    _play_log(script, Pass.BACKWARD, sized, held, back, adds=adds, start=done)
    returned = next((held.pop(index) for index in back if index in held), None)
    left = [held.pop(index) for _, index in sized.arrivals if index in held]
    script.give([*held.values(), *played.masks])
    return left, returned


def _arriving_gradient(sized: Sized, size: int) -> int:
    """Which storage a part's backward takes the gradient of its output for: what comes first, or of all that
    come before anything is made the one of its size. A part on record may begin with the loss's own, too.
    """
    log, entries, sizes = sized.tape.backward, sized.tape.entries, sized.sizes
    first = log[0][1]
    found = (index for event, index in log if event is Event.ALLOC and sizes[index] == size)
    alike = next(found, first)
    return alike if entries[alike].path == entries[first].path else first


def _run_again(script: Script, played: Played) -> dict[int, int]:
    """The forward again, as far as it is needed; what its frames still held goes when it stops."""
    sized, light = played.part.own, played.part.light
    assert light is not None
    tape = sized.tape
    kept = [played.held[index] for index in sorted(light.tape.saved) if index in played.held]
    held = dict(zip(sorted(tape.before), kept, strict=True)) if tape.before else {}
    beside = () if tape.before else kept  # what a layer's record keeps of its first forward
    handed, came = next(iter(tape.handed), None), played.given
    if came is None:  # from the stage before: its forward made it
        came = next((played.held[index] for index in light.tape.handed if index in played.held), None)
    hosted = bool(light.tape.hosted)  # what comes back from there is there for the forward alone
    if handed is not None and came is not None and not hosted:
        held[handed] = came
    _play_log(script, Pass.AGAIN, sized, held, frozenset() if hosted else tape.handed)
    stays = sized.recomputed_stays - (tape.handed - tape.saved if hosted else frozenset())
    script.give([held.pop(index) for index in list(held) if index not in stays])
    return held | {len(tape.entries) + place: number for place, number in enumerate(beside)}
