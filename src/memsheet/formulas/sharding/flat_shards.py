"""What FullyShardedDataParallel keeps around the layers: one flat parameter a unit, gathered whole, and
gradients of the same form.

Every layer is a unit, freed after its forward; embeddings and head are the root's, which stays gathered, and
whose gradients wait whole until the embeddings' are there. A tied table that is a unit of its own is freed
after each of its two forwards. Parameters are views of the flat one: their gradients are joined into its
gradient when all have come, then cast to the dtype in which they are reduced, and each rank keeps its part
(torch distributed/fsdp/_runtime_utils.py, _reduce_grad).

The device may still read what the host has let go (two all-gathers are under way at most, limit_all_gathers):
the allocator keeps those blocks from others meanwhile, which is part of its slack and not of what is
allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property

from memsheet.arith import Count, ceil_div
from memsheet.errors import input_error
from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.sharding.algorithm import Traffic
from memsheet.formulas.sharding.by_tensor import algorithm_by_tensor
from memsheet.formulas.sharding.division import Division, wrapping_notes
from memsheet.formulas.sharding.flat_offload import flat_offloaded
from memsheet.formulas.sharding.flat_sizes import (
    flat_elements,
    flat_shard,
    gathered_bytes,
    reducing_bytes,
    unreduced_gradient_bytes,
)
from memsheet.formulas.sharding.overhead import ShardingOverhead, single_row
from memsheet.formulas.states.gradients import reduces_surely_last
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Key, largest_moment_rows, merge_moment
from memsheet.frozen import dataclass
from memsheet.plan.engine import FlatWrapping
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import BackwardPrefetch, Plan
from memsheet.sheet import Component

ROOT = "root"
PRE, POST = BackwardPrefetch.PRE, BackwardPrefetch.POST


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a stage."""

    plan: Plan
    wrapping: FlatWrapping
    embeddings: Group | None
    head: Group | None
    last: Group | None  # of the layers
    rest: tuple[HeldTensor, ...] = ()  # the root's own, of no group

    @property
    def rooted(self) -> tuple[Group | None, ...]:
        return self.embeddings, self.head

    @cached_property
    def reduces_last(self) -> bool:
        """Whether of a step's micro-batches the last one alone reduces gradients."""
        return reduces_surely_last(self.plan, engine_of(self.plan))

    @cached_property
    def root(self) -> tuple[HeldTensor, ...]:
        ends = tuple(h for group in self.rooted if group for h in group.parameters)
        held = (*ends, *self.rest)
        return held[:1] if self.wrapping.table_apart else held

    @cached_property
    def gathered(self) -> BytesByPath:
        """The root's parameters."""
        return single_row(
            Component.UNSHARDED_PARAMETERS, f"{ROOT}/unsharded", gathered_bytes(self.root, self.plan)
        )

    @cached_property
    def table_apart(self) -> BytesByPath:
        """The same where they are not there all the time."""
        return self.gathered if self.wrapping.table_apart else EMPTY

    @cached_property
    def whole(self) -> Callable[[Group | None], tuple[Key, Count]]:
        """A layer's gathered parameters; the root's are there anyway."""
        return cache(self._whole)

    def _whole(self, group: Group | None) -> tuple[Key, Count]:
        name = group.name if group else "none"
        size = 0 if group is None or group in self.rooted else gathered_bytes(group.parameters, self.plan)
        return (Component.UNSHARDED_PARAMETERS, f"{name}/unsharded"), size

    @cached_property
    def named(self) -> BytesByPath:
        """Logits that the trainer names until the next forward has returned others."""
        kept = self.head is not None and self.wrapping.keeps_outputs
        return single_row(
            Component.TEMPORARIES, "outputs/logits", self.head.part.output if self.head and kept else 0
        )

    @cached_property
    def waiting(self) -> BytesByPath:
        """What stays through backward: the head's whole gradients, a table that is gathered again."""
        return merge_moment([(1, self.head.gradients if self.head else EMPTY), (1, self.table_apart)])

    @cached_property
    def prefetch(self) -> BackwardPrefetch:
        return self.plan.gathers.backward or self.wrapping.backward_prefetch

    def _before(self, before: Group | None, *when: BackwardPrefetch) -> tuple[Key, Count]:
        """The unit whose backward is next, where it is gathered by then."""
        return self.whole(before if self.prefetch in when else None)

    def ahead(self, group: Group) -> BytesByPath:
        """A unit that is gathered while the one before it runs forward (forward_prefetch)."""
        return BytesByPath.of([self.whole(group)])

    def holds(self, group: Group) -> BytesByPath:
        """From the start of backward, which the root begins, the last layer is gathered ahead. Logits are the
        loss's own by then. A loss outside of the root begins without it.
        """
        if group is not self.head or self.wrapping.loss_outside:
            return EMPTY
        ahead = BytesByPath.of([self._before(self.last, PRE)])
        return merge_moment([(1, ahead), (-1, self.named)])

    def forward(self, _: Group | None, group: Group) -> BytesByPath:
        return merge_moment(
            [
                (1, BytesByPath.of([self.whole(group)])),
                (1, self.table_apart if group in self.rooted else EMPTY),
            ]
        )

    def entering(self, before: Group | None, group: Group) -> BytesByPath:
        """While it is gathered: a rank's part is cast first, or comes up from the host."""
        size = self.table_apart.total if group in self.rooted else self.whole(group)[1]
        brought = (
            self.plan.precision.casts or self.plan.offload.parameters
        )  # cast there, or come from the host
        shard = ceil_div(size, self.plan.mesh.dp_shard) if brought else 0
        return merge_moment(
            [
                (1, self.forward(before, group)),
                (1, single_row(Component.TEMPORARIES, f"{group.name}/shard", shard)),
            ]
        )

    def backward(self, before: Group | None, group: Group, _: Group | None) -> BytesByPath:
        ahead = self._before(before, PRE)
        return merge_moment(
            [
                (1, BytesByPath.of([self.whole(group), ahead])),
                (1, self.table_apart if group is self.head else self.waiting),
            ]
        )

    def leaving(self, before: Group | None, group: Group) -> BytesByPath:
        """All gradients beside the flat one that they are joined into; then the flat one, its copy and a
        rank's part.
        """
        if group is self.head:
            return merge_moment([(1, BytesByPath.of([self._before(before, PRE)])), (1, self.waiting)])
        last = group is self.embeddings
        parameters = self.root if last else group.parameters
        flat = single_row(
            Component.COMMUNICATION,
            f"{ROOT if last else group.name}/flat_gradient",
            gathered_bytes(parameters, self.plan),
        )
        reduced = single_row(
            Component.COMMUNICATION,
            f"{ROOT if last else group.name}/reduce_scatter",
            reducing_bytes(parameters, self.plan),
        )
        ahead = BytesByPath.of([self._before(before, PRE), self.whole(group)])
        joined = [(1, group.gradients), (1, flat), (1, ahead), (1, self.waiting)]
        if self.reduces_last and last:  # all others are reduced by then
            return merge_moment(joined)
        left = self._after_root(flat) if last else [(1, self.waiting)]
        if self.reduces_last:  # what waited is what is reduced
            left.append((-1, flat))
        following = BytesByPath.of([self._before(before, PRE, POST)])
        return largest_moment_rows([joined, [(1, reduced), (1, following), *left]])

    def _after_root(self, flat: BytesByPath) -> list[tuple[Count, BytesByPath]]:
        """What is there besides while the root's gradient is reduced, which is no longer gathered. A table
        that was gathered twice has two flat gradients.
        """
        return [(1, flat) if self.wrapping.table_apart else (-1, self.gathered)]

    def leaves(self, group: Group) -> BytesByPath:
        """A rank's part of the gradient, in the parameters' dtype; the root's comes last of all."""
        if group in self.rooted:
            return EMPTY
        part = ceil_div(flat_elements(group.parameters, self.plan), self.plan.mesh.dp_shard)
        return single_row(Component.GRADIENTS, group.name, self.plan.precision.gradients.nbytes(part))


EACH_TENSOR = "fsdp_version 2 divides each tensor by itself, and has a sheet"
"""What launchers call the way that has a sheet (accelerate 1.15.0 commands/launch.py:514)."""


def check_flat_shards(plan: Plan) -> None:
    """Raises InputError for what a flat parameter of one dtype that trains does not hold, or is not modelled
    in one.
    """
    if plan.adapter is not None:
        raise input_error(
            "adapter.rank",
            plan.adapter.rank,
            f"trains a part of a flat parameter, which is not modelled: {EACH_TENSOR}",
            "engine fsdp2",
        )
    if plan.quantization is not None:
        raise input_error(
            "quantization.weights",
            plan.quantization.weights.name,
            f"is not modelled in a flat parameter: {EACH_TENSOR}",
            "engine fsdp2",
        )


def flat_shard_overhead(plan: Plan, walk: StageLayers) -> ShardingOverhead:
    """What surrounds the units of a stage. Raises InputError as ``check_flat_shards``."""
    check_flat_shards(plan)
    of = Units(
        plan,
        engine_of(plan).flat_wrapping,
        walk.embeddings,
        walk.head,
        walk.layers[-1].pattern[-1] if walk.layers else None,
        walk.rest,
    )
    return ShardingOverhead(
        always=of.named,
        through=EMPTY if of.wrapping.table_apart else of.gathered,
        entering=cache(of.entering),
        forward=cache(of.forward),
        ahead=cache(of.ahead) if plan.gathers.forward else None,
        backward=cache(of.backward),
        leaving=cache(of.leaving),
        leaves=cache(of.leaves),
        holds=cache(of.holds),
    )


ALGORITHM = algorithm_by_tensor(
    Division(
        overhead=lambda plan, _, __, stage: flat_shard_overhead(plan, stage),
        shard=lambda held, plan: flat_shard(held.elements, plan.mesh.dp_shard),
        waiting=unreduced_gradient_bytes,
        offloaded=flat_offloaded,
        keeps_reduced=True,
        notes=wrapping_notes,
    ),
    Traffic(),
)
