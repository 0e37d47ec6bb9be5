"""Multi-head latent attention as the transformers library trains it, written over shape-only tensors: keys
and values expanded.

The order of operations is that of 5.23's modeling_deepseek_v3.py:407-482 (modeling_deepseek_v2.py:359-418
differs in its rotation). Axes besides those of ``blocks.py``: ``n`` and ``p`` a head's elements without and
with positions (``d`` both), ``v`` those of a value, ``y`` and ``z`` the ranks of queries' and of keys' and
values' latents.
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.arith import Count
from memsheet.formulas.model_code.transformers.norms import apply_norm
from memsheet.formulas.numerics import AttentionKernel, RunConfig, record_linear
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.kernel_scratch import (
    efficient_backward_bytes,
    efficient_forward_bytes,
    flash_backward_bytes,
)
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.plan.dtypes import FP32, INT64, DType
from memsheet.plan.model import LatentAttention, Norm, NormKind, Weight
from memsheet.references import TRANSFORMERS, formula

HEADS: Shape = ("b", "a", "s", "d")
VALUES: Shape = ("b", "a", "s", "v")
MERGED: Shape = ("b", "s", "a", "v")
SCORES: Shape = ("b", "a", "s", "s")
COMPLEX64 = DType("complex64", 64, source="two fp32 numbers")
ALIGNMENT = 8
INTERLEAVED = frozenset({"deepseek_v3", "glm4_moe_lite"})
"""Families that turn even and odd elements in real numbers (configuration_deepseek_v3.py: rope_interleave is
true unless a config says otherwise); deepseek_v2 multiplies complex ones.
"""


@formula(
    cites=TRANSFORMERS,
    at="modeling_deepseek_v3.py:349-424: heads of n + p and of v elements, latents of y and z + p",
)
def latent_axes(at: LatentAttention) -> dict[str, Count]:
    """Values of the axes that latent attention's tensors are named by, on one rank that has all heads."""
    n, p, v, a = at.qk_nope_head_dim, at.qk_rope_head_dim, at.v_head_dim, at.heads
    return {
        "a": a, "n": n, "p": p, "d": n + p, "v": v, "y": at.q_lora_rank or 0, "z": at.kv_lora_rank, "z+p": at.kv_lora_rank + p,
        "p/2": p // 2, "n+v": n + v, "a·v": a * v, "a·(n+v)": a * (n + v),
    }  # fmt: skip


@formula(
    cites=TRANSFORMERS,
    at="modeling_deepseek_v3.py:95-101: cosines and sines; modeling_deepseek_v2.py:213-219: complex numbers",
)
def latent_table(at: LatentAttention, kind: str, seq_len: Count, how: RunConfig) -> Count:
    """Bytes of the model's rotary tables."""
    width = at.qk_rope_head_dim
    return (
        how.stream.nbytes(2 * seq_len * width)
        if kind in INTERLEAVED
        else COMPLEX64.nbytes(seq_len * (width // 2))
    )


def latent_problem(at: LatentAttention) -> str | None:
    """Why it cannot be recorded: the memory-efficient kernel takes heads of multiples of 8 alone
    (sdp_utils.cpp, use_mem_efficient_attention).
    """
    if at.index_dim:
        return "what its indexer compares every token with is not modelled"
    sizes = at.qk_nope_head_dim + at.qk_rope_head_dim, at.v_head_dim
    return (
        f"its heads of {sizes[0]} and {sizes[1]} are no multiples of {ALIGNMENT}"
        if any(size % ALIGNMENT for size in sizes)
        else None
    )


def latent_attention(
    r: Recorder, x: Tensor, at: LatentAttention, how: RunConfig, kind: str
) -> tuple[Tensor, Tensor | None]:
    """Latents, their norms, rotary positions, keys and values for every head, attention, output projection;
    and eager's probabilities.
    """
    weights = {w.path: w for w in at.weights}
    q = r.transposed_view(r.view(_query_projection(r, x, at, weights, how), ("b", "s", "a", "d")), HEADS)
    q_pass, q_rot = r.split(q, (("b", "a", "s", "n"), ("b", "a", "s", "p")))
    compressed = record_linear(r, x, weights, f"{at.path}.kv_a_proj_with_mqa", "z+p", "h", how)
    latent, k_rot = r.split(compressed, (("b", "s", "z"), ("b", "s", "p")))
    latent = r.view(
        _latent_rms_norm(r, latent, f"{at.path}.kv_a_layernorm", weights, how), ("b", 1, "s", "z")
    )
    k_rot = r.view(k_rot, ("b", 1, "s", "p"))
    q_rot, k_rot = (_interleaved_rotary if kind in INTERLEAVED else _complex_rotary)(r, q_rot, k_rot, at, how)
    query = _join_query_dims(r, q_pass, q_rot, at.path)
    key, value = _expand_latent_kv(r, latent, k_rot, at, weights, how)
    context, probabilities = CORES[how.attention](r, query, key, value, at, how)
    context = r.view(context, ("b", "s", "a·v"))
    return record_linear(r, context, weights, f"{at.path}.o_proj", "h", "a·v", how), probabilities


def _query_projection(
    r: Recorder, x: Tensor, at: LatentAttention, weights: dict[str, Weight], how: RunConfig
) -> Tensor:
    if at.q_lora_rank is None:
        return record_linear(r, x, weights, f"{at.path}.q_proj", "a·d", "h", how)
    low = _latent_rms_norm(
        r,
        record_linear(r, x, weights, f"{at.path}.q_a_proj", "y", "h", how),
        f"{at.path}.q_a_layernorm",
        weights,
        how,
    )
    return record_linear(r, low, weights, f"{at.path}.q_b_proj", "a·d", "y", how)


def _latent_rms_norm(r: Recorder, x: Tensor, path: str, weights: dict[str, Weight], how: RunConfig) -> Tensor:
    weight = weights[f"{path}.weight"]
    return apply_norm(r, x, Norm(path=path, kind=NormKind.RMS, size=weight.shape[0], weights=(weight,)), how)


# ---- rotary positions --------------------------------------------------------------------------------------


def _interleaved_rotary(
    r: Recorder, q: Tensor, k: Tensor, at: LatentAttention, how: RunConfig
) -> tuple[Tensor, Tensor]:
    """Even and odd elements of queries and keys, each pair turned (modeling_deepseek_v3.py:310-346)."""
    table = Tensor(None, ("s", "p/2"), how.stream)
    q1, q2 = _rotary_halves(r, q)
    k1, k2 = _rotary_halves(r, k)
    return pairs_turned(r, q1, q2, table, at.path + "/q", "p"), pairs_turned(
        r, k1, k2, table, at.path + "/k", "p"
    )


def _rotary_halves(r: Recorder, x: Tensor) -> tuple[Tensor, Tensor]:
    half = (*x.shape[:-1], "p/2")
    return r.slice(x, half), r.slice(x, half)


def pairs_turned(r: Recorder, first: Tensor, second: Tensor, table: Tensor, path: str, whole: Axis) -> Tensor:
    """x1·cos − x2·sin beside x2·cos + x1·sin."""
    one = broadcast_subtract(
        r, r.mul(first, table, path + "/cos"), r.mul(second, table, path + "/sin"), path + "/first"
    )
    other = r.add(r.mul(second, table, path + "/cos"), r.mul(first, table, path + "/sin"), path + "/second")
    return r.cat((one, other), (*first.shape[:-1], whole), path + "/rotary")


def broadcast_subtract(r: Recorder, a: Tensor, b: Tensor, path: str) -> Tensor:
    """``a - b``: saves nothing; what is taken away has a gradient of its own, negated, which the engine sums
    where ``b`` is broadcast.
    """
    shape, dtype, needs = a.shape, b.dtype, (a.needs_grad, b.needs_grad)

    def backward(g: Grad) -> list[Grad | None]:
        return [
            Grad(g.storage, g.shape, g.dtype) if needs[0] else None,
            r.grad(shape, dtype) if needs[1] else None,
        ]

    return r.apply(r.tensor(path, a.shape, a.dtype), (a, b), (), backward)


def _complex_rotary(
    r: Recorder, q: Tensor, k: Tensor, at: LatentAttention, _: RunConfig
) -> tuple[Tensor, Tensor]:
    """Pairs as complex fp32 numbers times the model's table of them (modeling_deepseek_v2.py:259-272)."""
    kinds = q.dtype, k.dtype
    q = r.cast(q, FP32, at.path + "/q_fp32")
    k = r.cast(k, FP32, at.path + "/k_fp32")
    q = r.view(_complex_product(r, q, at.path + "/q"), q.shape)
    q = r.cast(q, kinds[0], at.path + "/q_rotary")
    k = r.view(_complex_product(r, k, at.path + "/k"), k.shape)
    return q, r.cast(k, kinds[1], at.path + "/k_rotary")


def _complex_product(r: Recorder, x: Tensor, path: str) -> Tensor:
    return r.scale(x, path + "/turned")


# ---- keys and values of every head -------------------------------------------------------------------------


def _join_query_dims(r: Recorder, q_pass: Tensor, q_rot: Tensor, path: str) -> Tensor:
    """What positions left alone beside what they turned; autocast joins in the wider dtype."""
    q_pass = r.cast(q_pass, q_rot.dtype, path + "/q_pass")
    return r.cat((q_pass, q_rot), HEADS, path + "/query")


def _expand_latent_kv(
    r: Recorder,
    latent: Tensor,
    k_rot: Tensor,
    at: LatentAttention,
    weights: dict[str, Weight],
    how: RunConfig,
) -> tuple[Tensor, Tensor]:
    """Keys and values of every head out of the latent; the rotary key is copied beside each head's own
    (modeling_deepseek_v3.py:407-424).
    """
    both = record_linear(r, latent, weights, f"{at.path}.kv_b_proj", "a·(n+v)", "z", how)
    both = r.transposed_view(r.view(both, ("b", "s", "a", "n+v")), ("b", "a", "s", "n+v"))
    k_pass, value = r.split(both, (("b", "a", "s", "n"), VALUES))
    k_rot = _broadcast_rotary_key(r, k_rot)
    key = r.tensor(at.path + "/key", HEADS, both.dtype)
    key = _copy_into_slice(r, key, k_pass)
    return _copy_into_slice(r, key, k_rot), value


def _broadcast_rotary_key(r: Recorder, k_rot: Tensor) -> Tensor:
    """The rotary key as every head's: a view, whose gradient is summed over the heads."""
    back, dtype = k_rot.shape, k_rot.dtype
    return r.apply(
        Tensor(k_rot.storage, ("b", "a", "s", "p"), dtype), (k_rot,), (), lambda _: [r.grad(back, dtype)]
    )


def _copy_into_slice(r: Recorder, whole: Tensor, part: Tensor) -> Tensor:
    """``part`` copied into its place of ``whole`` (torch's CopySlices, autograd/functions/tensor.cpp):
    backward copies the gradient, and the part's share of it once more; the place itself is filled with zeros.
    """
    shape, dtype, of, own, needs, again = (
        whole.shape,
        whole.dtype,
        part.shape,
        part.dtype,
        part.needs_grad,
        whole.needs_grad,
    )

    def backward(_: Grad) -> list[Grad | None]:
        result = r.grad(shape, dtype)
        share = r.grad(of, dtype)
        zeros = r.grad(of, dtype) if again else None
        if own is not dtype and needs:
            share = r.grad(of, own)
        del zeros
        return [result if again else None, share if needs else None]

    return r.apply(Tensor(whole.storage, shape, dtype), (whole, part), (), backward)


# ---- softmax(q k) v ----------------------------------------------------------------------------------------


def _eager_latent_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: LatentAttention, how: RunConfig
) -> tuple[Tensor, Tensor]:
    """The score matrix in full; values lie inside positions, so that several sequences' are copied for their
    product.
    """
    path = at.path
    weights = r.scale(r.product(q, k, SCORES, path + "/scores"), path + "/scores")
    weights = r.add(weights, Tensor(None, ("b", 1, "s", "s"), how.stream), path + "/scores")
    wide = r.cast(weights, FP32, path + "/scores")
    del weights
    weights = r.cast(r.unary(wide, path + "/softmax", saves="output"), q.dtype, path + "/probabilities")
    del wide
    weights = r.dropout(weights, path + "/dropout", active=how.dropout)
    out = r.product(weights, v, VALUES, path + "/context", copies=(False, how.several))
    return r.copy(out, MERGED, path + "/context"), weights


def _efficient_latent_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: LatentAttention, _: RunConfig
) -> tuple[Tensor, None]:
    """The memory-efficient kernel, which takes heads of two sizes: keeps q, k, v, its output and statistics
    padded to 32.
    """
    path = at.path
    v = r.autocast(v, path + "/v")
    k = r.autocast(k, path + "/k")
    q = r.autocast(q, path + "/q")
    out = r.tensor(path + "/context", VALUES, q.dtype)
    lse = r.tensor(path + "/logsumexp", ("b", "a", "s32"), FP32)
    seed = r.tensor(path + "/rng", (2,), INT64)
    r.kernel_scratch(efficient_forward_bytes, ("b", "s", "a", q.shape[3], v.shape[3]), q.dtype)
    inside = (efficient_backward_bytes, ("b", "s", "a", k.shape[2], q.shape[3], v.shape[3]))
    r.custom(path, (q, k, v), out, (q, k, v, out, lse, seed), inside=inside)
    return r.view(out, MERGED), None


def _flash_latent_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: LatentAttention, _: RunConfig
) -> tuple[Tensor, None]:
    """The flash-attn package, whose values transformers pads to the keys' size
    (integrations/flash_attention.py:72-108).
    """
    path = at.path
    dtype = r.compute or q.dtype
    back, narrow = v.shape, v.dtype
    v = r.apply(r.tensor(path + "/v_padded", HEADS, narrow), (v,), (), lambda _: [r.grad(back, narrow)])
    q, k, v = (r.cast(t, dtype, f"{path}/{name}") for t, name in ((q, "q"), (k, "k"), (v, "v")))
    out = r.tensor(path + "/context", HEADS, dtype)
    lse = r.tensor(path + "/logsumexp", ("b", "a", "s"), FP32)
    seed = r.tensor(path + "/rng", (2,), INT64)
    inside = (flash_backward_bytes, ("b", "s", "a", "a", k.shape[2], q.shape[3]))
    r.custom(path, (q, k, v), out, (q, k, v, out, lse, seed), inside=inside)
    return r.copy(r.slice(out, VALUES), MERGED, path + "/context"), None


Core = Callable[[Recorder, Tensor, Tensor, Tensor, LatentAttention, RunConfig], tuple[Tensor, Tensor | None]]
CORES: dict[AttentionKernel, Core] = {
    AttentionKernel.EAGER: _eager_latent_attention,
    AttentionKernel.EFFICIENT: _efficient_latent_attention,
    AttentionKernel.FUSED: _flash_latent_attention,
}
