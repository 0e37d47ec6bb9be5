"""A flat parameter in elements and bytes: gathered whole, reduced, and a rank's part of it."""

from __future__ import annotations

from memsheet.arith import Count, ceil_div, round_up
from memsheet.formulas.states.held import HeldTensor
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_FSDP1, ZERO, formula


@formula(cites=ZERO, at="section 5: each rank keeps 1/n of a flattened state")
def flat_shard(elements: Count, ranks: Count, alignment: int = 1) -> Count:
    """Elements of one rank's part of a flat buffer padded to ``ranks`` · ``alignment``."""
    return round_up(elements, ranks * alignment) // ranks


@formula(
    cites=TORCH_FSDP1,
    at=(
        "_flat_param.py, _get_sharded_padding: a unit's parameters end to end, padded to a multiple "
        "of the ranks"
    ),
)
def flat_elements(parameters: tuple[HeldTensor, ...], plan: Plan) -> Count:
    """Elements of a flat parameter that is gathered whole."""
    return round_up(sum(h.times * h.elements for h in parameters), plan.mesh.dp_shard)


@formula(
    cites=TORCH_FSDP1,
    at="_flat_param.py, _alloc_padded_unsharded_flat_param: gathered whole in the low dtype",
)
def gathered_bytes(parameters: tuple[HeldTensor, ...], plan: Plan) -> Count:
    """Its bytes in the dtype that units are computed in."""
    return plan.precision.compute.nbytes(flat_elements(parameters, plan))


@formula(
    cites=TORCH_FSDP1,
    at="_runtime_utils.py:743: without gradient sync the flat gradient stays whole, as autograd made it",
)
def unreduced_gradient_bytes(parameters: tuple[HeldTensor, ...], plan: Plan) -> Count:
    """What accumulates on every rank when only the last micro-batch reduces gradients (``no_sync``), in the
    dtype that units are computed in.
    """
    return sum(h.times * plan.precision.compute.nbytes(h.elements) for h in parameters if h.trains)


@formula(
    cites=TORCH_FSDP1,
    at=(
        "_runtime_utils.py, _reduce_grad: the flat gradient, its copy in the dtype of the reduction, a "
        "rank's part"
    ),
)
def reducing_bytes(parameters: tuple[HeldTensor, ...], plan: Plan) -> Count:
    """What there is while a unit's gradient is reduced."""
    whole, precision = flat_elements(parameters, plan), plan.precision
    copy = precision.reduce.nbytes(whole) if precision.reduce is not precision.compute else 0
    return (
        precision.compute.nbytes(whole) + copy + precision.reduce.nbytes(ceil_div(whole, plan.mesh.dp_shard))
    )
