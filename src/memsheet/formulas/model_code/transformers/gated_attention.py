"""Attention whose queries come with a gate of what it says (transformers 5.23,
modeling_qwen3_next.py:263-326), written over shape-only tensors. Axes as in ``attention.py``.
"""

from __future__ import annotations

from memsheet.formulas.model_code.transformers.attention import CORES, into_heads, qk_norms
from memsheet.formulas.model_code.transformers.families import FamilyTraits
from memsheet.formulas.model_code.transformers.rotary_positions import apply_rotary_positions
from memsheet.formulas.numerics import RunConfig, record_linear
from memsheet.formulas.tapes.graph import Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.model import Attention, Weight

ROWS: Shape = ("b", "s", "a·d")


def gated_attention(
    r: Recorder, x: Tensor, at: Attention, how: RunConfig, own: FamilyTraits
) -> tuple[Tensor, Tensor | None]:
    """Queries and gates of every head side by side, norms, rotary positions, attention, its say times the
    gates' sigmoid; and the probabilities if eager.
    """
    weights, path = {w.path: w for w in at.weights}, at.path
    if f"{path}.gate_proj.weight" in weights:
        return _gated_beside(r, x, at, weights, how, own)
    q_norm, k_norm = qk_norms(at)
    half: Shape = ("b", "s", "a", "d")
    q, gate = r.split(record_linear(r, x, weights, f"{path}.q_proj", "2·a·d", "h", how), (half, half))
    gate = r.copy(gate, ROWS, path + "/gate")
    q = into_heads(r, q, "a", q_norm, at, how)
    k = into_heads(r, record_linear(r, x, weights, f"{path}.k_proj", "k·d", "h", how), "k", k_norm, at, how)
    v = into_heads(r, record_linear(r, x, weights, f"{path}.v_proj", "k·d", "h", how), "k", None, at, how)
    q, k, _named = apply_rotary_positions(r, q, k, at, how, own)
    return _gated_output(r, (q, k, v), gate, at, weights, how, own)


def _gated_beside(
    r: Recorder, x: Tensor, at: Attention, weights: dict[str, Weight], how: RunConfig, own: FamilyTraits
) -> tuple[Tensor, Tensor | None]:
    """Gates from a projection of their own, as wide as the queries'; heads are cut and normalised when all
    four are made (modeling_afmoe.py, AfmoeAttention).
    """
    path, norms = at.path, (*qk_norms(at), None)
    flat = [
        record_linear(r, x, weights, f"{path}.{name}", f"{axis}·d", "h", how)
        for name, axis in (("q_proj", "a"), ("k_proj", "k"), ("v_proj", "k"), ("gate_proj", "a"))
    ]
    gate = flat.pop()
    heads = [into_heads(r, flat.pop(0), axis, norm, at, how) for axis, norm in zip("akk", norms, strict=True)]
    q, k, v = heads
    del heads
    if at.rotary_dim:
        q, k, _named = apply_rotary_positions(r, q, k, at, how, own)
    return _gated_output(r, (q, k, v), gate, at, weights, how, own)


def _gated_output(
    r: Recorder,
    qkv: tuple[Tensor, Tensor, Tensor],
    gate: Tensor,
    at: Attention,
    weights: dict[str, Weight],
    how: RunConfig,
    own: FamilyTraits,
) -> tuple[Tensor, Tensor | None]:
    """Attention's say times the gates' sigmoid, and the output projection."""
    path = at.path
    made = CORES[how.attention](r, *qkv, at, how, own)
    context = r.mul(r.view(made[0], ROWS), r.unary(gate, path + "/sigmoid", saves="output"), path + "/gated")
    probabilities = made[1]
    del made
    return record_linear(r, context, weights, f"{path}.o_proj", "h", "a·d", how), probabilities
