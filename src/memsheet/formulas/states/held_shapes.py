"""Shapes of tensors on one tensor- and expert-parallel rank."""

from __future__ import annotations

from memsheet.arith import Count, agreed, ceil_div, round_up
from memsheet.plan.model import Role, Weight
from memsheet.plan.plan import Mesh
from memsheet.references import MEGATRON_TP, formula


@formula(cites=MEGATRON_TP, at="section 3; experts: one expert group a rank of ep, each matrix cut over etp")
def held_shape(weight: Weight, mesh: Mesh, vocab_multiple: int = 1) -> tuple[Count, ...]:
    """The shape of ``weight`` on one tensor- and expert-parallel rank, the largest where ranks differ.

    Norms, routers and latent down-projections (``cut`` None) are whole everywhere; heads are never split, so
    keys and values repeat where tp exceeds their heads; a padded vocabulary is rounded up to
    ``vocab_multiple``.
    """
    shape: list[Count] = list(weight.shape)
    routed = weight.role in (Role.EXPERT, Role.EXPERT_BIAS)
    degree = mesh.etp if routed else mesh.tp
    if routed:
        shape[0] = ceil_div(shape[0], mesh.ep)
    if weight.padded and agreed(vocab_multiple > 1):
        shape[0] = round_up(shape[0], vocab_multiple)
    if weight.cut is not None:
        units = weight.units or weight.shape[weight.cut]
        shape[weight.cut] = (
            shape[weight.cut] // units * ceil_div(units, degree)
            if weight.units
            else ceil_div(shape[weight.cut], degree)
        )
    return tuple(shape)


def elements_of(shape: tuple[Count, ...]) -> Count:
    """The product of a shape."""
    result: Count = 1
    for size in shape:
        result = result * size
    return result
