"""What the allocator reserves for steps under fully_shard: their script, played through the allocator's
rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memsheet.allocator.blocks import Block
from memsheet.allocator.caching import allocate_block, free_block
from memsheet.allocator.settings import Settings, block_bytes
from memsheet.allocator.state import Allocator
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.replay.script import (
    GATHERS,
    REDUCES,
    Lifetimes,
    Played,
    Recorded,
    Script,
    Sized,
    play_backward,
    play_forward,
)
from memsheet.formulas.sharding.per_parameter_shards import fsdp_wrapping
from memsheet.formulas.sharding.per_parameter_sizes import dim0_gathered, dim0_shard, mixed_precision_dtype
from memsheet.formulas.states.held import Held
from memsheet.formulas.tapes.evaluate import Part
from memsheet.plan.dtypes import INT64
from memsheet.plan.plan import Implementation, OptimizerName, Plan
from memsheet.references import TORCH_ALLOCATOR, formula
from memsheet.sheet import Bytes, Derived

TORCHS = (Implementation.FUSED, Implementation.FOREACH, Implementation.LOOP)
REPLAYED = Derived(
    "replay of the step's own allocations, in their order and streams, through the caching allocator's "
    "rules (torch 2.13, "
    "c10/cuda/CUDACachingAllocator.cpp); low and high: a layer's forward that makes nothing for itself, "
    "and one that keeps it to its end"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is gathered together, in bytes on this rank: each parameter ``whole``, the buffer they arrive in
    and what is sent for it, the buffer in which gradients are reduced and what is left of it.
    """

    whole: tuple[int, ...]
    gathered: int
    sent: int
    reduce_input: int
    reduced: int


@dataclass(slots=True, eq=False)
class Placed:
    """One gathered unit: ``groups`` of parameters and the bytes of what is gathered."""

    unit: Unit
    stays: bool  # gathered from its forward to its backward
    parameters: list[int] = field(default_factory=list)
    buffer: int | None = None


def _fsdp_unit_bytes(held: Sequence[Held], plan: Plan) -> Unit:
    ranks = plan.mesh.sharded
    whole = tuple(int(mixed_precision_dtype(h, plan).nbytes(dim0_gathered(h.shape, ranks))) for h in held)
    reduced = sum(int(plan.precision.reduce.nbytes(dim0_shard(h.shape, ranks))) for h in held if h.trains)
    gathered = sum(whole) if ranks > 1 else 0
    return Unit(
        whole=whole, gathered=gathered, sent=gathered // ranks, reduce_input=reduced * ranks, reduced=reduced
    )


class Run:
    """Steps of one stage as they are written into a script."""

    def __init__(self, walk: StageLayers, plan: Plan, lifetimes: Lifetimes, *, divided: bool = True) -> None:
        self.walk, self.plan, self.lifetimes, self.script = walk, plan, lifetimes, Script()
        self.divided = divided
        self.layers = [group for run in walk.layers for _ in range(run.count) for group in run.pattern]
        keeps = not plan.reshard_after_forward
        ends = [h for group in (walk.embeddings, walk.head) if group for h in group.parameters]
        wrapped = fsdp_wrapping(plan)
        rooted = wrapped.joined or walk.tied
        root = Placed(_fsdp_unit_bytes(ends, plan), stays=True) if rooted else None
        self.root = root
        self.first = root or (
            Placed(_fsdp_unit_bytes(walk.embeddings.parameters, plan), stays=keeps)
            if walk.embeddings
            else None
        )
        self.last = root or (
            Placed(_fsdp_unit_bytes(walk.head.parameters, plan), stays=True) if walk.head else None
        )
        self.placed = [
            Placed(
                _fsdp_unit_bytes(group.parameters, plan),
                stays=keeps or (wrapped.last_stays and number == len(self.layers) - 1),
            )
            for number, group in enumerate(self.layers)
        ]
        if not divided:
            whole = Placed(_fsdp_unit_bytes((), plan), stays=True)  # every rank has all parameters
            self.root, self.first, self.last, self.placed = None, whole, whole, [whole] * len(self.layers)
        self.recorded: dict[int, Recorded] = {}
        self.left_over: int | None = None  # the last gathered buffer, until the next is copied out
        self.reducing: int | None = None
        self.gradients: list[int] = []
        self.moments: list[int] = []

    def part(self, part: Part, lifetimes: Lifetimes = Lifetimes.RECORDED) -> Recorded:
        """A part's tapes with their sizes. Only layers are compiled."""
        if id(part) not in self.recorded:
            assert part.played is not None
            tape, light, axes = part.played
            first = Sized.of(light, axes, lifetimes) if light else None
            self.recorded[id(part)] = Recorded(
                Sized.of(tape, axes, Lifetimes.RECORDED if light else lifetimes), first
            )
        return self.recorded[id(part)]

    # ---- gathering and reducing ----------------------------------------------------------------------------

    def gather(self, at: Placed) -> None:
        """Ask for a unit's parameters: what is sent, and the buffer it arrives in."""
        if at.parameters or at.buffer is not None or not at.unit.gathered:
            return
        sent = self.script.take(at.unit.sent, GATHERS)
        at.buffer = self.script.take(at.unit.gathered, GATHERS)
        self.script.give((sent,))

    def copy_out(self, at: Placed, *, defers: bool) -> None:
        """Copy what arrived into the parameters. In forward the buffer stays until the next unit's."""
        if at.parameters:
            return
        if defers and self.left_over is not None:
            self.script.give((self.left_over,))
            self.left_over = None
        at.parameters = [self.script.take(size) for size in at.unit.whole]
        if at.buffer is not None and defers:
            self.left_over, at.buffer = at.buffer, None
        elif at.buffer is not None:
            self.script.give((at.buffer,))
            at.buffer = None

    def reshard(self, at: Placed) -> None:
        self.script.give(at.parameters)
        at.parameters = []

    def reduce(self, at: Placed, gradients: Sequence[int]) -> None:
        if not self.divided:
            self.gradients += gradients
            return
        self.reshard(at)
        self.settle()
        self.reducing = self.script.take(at.unit.reduce_input)
        self.script.give(gradients)
        shard = self.script.take(at.unit.reduced, REDUCES)
        self.gradients.append(shard)

    def settle(self) -> None:
        if self.reducing is not None:
            self.script.give((self.reducing,))
            self.reducing = None

    # ---- a step --------------------------------------------------------------------------------------------

    def load(self, beside: int) -> None:
        """Shards of all parameters, and what is there ``beside``."""
        self.script.take(beside)
        for h in self._held():
            self.script.take(int(h.dtype.nbytes(dim0_shard(h.shape, self._ranks))))

    @property
    def _ranks(self) -> int:
        return self.plan.mesh.sharded if self.divided else 1

    def _held(self) -> list[Held]:
        groups = [self.walk.embeddings, *self.layers, self.walk.head]
        return [h for group in groups if group for h in group.parameters]

    def step(self) -> None:
        self.script.give(self.gradients)
        self.gradients = []
        tokens = int(INT64.nbytes(self.plan.training.microbatch * self.plan.training.seq_len))
        inputs = [self.script.take(tokens), self.script.take(tokens)]
        played, loss = self._forward()
        self._backward(played, loss)
        self.script.give(inputs)
        self._optimize()

    def _forward(self) -> tuple[list[Played], Played | None]:
        script, walk, played = self.script, self.walk, list[Played]()
        x: int | None = None
        if walk.embeddings and self.first:
            self._enter(self.first)
            done, x = play_forward(script, self.part(walk.embeddings.part), None, lingers=True)
            played.append(done)
            if not self.first.stays:
                self.reshard(self.first)
        for group, at in zip(self.layers, self.placed, strict=True):
            self._enter(at)
            done, x = play_forward(script, self.part(group.part, self.lifetimes), x, lingers=True)
            played.append(done)
            if not at.stays:
                self.reshard(at)
        loss = None
        if walk.head and walk.loss and self.last:
            self._enter(self.last)
            done, x = play_forward(script, self.part(walk.head.part), x, lingers=True)
            played.append(done)
            self._left()
            loss, _ = play_forward(script, self.part(walk.loss), x, lingers=True)
        self._left()
        for done in (*played, *([loss] if loss else [])):
            script.give(done.lingering)
        return played, loss

    def _enter(self, at: Placed) -> None:
        self.gather(at)
        self.copy_out(at, defers=True)

    def _return_to(self, at: Placed) -> None:
        self.gather(at)
        self.copy_out(at, defers=False)

    def _left(self) -> None:
        if self.left_over is not None:
            self.script.give((self.left_over,))
            self.left_over = None

    def _backward(self, played: list[Played], loss: Played | None) -> None:
        script, waiting, g = self.script, list[int](), None
        if loss is not None and self.last is not None:
            made, g = play_backward(script, loss, None)
            if self.placed:
                self.gather(self.placed[-1])
            own, g = play_backward(script, played.pop(), g)
            waiting = [*made, *own]
            if self.root is None:
                self.reduce(self.last, waiting)
                waiting = []
        for number in reversed(range(len(self.layers))):
            at, ahead = self.placed[number], self.placed[number - 1] if number else self.first
            self._return_to(at)
            if ahead is not None:
                self.gather(ahead)
            made, g = play_backward(script, played.pop(), g)
            self.reduce(at, made)
        if played and self.first is not None:
            self._return_to(self.first)
            made, g = play_backward(script, played.pop(), g)
            self.reduce(self.first, [*waiting, *made])
        if g is not None:
            script.give((g,))
        self.settle()

    def _optimize(self) -> None:
        plan = self.plan
        shards = [int(dim0_shard(h.shape, self._ranks)) for h in self._held() if h.trains]
        if plan.optimizer is None or plan.optimizer.name is not OptimizerName.ADAMW:
            return
        sizes = [int(plan.precision.moments.nbytes(n)) for n in shards]
        if not self.moments:
            self.moments = [self.script.take(size) for size in sizes for _ in range(2)]
        if plan.optimizer.implementation is Implementation.FOREACH:
            self.script.give([self.script.take(size) for size in sizes])


@dataclass(frozen=True, slots=True)
class Reserved:
    """What the allocator reserves, and whether cached blocks had to go back to the device for that, which
    takes time.
    """

    bytes: Bytes
    flushes: bool


def replay_script(
    script: Script, start: int, settings: Settings, capacity: int | None = None
) -> tuple[int, bool] | None:
    """The most that is reserved from event ``start`` of a script on, and whether cached blocks went back to
    the device before; None where it dies on a device of ``capacity`` bytes.
    """
    allocator = Allocator(settings, capacity)
    blocks: list[Block | None] = [None] * len(script.sizes)
    most = 0
    rounded = {size: block_bytes(size, settings) for size in set(script.sizes)}
    sizes, streams, pool = [rounded[size] for size in script.sizes], script.streams, allocator.pool
    for at, event in enumerate(script.events):
        if event >= 0:
            size = sizes[event]
            if size:
                blocks[event] = block = allocate_block(allocator, pool(streams[event], size), size)
                if block is None:
                    return None
                most = max(most, allocator.reserved)
        elif (gone := blocks[~event]) is not None:
            free_block(allocator, gone)
        if at == start:  # what was reserved before, and has gone back, does not count
            most = allocator.reserved
    return most, allocator.retries > 0


def replay_within_room(script: Script, start: int, settings: Settings, room: int | None) -> tuple[int, bool]:
    """The same on a device that leaves ``room``, None for one without end. Cached blocks go back to the
    device before memory runs out; where it does, what would have been reserved.
    """
    found = replay_script(script, start, settings, room) or replay_script(script, start, settings)
    assert found is not None
    return found


def script_of_steps(
    walk: StageLayers, plan: Plan, lifetimes: Lifetimes, beside: int, *, divided: bool = True
) -> tuple[Script, int]:
    """The script of two steps of a stage, and the event at which the second begins: the optimizer's states
    are made in the first; what that leaves in pieces shows in the second. ``beside``: bytes that are there
    all the time.
    """
    run = Run(walk, plan, lifetimes, divided=divided)
    run.load(beside)
    run.step()
    start = len(run.script.events)
    run.step()
    return run.script, start


@formula(
    cites=TORCH_ALLOCATOR,
    at="the rules of malloc and free, for the allocations of a step in their order and streams",
    counts="int",
)
def steady_reserved_bytes(
    walk: StageLayers, plan: Plan, room: Bytes | None, beside: int, *, divided: bool = True
) -> Reserved:
    """What the allocator reserves in a steady step of a stage on a device that leaves it ``room``: least
    where most is reserved.

    Between a layer whose forward makes nothing for itself and one where all of it stays until the layer is
    through: what kernels are fused, and what an operation makes inside, is not known. Expected is what is
    recorded; what torch.compile makes takes the place of what went.
    """
    expected = Lifetimes.REUSED if plan.compile else Lifetimes.RECORDED
    rooms = (int(room.high), int(room.value), int(room.low)) if room else (None, None, None)
    settings = Settings(expandable_segments=plan.expandable_segments)
    ways = zip((Lifetimes.NONE, expected, Lifetimes.LATE), rooms, strict=True)
    (low, _), (value, flushes), (high, _) = (
        replay_within_room(*script_of_steps(walk, plan, lifetimes, beside, divided=divided), settings, left)
        for lifetimes, left in ways
    )
    if (
        room and high <= room.low
    ):  # what stays within the least room does so whatever it could have cached in more
        low, value = min(low, int(room.low)), min(value, int(room.low))
    return Reserved(Bytes(min(low, value, high), value, max(low, value, high)), flushes)


def is_equal_step_replayable(plan: Plan, *, divided: bool) -> bool:
    """Whether the step is one pass through one stage under torch's own AdamW, with nothing on the host;
    ``divided``: its parameters are, else it has the model to itself.
    """
    mesh, optimizer = plan.mesh, plan.optimizer
    if (
        not isinstance(mesh.gpus, int)
        or mesh.pp > 1
        or plan.accumulation != 1
        or not (divided or mesh.gpus == 1)
    ):
        return False
    usual = (
        optimizer is not None and optimizer.name is OptimizerName.ADAMW and optimizer.implementation in TORCHS
    )
    moved = (
        plan.offload.parameters
        or plan.offload.optimizer
        or plan.offload.activations
        or plan.optimizer_in_backward
    )
    return (
        usual
        and not moved
        and plan.precision.master_weights is None
        and plan.routing is None
        and not plan.recompute.stretched
    )
