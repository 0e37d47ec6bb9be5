"""What the engine keeps around the layers: gathered parameters, communication buffers, gradients waiting or sharded.

For each way of sharding, four questions: what is there all the time, what a group adds while its forward runs, while its backward
runs, and what its backward leaves behind until the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memsheet.arith import Count
from memsheet.formulas.evaluate import EMPTY, Bag
from memsheet.formulas.groups import Group, Walk
from memsheet.formulas.sharding import dim0_gathered, dim0_shard
from memsheet.formulas.states import Held, gradient_dtype, module_of
from memsheet.references import TORCH_DDP, TORCH_FSDP2, formula
from memsheet.sheet import Component
from memsheet.spec.dtypes import DType
from memsheet.spec.engine import Engine, Sharding
from memsheet.spec.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """``always``: resident through the step. ``forward(group)``, ``backward(before, group, after)``: while the group runs.
    ``leaves(group)``: gradients that stay after its backward. ``kept``: gathered once for the whole step (a root group).
    """

    always: Bag
    forward: Callable[[Group], Bag]
    backward: Callable[[Group | None, Group, Group | None], Bag]
    leaves: Callable[[Group], Bag]
    loss: Bag = EMPTY


def _bag(component: Component, path: str, size: Count) -> Bag:
    return Bag.of([((component, path), size)])


def trained(group: Group) -> tuple[Held, ...]:
    return tuple(h for h in group.parameters if h.trains)


# ---- one GPU, or replicas ------------------------------------------------------------------------------------------------


@formula(cites=TORCH_DDP, at="initialize_buckets: flat buffers of one gradient copy, made in the constructor")
def ddp_buckets(parameters: tuple[Held, ...], plan: Plan) -> Count:
    """Bytes of DistributedDataParallel's buckets, besides the gradients themselves (gradient_as_bucket_view is off by default)."""
    return sum(h.times * gradient_dtype(h, plan).nbytes(h.elements) for h in parameters if h.trains)


def replicated(plan: Plan, parameters: tuple[Held, ...]) -> Surroundings:
    """Nothing is gathered; autograd's own gradients stay until the step. Several replicas add DDP's buckets."""
    several = int(plan.mesh.dp_replicate) > 1 if isinstance(plan.mesh.dp_replicate, int) else True
    buckets = _bag(Component.COMMUNICATION, "ddp/buckets", ddp_buckets(parameters, plan)) if several else EMPTY
    return Surroundings(always=buckets, forward=lambda _: EMPTY, backward=lambda *_: EMPTY, leaves=lambda group: group.part.gradients)


# ---- FSDP2 -----------------------------------------------------------------------------------------------------------------


@formula(cites=TORCH_FSDP2, at="_fsdp_collectives.py:328-360 all-gather output; _fsdp_param.py:616-628 unsharded parameters")
def gathered_bytes(group: Group, plan: Plan) -> Count:
    """A group's parameters gathered whole, in the compute dtype (frozen or quantized ones as stored)."""
    return sum(_computed(h, plan).nbytes(dim0_gathered(h.shape, plan.mesh.dp_shard)) for h in group.parameters)


def _computed(h: Held, plan: Plan) -> DType:
    return plan.precision.compute if h.dtype is plan.precision.parameters else h.dtype


@formula(cites=TORCH_FSDP2, at="_fsdp_collectives.py:592-606: reduce-scatter input in the reduce dtype, kept until the next group's")
def reduce_input_bytes(group: Group, plan: Plan) -> Count:
    """The buffer in which a group's whole gradients are reduced."""
    return sum(plan.precision.reduce.nbytes(dim0_gathered(h.shape, plan.mesh.dp_shard)) for h in trained(group))


@formula(cites=TORCH_FSDP2, at="_fsdp_collectives.py:611-616, 696-712: the reduced shard, in the sharded parameter's dtype")
def sharded_gradients(group: Group, plan: Plan) -> Bag:
    """Gradients of a group as they stay on a rank."""
    pairs = [((Component.GRADIENTS, module_of(h.path)), gradient_dtype(h, plan).nbytes(dim0_shard(h.shape, plan.mesh.dp_shard))) for h in trained(group)]
    return Bag.of(pairs)


def fsdp2(plan: Plan, embeddings: Group | None, head: Group | None, *, tied: bool) -> Surroundings:
    """Every layer a group, resharded after its forward (zero 3); embeddings a group; final norm and head a group that stays gathered.

    Tied embeddings and head are one group that stays gathered through forward and backward (accelerate fsdp_utils.py:857-885).
    """
    root = Bag.of([*_unsharded(embeddings, plan).held.items(), *_unsharded(head, plan).held.items()]) if tied else EMPTY
    keeps = not plan.reshard_after_forward

    def forward(group: Group) -> Bag:
        if group is head or (tied and group is embeddings):
            return EMPTY if tied else _twice(group, plan)
        return _twice(group, plan)

    def backward(before: Group | None, group: Group, after: Group | None) -> Bag:
        own = EMPTY if tied and group in (embeddings, head) else _unsharded(group, plan)
        fetched = before if before is not None and not (tied and before is embeddings) and not keeps else None
        ahead = _bag(Component.UNSHARDED_PARAMETERS, f"{fetched.name}/all_gather", gathered_bytes(fetched, plan)) if fetched else EMPTY
        waits = after is not None and not (tied and after is head)
        behind = _bag(Component.COMMUNICATION, f"{after.name}/reduce_scatter", reduce_input_bytes(after, plan)) if after and waits else EMPTY
        return Bag.of([*own.held.items(), *ahead.held.items(), *behind.held.items()])

    return Surroundings(always=root, forward=forward, backward=backward, leaves=lambda group: sharded_gradients(group, plan))


def _unsharded(group: Group | None, plan: Plan) -> Bag:
    if group is None:
        return EMPTY
    return _bag(Component.UNSHARDED_PARAMETERS, f"{group.name}/unsharded", gathered_bytes(group, plan))


def _twice(group: Group, plan: Plan) -> Bag:
    """Unsharded parameters, and the all-gather's output that stays until the next group's arrives."""
    size = gathered_bytes(group, plan)
    name = group.name
    return Bag.of([((Component.UNSHARDED_PARAMETERS, f"{name}/unsharded"), size), ((Component.UNSHARDED_PARAMETERS, f"{name}/all_gather"), size)])


# ---- which one ---------------------------------------------------------------------------------------------------------------


def surroundings(engine: Engine, plan: Plan, parameters: tuple[Held, ...], walk: Walk) -> Surroundings:
    """What the plan's engine keeps around the layers."""
    match engine.sharding:
        case Sharding.REPLICATED:
            return replicated(plan, parameters)
        case Sharding.FSDP2:
            return fsdp2(plan, walk.embeddings, walk.head, tied=walk.tied)
        case Sharding.DEEPSPEED:
            raise NotImplementedError
