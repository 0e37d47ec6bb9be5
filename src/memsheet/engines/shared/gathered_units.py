"""Sizes of what fully_shard and FullyShardedDataParallel gather of a unit, for a loss whose tape has them."""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.arith import Count, at_least, where
from memsheet.formulas.sharding.flat_sizes import gathered_bytes
from memsheet.formulas.sharding.per_parameter_sizes import dim0_gathered, mixed_precision_dtype
from memsheet.formulas.states.held import HeldTensor, tensors_on_rank
from memsheet.formulas.states.params import stack_prefix
from memsheet.plan.model import ModelSpec, Role, Weight
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_FSDP1, TORCH_FSDP2, formula


def last_layer_parameters(spec: ModelSpec, plan: Plan) -> tuple[HeldTensor, ...]:
    """Those of a stage's last layer; none where it has no layer."""
    stack = spec.stacks[-1]
    layer = stack.runs[-1].pattern[-1].weights if stack.runs else ()
    return unit_parameters(layer, f"{stack_prefix(stack)}.", plan)


def unit_parameters(weights: Iterable[Weight], prefix: str, plan: Plan) -> tuple[HeldTensor, ...]:
    return tuple(
        held
        for weight in weights
        if weight.role is not Role.BUFFER
        for held in tensors_on_rank(prefix + weight.path, weight, 1, plan)
    )


@formula(cites=TORCH_FSDP2, at="_fsdp_collectives.py:328-360: one output of all parameters, each padded")
def all_gather_bytes(parameters: tuple[HeldTensor, ...], plan: Plan) -> Count:
    """The buffer that shards of single parameters arrive in. A rank alone gathers nothing."""
    ranks = plan.mesh.sharded
    whole = sum(mixed_precision_dtype(h, plan).nbytes(dim0_gathered(h.shape, ranks)) for h in parameters)
    return where(at_least(ranks, 2), whole, 0)


@formula(
    cites=TORCH_FSDP1,
    at="_flat_param.py, _alloc_padded_unsharded_flat_param: gathered whole in the low dtype",
)
def flat_unit_bytes(parameters: tuple[HeldTensor, ...], plan: Plan) -> Count:
    """A flat parameter gathered whole; nothing on a rank alone."""
    return where(at_least(plan.mesh.sharded, 2), gathered_bytes(parameters, plan), 0)
