"""Steps under fully_shard as a script of allocations: how the tapes of a stage's parts are played into it.

Which stream a tensor belongs to decides which pool of the allocator serves it: gathered buffers are made in
the stream of the copy-in, reduced gradients in that of the reduce-scatter, and no pool gives to another
(torch 2.13 _fsdp_collectives.py:334-352, 508-540).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from operator import invert

from memsheet.allocator.whole_script import append_shifted, live_peak_bytes
from memsheet.formulas.replay.tape_logs import (
    DEFAULT,
    THERE,
    Lifetimes,
    LogPlace,
    Pass,
    Pattern,
    Sized,
)
from memsheet.formulas.tapes.tape import Event
from memsheet.frozen import dataclass, field


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
        self.events.extend(map(invert, numbers))

    def digest(self, *beside: Hashable) -> tuple[Hashable, ...]:
        """What tells this script, with what goes ``beside`` it, from all others: three hashes of 64 bits. To
        load hashlib takes longer than to play a step.
        """
        held = (self.streams, self.sizes, self.events)
        return (*beside, *(hash(bytes(numbers)) for numbers in held))

    def largest(self, start: int) -> int:
        """Bytes of the largest that is made from event ``start`` on."""
        made = filter((0).__le__, self.events[start:])
        return max(map(self.sizes.__getitem__, made), default=0)

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
    key = (run, adds, start, stop, keeps, (*held,), workspace)
    pattern = sized.patterns.get(key) or sized.pattern(key)
    events, base, there = script.events, len(script.sizes), [*held.values()]
    first = len(events)
    if sized.varies:
        script.logs.append(LogPlace(sized, key, pattern, base, first, there))
    script.sizes += pattern.sizes
    script.streams += pattern.streams
    append_shifted(events, pattern.events, base)
    for place, number in pattern.outside:
        events[first + place] = ~there[number]
    if pattern.scratch:
        script.scratch += [base + number for number in pattern.scratch]
    held.clear()
    for index, at in pattern.left:
        held[index] = at + base if at < THERE else there[at - THERE]


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
    held = {} if given is None else dict.fromkeys(islice(tape.handed, 1), given)
    cached = tape.cached if lingers else NO_STORAGES
    named = tape.handed - tape.saved if names_input else NO_STORAGES
    again = (
        keeps_input and part.light is not None and not tape.hosted
    )  # what goes to the host comes back from there
    keeps = tape.outputs | cached | named | (tape.handed if again else NO_STORAGES)
    if workspace and sized.heirs:
        script.take(workspace)
        workspace = 0
    done = 0
    for end, do in stops:
        _play_log(script, Pass.FORWARD, sized, held, keeps, start=done, stop=end)
        do(held)
        done = end
    _play_log(script, Pass.FORWARD, sized, held, keeps, start=done, workspace=workspace)
    out = _pop_first(held, tape.outputs)
    stays = cached - tape.saved - tape.handed
    goes_on = [held.pop(index) for index in named if index in held] if named and not again else []
    lingering = [held.pop(index) for index in [*held] if index in stays] if stays else []
    return Played(part, held, given, lingering, named=goes_on), out


NO_STORAGES: frozenset[int] = frozenset()


def _pop_first(held: dict[int, int], among: frozenset[int]) -> int | None:
    """The first of some storages that is there, which is there no longer."""
    for index in among:
        if index in held:
            return held.pop(index)
    return None


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
    returned = _pop_first(held, back)
    left = [held.pop(index) for _, index in sized.arrivals if index in held]
    script.give([*held.values(), *played.masks])
    return left, returned


def _arriving_gradient(sized: Sized, size: int) -> int:
    """Which storage a part's backward takes the gradient of its output for: what comes first, or of all that
    come before anything is made the one of its size. A part on record may begin with the loss's own, too.
    """
    known = sized.arriving.get(size)
    if known is not None:
        return known
    log, entries, sizes = sized.tape.backward, sized.tape.entries, sized.sizes
    first = log[0][1]
    found = (index for event, index in log if event is Event.ALLOC and sizes[index] == size)
    alike = next(found, first)
    taken = sized.arriving[size] = alike if entries[alike].path == entries[first].path else first
    return taken


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
    script.give([held.pop(index) for index in [*held] if index not in stays])
    return held | {len(tape.entries) + place: number for place, number in enumerate(beside)}
