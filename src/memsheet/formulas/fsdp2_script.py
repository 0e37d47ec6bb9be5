"""Steps under fully_shard as a script of allocations: the tapes of a stage's parts in order, and what fully_shard does between them.

Which stream a tensor belongs to decides which pool of the allocator serves it: gathered buffers are made in the stream of the copy-in,
reduced gradients in that of the reduce-scatter, and neither pool gives to the other (torch 2.13 _fsdp_collectives.py:334-352, 508-540,
_fsdp_param_group.py:372-462, 561-640).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from memsheet.formulas.evaluate import Axes, entry_bytes
from memsheet.formulas.tape import Event, Log, Tape

DEFAULT, GATHERS, REDUCES = 0, 1, 2


@dataclass(slots=True)
class Script:
    """Allocations so far: the bytes and stream of each, and the order in which they come and go (``n``, ``~n``)."""

    sizes: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)

    def take(self, size: int, stream: int = DEFAULT) -> int:
        self.sizes.append(size)
        self.streams.append(stream)
        self.events.append(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def give(self, numbers: Iterable[int]) -> None:
        self.events += [~number for number in numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is gathered together, in bytes on this rank: each parameter ``whole``, the shards it is gathered from, gradients' buffers."""

    whole: tuple[int, ...]
    gathered: int
    sent: int
    reduce_input: int
    reduced: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """One part of a stage: its tapes and their sizes. ``light``: the forward that ran first where this one runs again."""

    tape: Tape
    sizes: tuple[int, ...]
    light: Tape | None = None
    light_sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, tape: Tape, axes: Axes, light: Tape | None = None) -> Recorded:
        def sized(one: Tape) -> tuple[int, ...]:
            return tuple(int(entry_bytes(entry, axes)) for entry in one.entries)

        return cls(tape=tape, sizes=sized(tape), light=light, light_sizes=sized(light) if light else ())


@dataclass(slots=True)
class Played:
    """A part between its forward and its backward. ``held``: what is there, by the tape's own numbers; ``given``: what the part before handed
    over, which is another's to free until this one has run.
    """

    part: Recorded
    held: dict[int, int]
    given: int | None


def _play(script: Script, log: Log, sizes: Sequence[int], held: dict[int, int], keeps: frozenset[int]) -> None:
    """One log. What is in ``held`` is there already and is not made again; ``keeps`` are not freed."""
    for event, index in log:
        if event is Event.ALLOC:
            if index not in held:
                held[index] = script.take(sizes[index])
        elif event is Event.FREE and index in held and index not in keeps:
            script.give((held.pop(index),))


def forward(script: Script, part: Recorded, given: int | None) -> tuple[Played, int | None]:
    """A part's forward, and the number of what it hands on."""
    tape, sizes = (part.light, part.light_sizes) if part.light else (part.tape, part.sizes)
    handed = next(iter(tape.handed), None)
    held = {} if handed is None or given is None else {handed: given}
    keeps = tape.outputs | (tape.handed if part.light else frozenset())
    _play(script, tape.forward, sizes, held, keeps)
    out = held.pop(next(iter(tape.outputs), -1), None)
    return Played(part, held, given), out


def backward(script: Script, played: Played, gradient: int | None) -> tuple[list[int], int | None]:
    """A part's backward: its parameters' gradients, which stay, and the gradient that it hands back."""
    part, tape = played.part, played.part.tape
    held = _run_again(script, played) if part.light else played.held
    if gradient is not None and tape.backward and tape.backward[0][0] is Event.ALLOC:
        held[tape.backward[0][1]] = gradient
    back = _handed_back(tape, part.sizes)
    _play(script, tape.backward, part.sizes, held, frozenset({back}))
    returned = held.pop(back, None)
    stays = set(tape.gradients)
    left = [held.pop(index) for index in tape.gradients if index in held]
    script.give(number for index, number in held.items() if index not in stays)
    return left, returned


def _handed_back(tape: Tape, sizes: Sequence[int]) -> int:
    """The gradient of what came in: the last thing that goes, if it is as large."""
    if not tape.backward or not tape.handed:
        return -1
    event, index = tape.backward[-1]
    same = sizes[index] == sizes[next(iter(tape.handed))]
    return index if event is Event.FREE and same and not tape.entries[index].gradient else -1


def _run_again(script: Script, played: Played) -> dict[int, int]:
    """The forward again, as far as it is needed; what its frames still held goes when it stops."""
    part, tape = played.part, played.part.tape
    assert part.light is not None
    kept = {index: played.held[index] for index in sorted(part.light.saved) if index in played.held}
    held = dict(zip(sorted(tape.before), kept.values(), strict=True))
    handed = next(iter(tape.handed), None)
    if handed is not None and played.given is not None:
        held[handed] = played.given
    _play(script, tape.recomputed, part.sizes, held, tape.handed)
    stays = tape.saved | tape.idle | tape.handed
    script.give([held.pop(index) for index in list(held) if index not in stays])
    return held
