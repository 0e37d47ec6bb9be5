"""Which tensors a training step keeps: an autograd tape of shapes, without numbers in them.

A tape is a list of allocations whose sizes are products of named axes, so one recording (``recorder.py``)
serves every batch and length.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from memsheet.frozen import NamedTuple, dataclass, replace
from memsheet.plan.dtypes import DType

if TYPE_CHECKING:
    from memsheet.recording import Terms


Axis = str | int
Shape = tuple[Axis, ...]


class Event(Enum):
    """What happens to a storage, in order."""

    ALLOC = "alloc"
    FREE = "free"
    GRADIENT = "gradient"  # from here on it is a parameter's gradient


@dataclass(frozen=True, slots=True)
class Entry:
    """A storage: the module it belongs to and what it is there (``self_attn.q_proj/output``; ``/input`` of
    the whole part), its shape in named axes, its dtype.
    """

    path: str
    shape: Shape
    dtype: DType
    weight_cast: bool = False  # an autocast copy of a parameter
    gradient: bool = False  # a parameter's
    terms: Terms | None = None  # recorded: bytes as a sum of products, in place of a shape
    side_stream: bool = False  # made in a stream beside the model's, whose pool gives to no other


Log = tuple[tuple[Event, int], ...]
Meta = tuple[Shape, DType]
Operands = tuple[Axis | Shape, ...]


class KernelScratch(NamedTuple):
    """What a kernel allocates for itself while it runs: ``size`` gives the bytes, all of them there at once,
    of the bytes of an element and the values of ``axes``, each an axis or a product of some.
    """

    size: Callable[..., int]
    axes: Operands
    dtype: DType


@dataclass(frozen=True, slots=True)
class Operation:
    """What one operation moves: the tensors that it reads and writes; ``terms``: of a product, of each sum. A
    view moves nothing and is none.
    """

    reads: tuple[Meta, ...]
    writes: tuple[Meta, ...]
    terms: Axis | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tape:
    """One part of a model (a block, an end), recorded. Indices point into ``entries``."""

    entries: tuple[Entry, ...]
    forward: Log
    backward: Log
    saved: frozenset[int]  # alive after forward because backward needs them
    cached: frozenset[int]  # held until the model's forward ends, by the autocast cache or a local variable
    outputs: frozenset[int]  # handed to the part after
    handed: frozenset[int]  # made by the part before
    collected: frozenset[int] = (
        frozenset()
    )  # of that, what the model's forward names until all layers have run
    hosted: tuple[int, ...] = ()  # copied to host memory for backward, each as often as it is saved
    recomputed_saved: frozenset[int] = frozenset()  # made again in backward and saved for it
    waiting: frozenset[int] = frozenset()
    """Gradients that are there when backward first reads something saved, which is when recompute starts."""
    before: frozenset[int] = (
        frozenset()
    )  # results that a selective checkpoint has kept for a forward that runs again
    reentrant: bool = (
        False  # recomputed to its end before its backward begins, and the result named until then
    )
    last_save: int | None = None  # events of the forward before the last time it saves something
    lingering: frozenset[int] = frozenset()  # held until the whole graph goes, however far backward is
    forward_operations: tuple[Operation, ...] = ()
    backward_operations: tuple[Operation, ...] = ()
    scratch: tuple[tuple[int, KernelScratch], ...] = ()
    """What kernels allocate for themselves, each beside the last result that it made."""

    @property
    def inputs(self) -> frozenset[int]:
        """What the part before made and this one saves."""
        return self.handed & self.saved

    @property
    def gradients(self) -> tuple[int, ...]:
        """What backward leaves of parameters' gradients, in the order it is made."""
        return tuple(i for event, i in self.backward if event is Event.GRADIENT)

    @property
    def recomputed(self) -> Log:
        """The forward as far as recompute runs it: it stops as soon as the last tensor is saved, unless it is
        reentrant (torch 2.13 utils/checkpoint.py, _recomputation_hook).
        """
        return self.forward if self.reentrant else self.forward[: self._stop]

    @property
    def kept(self) -> frozenset[int]:
        """What there is besides gradients when backward begins."""
        return (self.saved - self.outputs) | self.idle | (self.outputs if self.reentrant else frozenset())

    @property
    def _stop(self) -> int:
        made = (n for n, (event, i) in enumerate(self.forward) if event is Event.ALLOC and i in self.saved)
        return max(1 + max(made, default=-1), self.last_save or 0)

    @property
    def ahead_of_recompute(self) -> int:
        """Events of a backward that pass before it first reads something saved, which is when the forward
        runs again; 0 where no gradient but the one that arrives is there by then.
        """
        alive = set[int]()
        for at, (event, index) in enumerate(self.backward, 1):
            if event is Event.ALLOC:
                alive.add(index)
            elif event is Event.FREE:
                alive.discard(index)
            if alive == self.waiting:
                return at if at > 1 else 0  # the one that arrives is the first
        return 0

    @property
    def idle(self) -> frozenset[int]:
        """Kept results that recompute stops short of: they stay until its backward is over."""
        return self.before & {i for event, i in self.forward[self._stop :] if event is Event.FREE}


@lru_cache(maxsize=256)
def as_reentrant(tape: Tape, handed_on: int = 0) -> Tape:
    """The tape of a part that runs again to its end, and only then backward: the gradient of its result is
    there when it does, and zeros for that of each tensor that it hands on besides (torch 2.13
    utils/checkpoint.py:278-337, CheckpointFunction.backward).
    """
    arriving = frozenset(i for event, i in tape.backward[: 1 + handed_on] if event is Event.ALLOC)
    return replace(tape, reentrant=True, waiting=arriving)


def high_points(
    log: Log, alive: frozenset[int] = frozenset(), *, release_gradients: bool = False
) -> tuple[tuple[int, ...], ...]:
    """The storages alive at each local maximum of a log: right before a free that follows an allocation, and
    at its end.

    ``alive``: storages that exist before. ``release_gradients``: a parameter's gradient goes as soon as it is
    made, because it is added to one that is already there.
    """
    live, points, rising = dict.fromkeys(sorted(alive)), [], True
    for event, index in log:
        if event is Event.ALLOC:
            live[index], rising = None, True
        elif event is Event.FREE or release_gradients:
            if rising:
                points.append(tuple(live))
            live.pop(index, None)
            rising = False
    return (
        tuple(dict.fromkeys((*points, tuple(live)))) if rising or not points else tuple(dict.fromkeys(points))
    )


def gradient_arrivals(
    log: Log, alive: frozenset[int] = frozenset()
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Each parameter's gradient as it is made and then goes: (its storage, all that are alive)."""
    live, found = dict.fromkeys(sorted(alive)), []
    for event, index in log:
        if event is Event.ALLOC:
            live[index] = None
        else:
            if event is Event.GRADIENT:
                found.append((index, tuple(live)))
            live.pop(index, None)
    return tuple(found)
