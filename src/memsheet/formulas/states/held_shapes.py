"""Shapes of tensors on one tensor- and expert-parallel rank."""

from __future__ import annotations

from memsheet.arith import Count, agreed, ceil_div, maximum, round_up, where
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
        shape[weight.cut] = _cut_size(weight, shape[weight.cut] - weight.repeated, degree)
    return tuple(shape)


def _cut_size(weight: Weight, size: Count, degree: Count) -> Count:
    """What one of ``degree`` ranks holds of ``size`` elements in units, and of the groups besides, of which
    every rank has one where ranks outnumber them (vLLM v0.33.0
    model_executor/layers/mamba/mamba_mixer2.py:333, SGLang v0.5.23 layers/attention/mamba/mamba.py:273).
    """
    own = size // weight.units * ceil_div(weight.units, degree) if weight.units else ceil_div(size, degree)
    if weight.least:
        own = where(degree > 1, maximum(own, weight.least), own)
    if weight.even:
        own = where(weight.units % degree == 0, own, size)
    return own + weight.repeated // weight.groups * ceil_div(weight.groups, degree) if weight.groups else own


def elements_of(shape: tuple[Count, ...]) -> Count:
    """The product of a shape."""
    result: Count = 1
    for size in shape:
        result = result * size
    return result
