"""Llama 4's attention and experts as the transformers library runs them (5.23, modeling_llama4.py), written
over shape-only tensors.

Every token goes through every expert there, times zero where it was not sent: memory grows with the number of
experts. Axes as in ``experts.py``.
"""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.formulas.model_code.transformers.attention import CORES
from memsheet.formulas.model_code.transformers.families import LLAMA4, family_traits
from memsheet.formulas.model_code.transformers.feed_forward import ACTIVATIONS, dense_feed_forward
from memsheet.formulas.model_code.transformers.latent import COMPLEX64
from memsheet.formulas.model_code.transformers.norms import apply_norm
from memsheet.formulas.numerics import AttentionKernel, RunConfig, record_linear
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.plan.dtypes import FP32, INT64
from memsheet.plan.model import Attention, Moe, Role, Weight
from memsheet.references import TRANSFORMERS, formula

STREAM: Shape = ("b", "s", "h")
EVERY: Shape = ("e", "b", "s", "h")
ALL: Shape = ("b", "s", "e")


@formula(
    cites=TRANSFORMERS, at="modeling_llama4.py:213-222: a complex number for each pair of a head's elements"
)
def rotary_table(at: Attention, seq_len: Count) -> Count:
    """Bytes of the model's rotary table."""
    return COMPLEX64.nbytes(seq_len * (at.rotary_dim // 2))


def llama4_attention(r: Recorder, x: Tensor, at: Attention, how: RunConfig) -> tuple[Tensor, Tensor | None]:
    """Complex rotary positions and norms without weights, or queries scaled by their positions; attention;
    output projection.
    """
    weights, eager = {w.path: w for w in at.weights}, how.attention is AttentionKernel.EAGER
    q, k, v = (
        r.view(record_linear(r, x, weights, f"{at.path}.{n}_proj", f"{a}·d", "h", how), ("b", "s", a, "d"))
        for n, a in ("qa", "kk", "vk")
    )
    v = r.transposed_view(v, ("b", "k", "s", "d"))
    if at.rotary_dim:
        q, k = _complex_rotary_qk(r, q, k, at.path, copied=eager)
    else:
        q = r.cast(r.mul(q, Tensor(None, (1,), FP32), at.path + "/scaled"), q.dtype, at.path + "/scaled")
    if at.qk_norm is not None:
        q = apply_norm(r, q, at.qk_norm, how, f"{at.path}/q_norm")
        k = apply_norm(r, k, at.qk_norm, how, f"{at.path}/k_norm")
    q, k = (
        _by_head(r, q, "a", copied=eager and not at.rotary_dim),
        _by_head(r, k, "k", copied=not at.rotary_dim),
    )
    context, probabilities, *_named = CORES[how.attention](r, q, k, v, at, how, family_traits(LLAMA4))
    return record_linear(
        r, r.view(context, ("b", "s", "a·d")), weights, f"{at.path}.o_proj", "h", "a·d", how
    ), probabilities


def _by_head(r: Recorder, x: Tensor, heads: Axis, *, copied: bool) -> Tensor:
    """Heads in front of positions: a view, whose gradient may lie as the kernel left it."""
    shape: Shape = ("b", heads, "s", "d")
    return r.transposed_view(x, shape) if copied else r.view(x, shape)


def _complex_rotary_qk(
    r: Recorder, q: Tensor, k: Tensor, path: str, *, copied: bool
) -> tuple[Tensor, Tensor]:
    """Pairs as complex numbers times the model's table (:225-234). ``copied``: so is the gradient of queries,
    as that of keys is.
    """
    wide_q, wide_k = r.cast(q, FP32, path + "/q_fp32"), r.cast(k, FP32, path + "/k_fp32")
    turned_q, turned_k = (
        _complex_table_product(r, wide_q, path + "/q", copied=copied),
        _complex_table_product(r, wide_k, path + "/k", copied=True),
    )
    return r.cast(turned_q, q.dtype, path + "/q"), r.cast(turned_k, k.dtype, path + "/k")


def _complex_table_product(r: Recorder, x: Tensor, path: str, *, copied: bool) -> Tensor:
    """Backward takes a copy of the conjugate table, and the gradient as contiguous pairs."""
    shape = x.shape

    def backward(_: Grad) -> list[Grad | None]:
        laid = r.grad(shape, FP32) if copied else None
        table = r.grad(("s", "d"), FP32)
        grad = r.grad(shape, FP32)
        del laid, table
        return [grad]

    return r.apply(r.tensor(path + "/turned", shape, FP32), (x,), (), backward)


def every_expert(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Tensor:
    """All tokens for each expert, weighted before they go in, and their sum beside the shared expert
    (:140-175).
    """
    scores, logits = _sigmoid_router_scores(r, x, ff, how)
    copies = r.apply(
        r.tensor(ff.path + "/repeat", EVERY, x.dtype), (x,), (), lambda _: [r.grad(STREAM, x_dtype)]
    )
    x_dtype = x.dtype
    routed = r.mul(copies, r.copy(scores, ("e", "b", "s", 1), ff.path + "/scores"), ff.path + "/weighted")
    del copies
    said = _batched_expert_mlp(r, routed, ff, how)
    assert ff.shared is not None
    out = dense_feed_forward(r, x, ff.shared, how)
    result = _add_expert_sum(r, out, said, ff.path)
    del scores, logits, routed, said
    return result


def _sigmoid_router_scores(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> tuple[Tensor, Tensor]:
    """A sigmoid in fp32 of the largest few logits, zero for the others."""
    weight = next(w for w in ff.weights if w.role is Role.ROUTER)
    path = weight.path.removesuffix(".weight")
    logits = r.linear(x, r.parameter(path, tuple(weight.shape), how.parameters, trains=how.trains), "e", path)
    chosen = r.tensor(path + "/experts", ("b", "s", "t"), INT64)
    dtype = logits.dtype

    def backward(_: Grad) -> list[Grad | None]:
        few = r.grad(("b", "s", "t"), dtype)
        grad = r.grad(ALL, dtype)
        del few
        return [grad]

    sparse = r.apply(r.tensor(path + "/sparse", ALL, dtype), (logits,), (chosen,), backward)
    share = r.unary(r.cast(sparse, FP32, path + "/fp32"), path + "/sigmoid", saves="output")
    return r.cast(share, dtype, path + "/scores"), logits


def _batched_expert_mlp(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Tensor:
    """Two batched products around the gate."""
    module = ff.path + ".experts"
    first, second = (w for w in ff.routed)
    both = r.product(x, _stacked_expert_weight(r, first, how), ("e", "b", "s", "2·i"), module + "/gate_up")
    gate, up = r.split(both, (("e", "b", "s", "i"), ("e", "b", "s", "i")))
    made = r.mul(up, ACTIVATIONS[ff.activation](r, gate, module + "/activation"), module + "/product")
    return r.product(made, _stacked_expert_weight(r, second, how), EVERY, module + "/output")


def _stacked_expert_weight(r: Recorder, weight: Weight, how: RunConfig) -> Tensor:
    return r.parameter(weight.path, tuple(weight.shape), how.parameters, trains=how.trains)


def _add_expert_sum(r: Recorder, out: Tensor, said: Tensor, path: str) -> Tensor:
    """The sum over experts, added in place; its gradient is spread over all of them."""
    dtype = said.dtype
    total = r.apply(
        r.tensor(path + "/sum", STREAM, FP32 if r.widens else dtype),
        (said,),
        (),
        lambda _: [r.grad(EVERY, dtype)],
    )
    return r.apply(
        Tensor(out.storage, STREAM, out.dtype),
        (out, total),
        (),
        lambda g: [Grad(g.storage, g.shape, g.dtype)] * 2,
    )
