"""What FullyShardedDataParallel keeps around the layers: one flat parameter a unit, gathered whole, and gradients of the same form.

Every layer is a unit, freed after its forward; embeddings and head are the root's, which stays gathered, and whose gradients wait whole
until the embeddings' are there. Parameters are views of the flat one: their gradients are joined into its gradient when all have come, then
cast to the dtype in which they are reduced, and each rank keeps its part (torch distributed/fsdp/_runtime_utils.py, _reduce_grad).

The device may still read what the host has let go (two all-gathers are under way at most, limit_all_gathers): the allocator keeps those
blocks from others meanwhile, which is part of its slack and not of what is allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

from memsheet.arith import Count, ceil_div, round_up
from memsheet.engines.fsdp1 import WRAPPINGS, Wrapping
from memsheet.formulas.evaluate import EMPTY, Bag, Key, largest, merge
from memsheet.formulas.groups import Group, Walk
from memsheet.formulas.states import Held
from memsheet.formulas.surroundings import Surroundings, row
from memsheet.references import TORCH_FSDP1, formula
from memsheet.sheet import Component
from memsheet.spec.plan import Plan

ROOT = "root"


@formula(cites=TORCH_FSDP1, at="_flat_param.py, _get_sharded_padding: a unit's parameters end to end, padded to a multiple of the ranks")
def flat_elements(parameters: tuple[Held, ...], plan: Plan) -> Count:
    """Elements of a flat parameter that is gathered whole."""
    return round_up(sum(h.times * h.elements for h in parameters), plan.mesh.dp_shard)


def gathered_bytes(parameters: tuple[Held, ...], plan: Plan) -> Count:
    """Its bytes in the dtype that units are computed in."""
    return plan.precision.compute.nbytes(flat_elements(parameters, plan))


@formula(cites=TORCH_FSDP1, at="_runtime_utils.py, _reduce_grad: the flat gradient, its copy in the dtype of the reduction, a rank's part")
def reducing_bytes(parameters: tuple[Held, ...], plan: Plan) -> Count:
    """What there is while a unit's gradient is reduced."""
    whole, precision = flat_elements(parameters, plan), plan.precision
    copy = precision.reduce.nbytes(whole) if precision.reduce is not precision.compute else 0
    return precision.compute.nbytes(whole) + copy + precision.reduce.nbytes(ceil_div(whole, plan.mesh.dp_shard))


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a stage."""

    plan: Plan
    wrapping: Wrapping
    embeddings: Group | None
    head: Group | None
    last: Group | None  # of the layers

    @property
    def rooted(self) -> tuple[Group | None, ...]:
        return self.embeddings, self.head

    @cached_property
    def root(self) -> tuple[Held, ...]:
        return tuple(h for group in self.rooted if group for h in group.parameters)

    @cached_property
    def whole(self) -> Callable[[Group | None], tuple[Key, Count]]:
        """A layer's gathered parameters; the root's are there anyway."""
        return cache(self._whole)

    def _whole(self, group: Group | None) -> tuple[Key, Count]:
        name = group.name if group else "none"
        size = 0 if group is None or group in self.rooted else gathered_bytes(group.parameters, self.plan)
        return (Component.UNSHARDED_PARAMETERS, f"{name}/unsharded"), size

    @cached_property
    def waiting(self) -> Bag:
        """What stays through backward: the head's whole gradients, and logits that the trainer still names."""
        if self.head is None:
            return EMPTY
        named = row(Component.TEMPORARIES, "outputs/logits", self.head.part.output if self.wrapping.keeps_outputs else 0)
        return merge([(1, self.head.gradients), (1, named)])

    def holds(self, group: Group) -> Bag:
        """From the start of backward, which the root begins, the last layer is gathered ahead."""
        return Bag.of([self.whole(self.last)]) if group is self.head and self.wrapping.prefetches else EMPTY

    def forward(self, _: Group | None, group: Group) -> Bag:
        return Bag.of([self.whole(group)])

    def entering(self, _: Group | None, group: Group) -> Bag:
        """While it is gathered: a rank's part is cast first."""
        key, size = self.whole(group)
        shard = ceil_div(size, self.plan.mesh.dp_shard) if self.plan.precision.casts else 0
        return Bag.of([(key, size), ((Component.TEMPORARIES, f"{group.name}/shard"), shard)])

    def backward(self, before: Group | None, group: Group, _: Group | None) -> Bag:
        ahead = self.whole(before if self.wrapping.prefetches else None)
        return merge([(1, Bag.of([self.whole(group), ahead])), (1, EMPTY if group is self.head else self.waiting)])

    def leaving(self, before: Group | None, group: Group) -> Bag:
        """All gradients beside the flat one that they are joined into; then the flat one, its copy and a rank's part."""
        if group is self.head:
            return merge([(1, Bag.of([self.whole(before)])), (1, self.waiting)])
        last = group is self.embeddings
        parameters = self.root if last else group.parameters
        flat = row(Component.COMMUNICATION, f"{ROOT if last else group.name}/flat_gradient", gathered_bytes(parameters, self.plan))
        reduced = row(Component.COMMUNICATION, f"{ROOT if last else group.name}/reduce_scatter", reducing_bytes(parameters, self.plan))
        ahead = Bag.of([self.whole(before if self.wrapping.prefetches else None), self.whole(group)])
        joined = [(1, group.gradients), (1, flat), (1, ahead), (1, self.waiting)]
        freed = row(Component.UNSHARDED_PARAMETERS, f"{ROOT}/unsharded", -gathered_bytes(self.root, self.plan) if last else 0)
        return largest([joined, [(1, reduced), (1, freed), (1, Bag.of([self.whole(before)])), (1, EMPTY if last else self.waiting)]])

    def leaves(self, group: Group) -> Bag:
        """A rank's part of the gradient, in the parameters' dtype; the root's comes last of all."""
        if group in self.rooted:
            return EMPTY
        part = ceil_div(flat_elements(group.parameters, self.plan), self.plan.mesh.dp_shard)
        return row(Component.GRADIENTS, group.name, self.plan.precision.gradients.nbytes(part))


def fsdp1(plan: Plan, walk: Walk) -> Surroundings:
    """What surrounds the units of a stage."""
    of = Units(plan, WRAPPINGS[plan.engine], walk.embeddings, walk.head, walk.layers[-1].pattern[-1] if walk.layers else None)
    return Surroundings(
        through=row(Component.UNSHARDED_PARAMETERS, f"{ROOT}/unsharded", gathered_bytes(of.root, plan)),
        entering=cache(of.entering), forward=cache(of.forward), backward=cache(of.backward), leaving=cache(of.leaving), leaves=cache(of.leaves),
        holds=cache(of.holds),
    )  # fmt: skip
