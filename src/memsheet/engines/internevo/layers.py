"""InternEvo's InternLM (1738bee0): joined projections, rotary positions in place, flash attention on packed
sequences, apex's norms.

Unless whole layers are recomputed, dropout and norm are, which keeps their inputs in the low dtype in place
of fp32 copies.
"""

from __future__ import annotations

from memsheet.errors import Problem
from memsheet.formulas.model_code import ModelCode
from memsheet.formulas.model_code.shapes import whole_axes, whole_ends
from memsheet.formulas.model_code.transformers import ends
from memsheet.formulas.numerics import RunConfig, record_parameter
from memsheet.formulas.tapes.graph import Grad, GradientSum, Pass, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32, INT64, DType
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    Embeddings,
    Head,
    ModelSpec,
    Norm,
    NormKind,
    Role,
    Stack,
    Weight,
)
from memsheet.plan.plan import Loss, Plan, RecomputeMode

JOINED = "(a+2k)·d"
SELECTIVE = "recomputes norms"


def internlm_block_forward(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """PackedFlashBaseLayer1D._forward (model/modeling_internlm.py:205-255)."""
    (at,), ff, norms = block.mixers, block.feed_forward, block.norms
    assert isinstance(at, Attention)
    assert isinstance(ff, Dense)
    selective = SELECTIVE in how.options
    mixed = packed_qkv_attention(r, _recomputable_norm(r, x, norms[0], how, selective=selective), at, how)
    residual = r.add(mixed, x, "/residual")
    del mixed
    fed = feed_forward(r, _recomputable_norm(r, residual, norms[1], how, selective=selective), ff, how)
    return r.add(fed, residual, "/output")


def _recomputable_norm(r: Recorder, x: Tensor, norm: Norm, how: RunConfig, *, selective: bool) -> Tensor:
    """A norm on an fp32 copy; recomputed, it keeps its input alone. The second's is a sum of which InternEvo
    keeps a part of the same size: attention's output, beside the stream that the first norm keeps.
    """
    if not selective or r.pass_ is not Pass.PLAIN:
        return mixed_fused_rms_norm(r, x, norm, how)
    return r.again(lambda y: mixed_fused_rms_norm(r, y, norm, how), x)


def mixed_fused_rms_norm(r: Recorder, x: Tensor, norm: Norm, how: RunConfig) -> Tensor:
    """Apex's MixedFusedRMSNorm of ``x.float()``: keeps the copy and a statistic, hands on the weight's
    dtype.
    """
    weight = record_parameter(r, norm.weights[0], how, norm.path)
    wide = r.cast(x, FP32, norm.path + "/fp32")
    out = r.tensor(norm.path + "/output", x.shape, weight.dtype)
    return r.custom(
        norm.path,
        (wide, weight),
        out,
        (wide, weight, r.tensor(norm.path + "/rstd", (*x.shape[:-1], 1), FP32)),
    )


def _fused_dense_linear(
    r: Recorder, x: Tensor, weights: tuple[Weight, ...], number: int, shape: tuple[Axis, Axis], how: RunConfig
) -> Tensor:
    """flash-attn's fused dense layer, which saves its input and weight as torch's does."""
    path = [w.path.removesuffix(".weight") for w in weights if w.path.endswith(".weight")][number]
    bias = next((w for w in weights if w.path == f"{path}.bias"), None)
    low = record_parameter(r, bias, how, f"{path}.bias") if bias else None
    return r.linear(x, r.parameter(path, shape, how.parameters, trains=how.trains), shape[0], path, bias=low)


def packed_qkv_attention(r: Recorder, x: Tensor, at: Attention, how: RunConfig) -> Tensor:
    """MHA._packed_forward (model/multi_head_attention.py:430-465): positions are turned in place."""
    qkv = _fused_dense_linear(r, x, at.weights, 0, (JOINED, "h"), how)
    tables = [r.tensor(f"{at.path}/rotary_table", ("b", "s", "d/2"), x.dtype) for _ in range(2)]
    turned: Shape = ("b", "s", JOINED)
    qkv = r.apply(
        Tensor(qkv.storage, turned, x.dtype), (qkv,), tables, lambda g: [Grad(g.storage, turned, g.dtype)]
    )
    del tables
    out = r.tensor(f"{at.path}/context", ("b", "s", "a·d"), x.dtype)
    lse, seed = (
        r.tensor(f"{at.path}/logsumexp", ("b", "a", "s"), FP32),
        r.tensor(f"{at.path}/rng", (2,), INT64),
    )
    out = r.custom(at.path, (qkv,), out, (qkv, out, lse, seed))
    del qkv
    return _fused_dense_linear(r, out, at.weights, 1, ("h", "a·d"), how)


def feed_forward(r: Recorder, x: Tensor, ff: Dense, how: RunConfig) -> Tensor:
    """FeedForward.forward (model/linear.py:190-196): w3(silu(w1 x) * w2 x), the middle as torch
    differentiates it.
    """
    gate = _fused_dense_linear(r, x, ff.weights, 0, ("f", "h"), how)
    up = _fused_dense_linear(r, x, ff.weights, 1, ("f", "h"), how)
    inner = r.mul(r.unary(gate, f"{ff.path}/activation", saves="input"), up, f"{ff.path}/product")
    del gate, up
    return _fused_dense_linear(r, inner, ff.weights, 2, ("h", "f"), how)


# ---- the two ends ------------------------------------------------------------------------------------------


def internlm_embeddings(
    r: Recorder, embeddings: Embeddings, how: RunConfig, tied: GradientSum
) -> tuple[Tensor, tuple[Tensor, ...]]:
    x, _ = ends.input_embeddings(r, embeddings, how, tied)
    return x, ()


def internlm_logits(r: Recorder, x: Tensor, head: Head, how: RunConfig, _: Loss, table: str) -> Tensor:
    return ends.project_to_vocabulary(r, x, head, how, table)


def loss_input(how: RunConfig, _: Loss) -> tuple[Shape, DType, str]:
    return ("b", "s", "V0"), how.parameters, "lm_head/output"


def inplace_cross_entropy(r: Recorder, x: Tensor, *_: object) -> Tensor:
    """flash-attn's cross entropy with ``inplace_backward`` (model/loss.py:24-30): logits become their
    gradient.
    """
    logits, shape, dtype = x.storage, x.shape, x.dtype
    sums = r.tensor("loss/logsumexp", ("b", "s"), FP32)
    rows = r.apply(
        r.tensor("loss/rows", ("b", "s"), FP32), (x,), (x, sums), lambda _: [Grad(logits, shape, dtype)]
    )
    return r.apply(r.tensor("loss/value", (1,), FP32), (rows,), (), lambda _: [r.grad(("b", "s"), FP32)])


# ---- the model as it is built ------------------------------------------------------------------------------


def internlm_spec(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """With one projection for queries, keys and values, and biases in both of attention's."""
    if _has_foreign_layers(spec):
        return spec
    return replace(spec, stacks=tuple(_internlm_stack(stack) for stack in spec.stacks))


def _internlm_stack(stack: Stack) -> Stack:
    runs = tuple(
        replace(run, pattern=tuple(_internlm_block(block) for block in run.pattern)) for run in stack.runs
    )
    return replace(stack, runs=runs)


def _internlm_block(block: Block) -> Block:
    at = block.mixers[0]
    assert isinstance(at, Attention)
    if at.fused_qkv:
        return block
    rows = (at.heads + 2 * at.kv_heads) * at.head_dim
    shapes = {"Wqkv": (rows, block.hidden), "out_proj": (block.hidden, at.heads * at.head_dim)}
    weights = tuple(
        Weight(
            path=f"{at.path}.{name}.{kind}",
            shape=shape[:1] if kind == "bias" else shape,
            role=Role.BIAS if kind == "bias" else Role.LINEAR,
        )
        for name, shape in shapes.items()
        for kind in ("weight", "bias")
    )
    return replace(block, mixers=(replace(at, fused_qkv=True, weights=weights),))


def plan_numerics(plan: Plan, how: RunConfig) -> RunConfig:
    """dropout_selective_checkpoint is on unless whole layers are recomputed
    (model/modeling_internlm.py:83).
    """
    selective = plan.recompute.mode is not RecomputeMode.FULL
    return replace(how, options=frozenset({SELECTIVE}) if selective else frozenset())


def internevo_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What is not modelled of it."""
    own = plan.precision
    rules: list[tuple[str, object, bool, str, str]] = [
        ("precision.parameters", own.parameters.name, own.master_weights is None, "is not how InternEvo trains, which keeps fp32 copies of 16 bits", "--precision bf16-master"),
        ("model", spec.name, _has_foreign_layers(spec), "is not built of InternLM's layers, which alone are modelled of InternEvo", "engine deepspeed"),
        ("model", spec.name, spec.head.tied, "ties embeddings and head, which InternEvo does not", "engine deepspeed"),
        ("dropout", plan.dropout, plan.dropout > 0, "is not modelled there", "leave it out"),
        ("adapter", "lora", plan.adapter is not None, "is not modelled there", "engine transformers"),
        ("quantization.weights", None, plan.quantization is not None, "is not modelled there", "engine transformers"),
    ]  # fmt: skip
    return [
        Problem(field=field, value=value, reason=reason, hint=hint)
        for field, value, holds, reason, hint in rules
        if holds
    ]


def _has_foreign_layers(spec: ModelSpec) -> bool:
    blocks = spec.blocks()
    return (
        bool(spec.towers) or len(spec.stacks) != 1 or not all(_is_internlm_block(block) for block in blocks)
    )


def _is_internlm_block(block: Block) -> bool:
    at, ff = block.mixers[0], block.feed_forward
    if block.kind != "llama" or not isinstance(at, Attention) or not isinstance(ff, Dense):
        return False
    norms = all(norm.kind is NormKind.RMS for norm in block.norms)
    return (
        at.heads == at.kv_heads
        and at.qk_norm is None
        and ff.gated
        and norms
        and block.arrangement is Arrangement.PRE
    )


CODE = ModelCode(
    forward=internlm_block_forward, embed=internlm_embeddings, head=internlm_logits, loss=inplace_cross_entropy, loss_input=loss_input, problems=internevo_problems, axes=whole_axes, end_axes=whole_ends,
    block_numerics=lambda *given: given[-1], normalise=mixed_fused_rms_norm, built=internlm_spec, plan_numerics=plan_numerics,
)  # fmt: skip
