"""FSDP2 with CPUOffloadPolicy: parameters, gradients and optimizer states live on the host; the device sees them group by group."""

from __future__ import annotations

from dataclasses import replace

from memsheet.arith import Count
from memsheet.errors import refuse
from memsheet.formulas.evaluate import EMPTY, Bag, Key
from memsheet.formulas.groups import Group
from memsheet.formulas.kept import Host, Kept
from memsheet.formulas.sharding import dim0_shard
from memsheet.formulas.states import Held, gradient_dtype, optimizer_bytes
from memsheet.formulas.surroundings import Surroundings, trained
from memsheet.references import TORCH_FSDP2, formula
from memsheet.sheet import Component
from memsheet.spec.plan import Plan


def offloaded(kept: Kept, plan: Plan, parameters: tuple[Held, ...]) -> Kept:
    """What is left on the device of ``kept``: buffers, gathered groups, shards on their way up and gradients on their way down.

    Raises InputError unless parameters and optimizer are offloaded whole and together: the policy knows no other form.
    """
    for key, share in (("offload.parameters", plan.offload.parameters), ("offload.optimizer", plan.offload.optimizer)):
        if share != 1:
            raise refuse(
                key,
                share,
                "fsdp2's CPUOffloadPolicy moves parameters, gradients and optimizer states together",
                "--offload optimizer,parameters",
            )
    left = Bag.of((key, size) for key, size in kept.states.held.items() if key[0] in (Component.BUFFERS, Component.INPUTS))
    return replace(
        kept, states=left, around=_around(kept.around, plan), resident=EMPTY, at_step=EMPTY, host=host_memory(plan, parameters)
    )  # fmt: skip


@formula(cites=TORCH_FSDP2, at="_fsdp_param.py:896-901: the host's shard is copied up in its own dtype, then cast")
def from_host(group: Group | None, plan: Plan) -> list[tuple[Key, Count]]:
    """A group's shards on the device while its all-gather starts."""
    if group is None:
        return []
    shards = [(h, dim0_shard(h.shape, plan.mesh.dp_shard)) for h in group.parameters]
    size = sum(h.dtype.nbytes(shard) for h, shard in shards)
    if plan.precision.casts:
        size = size + sum(plan.precision.compute.nbytes(shard) for h, shard in shards if h.dtype is plan.precision.parameters)
    return [((Component.UNSHARDED_PARAMETERS, f"{group.name}/from_host"), size)]


@formula(cites=TORCH_FSDP2, at="_fsdp_collectives.py:714-743: reduced gradients are copied to the host and dropped")
def to_host(group: Group | None, plan: Plan) -> list[tuple[Key, Count]]:
    """A group's reduced gradients on the device until they are copied down."""
    if group is None:
        return []
    size = sum(plan.precision.reduce.nbytes(dim0_shard(h.shape, plan.mesh.dp_shard)) for h in trained(group))
    return [((Component.GRADIENTS, f"{group.name}/to_host"), size)]


def _around(around: Surroundings, plan: Plan) -> Surroundings:
    def entering(before: Group | None, group: Group) -> Bag:
        return Bag.of([*around.entering(before, group).held.items(), *from_host(group, plan)])

    def backward(before: Group | None, group: Group, after: Group | None) -> Bag:
        return Bag.of([*around.backward(before, group, after).held.items(), *from_host(before, plan), *to_host(after, plan)])

    return replace(around, entering=entering, backward=backward, leaves=lambda _: EMPTY)


@formula(
    cites=TORCH_FSDP2, at="_fsdp_param.py:312-315: every shard in a pinned buffer of its own; gradients are copied into pinned ones too"
)
def host_memory(plan: Plan, parameters: tuple[Held, ...]) -> Host:
    """Parameters and gradients pinned, optimizer states (made by the optimizer on the host) pageable."""
    pinned: list[Count] = []
    pageable: Count = 0
    for h in parameters:
        shard = dim0_shard(h.shape, plan.mesh.dp_shard)
        pinned += [h.dtype.nbytes(shard)] * h.times
        if h.trains:
            pinned += [gradient_dtype(h, plan).nbytes(shard)] * h.times
            pageable = pageable + h.times * optimizer_bytes(h, shard, plan)
    return Host(tuple(pinned), pageable)
