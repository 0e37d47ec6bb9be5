"""llm-foundry's MPT (5f39606): blocks with joined projections, flash attention on sequences without padding,
low-precision layer norms.

Built as MPTConfig's defaults say: biases in linear layers and norms, learned positions
(configuration_mpt.py). Those of a checkpoint that transformers reads have neither, and their numbers are
small beside the matrices.
"""

from __future__ import annotations

from memsheet.errors import Problem
from memsheet.formulas.model_code import ModelCode
from memsheet.formulas.model_code.shapes import whole_axes, whole_ends
from memsheet.formulas.model_code.transformers import ends
from memsheet.formulas.model_code.transformers.norms import fused_layer_norm
from memsheet.formulas.numerics import RunConfig, record_parameter
from memsheet.formulas.tapes.graph import GradientSum, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32, INT64, DType
from memsheet.plan.model import (
    Attention,
    Block,
    Dense,
    Embeddings,
    Head,
    ModelSpec,
    Norm,
    Role,
    Stack,
    Weight,
)
from memsheet.plan.plan import Loss, Plan

ROWS: Shape = ("b", "s", "a·d")


def mpt_block_forward(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """MPTBlock.forward (layers/blocks.py:142-200)."""
    (at,), ff, norms = block.mixers, block.feed_forward, block.norms
    assert isinstance(at, Attention)
    assert isinstance(ff, Dense)
    a = low_precision_layer_norm(r, x, norms[0], how)
    b = unpadded_attention(r, a, at, how)
    x = r.add(x, b, "/residual")
    m = low_precision_layer_norm(r, x, norms[1], how)
    n = feed_forward(r, m, ff, how)
    return r.add(x, n, "/residual")


def low_precision_layer_norm(r: Recorder, x: Tensor, norm: Norm, how: RunConfig) -> Tensor:
    """LPLayerNorm.forward (layers/norm.py:47-67): in the dtype of the stream."""
    return fused_layer_norm(
        r, x, tuple(record_parameter(r, w, how, norm.path) for w in norm.weights), norm.path
    )


def _biased_linear(
    r: Recorder, x: Tensor, weights: dict[str, Weight], shape: tuple[Axis, Axis], how: RunConfig
) -> Tensor:
    """A linear layer and its bias, if it has one; ``weights``: its own."""
    path = next(iter(weights)).removesuffix(".weight")
    bias = weights.get(path + ".bias")
    low = record_parameter(r, bias, how, f"{path}.bias") if bias else None
    return r.linear(x, r.parameter(path, shape, how.parameters, trains=how.trains), shape[0], path, bias=low)


def _nth_linear_weights(weights: tuple[Weight, ...], number: int) -> dict[str, Weight]:
    """The tensors of a linear layer, by its place among those of its module."""
    names = [w.path.removesuffix(".weight") for w in weights if w.path.endswith(".weight")]
    return {w.path: w for w in weights if w.path.rpartition(".")[0] == names[number]}


def unpadded_attention(r: Recorder, x: Tensor, at: Attention, how: RunConfig) -> Tensor:
    """GroupedQueryAttention.forward and flash_attn_fn (layers/attention.py): rows without padding are picked
    out, and put back.
    """
    q, k, v = r.split(
        _biased_linear(r, x, _nth_linear_weights(at.weights, 0), ("(a+2k)·d", "h"), how),
        (ROWS, ("b", "s", "k·d"), ("b", "s", "k·d")),
    )
    picked = [_index_rows(r, part, f"{at.path}/{name}") for name, part in zip("qkv", (q, k, v), strict=True)]
    out = r.tensor(f"{at.path}/context", ROWS, x.dtype)
    lse, seed = (
        r.tensor(f"{at.path}/logsumexp", ("b", "a", "s"), FP32),
        r.tensor(f"{at.path}/rng", (2,), INT64),
    )
    out = r.custom(at.path, (picked[0], picked[1], picked[2]), out, (*picked, out, lse, seed))
    picked.clear()
    out = _index_rows(r, out, f"{at.path}/padded")
    del q, k, v
    return _biased_linear(r, out, _nth_linear_weights(at.weights, 1), ("h", "a·d"), how)


def _index_rows(r: Recorder, x: Tensor, path: str) -> Tensor:
    """Rows gathered or scattered by their indices: a copy, and one for the gradient."""
    shape, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, shape, dtype), (x,), (), lambda _: [r.grad(shape, dtype)])


def feed_forward(r: Recorder, x: Tensor, ff: Dense, how: RunConfig) -> Tensor:
    """MPTMLP.forward (layers/ffn.py): down(gelu(up(x)))."""
    x = _biased_linear(r, x, _nth_linear_weights(ff.weights, 0), ("f", "h"), how)
    x = r.unary(x, f"{ff.path}/activation", saves="input")
    return _biased_linear(r, x, _nth_linear_weights(ff.weights, 1), ("h", "f"), how)


# ---- the two ends ------------------------------------------------------------------------------------------


def token_position_embeddings(
    r: Recorder, embeddings: Embeddings, how: RunConfig, tied: GradientSum
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Tokens and, for each sequence, positions (mpt/modeling_mpt.py:525-580); the sum takes over the name of
    the first.
    """
    x, _ = ends.input_embeddings(r, embeddings, how, tied)
    return x, ()


def mpt_logits(r: Recorder, x: Tensor, head: Head, how: RunConfig, _: Loss, table: str) -> Tensor:
    return ends.project_to_vocabulary(r, x, head, how, table)


def loss_input(how: RunConfig, _: Loss) -> tuple[Shape, DType, str]:
    return ("b", "s", "V0"), how.parameters, "lm_head/output"


def flash_attn_cross_entropy(r: Recorder, x: Tensor, _: RunConfig, loss: Loss, __: str) -> Tensor:
    """flash-attn's cross entropy, which keeps logits and a statistic of each row, and no copy in fp32 (2.5.8,
    ops/triton/cross_entropy.py: 130-220); or torch's, raised to fp32 by autocast.
    """
    if loss is Loss.PLAIN:
        return ends.cross_entropy(r, x)
    shape, dtype = x.shape, x.dtype
    sums, labels = r.tensor("loss/logsumexp", ("b", "s"), FP32), r.tensor("loss/labels", ("b", "s"), INT64)
    rows = r.apply(
        r.tensor("loss/rows", ("b", "s"), FP32), (x,), (x, sums, labels), lambda _: [r.grad(shape, dtype)]
    )
    return r.apply(r.tensor("loss/value", (1,), FP32), (rows,), (), lambda _: [r.grad(("b", "s"), FP32)])


# ---- the model as it is built ------------------------------------------------------------------------------


def mpt_spec(spec: ModelSpec, _: Plan) -> ModelSpec:
    """With biases and a table of learned positions."""
    if _spec_block_kinds(spec) != {"mpt"}:
        return spec
    tables = spec.embeddings.weights
    positions = Weight(
        path="transformer.wpe.weight", shape=(spec.max_positions or 0, spec.hidden), role=Role.EMBEDDING
    )
    learned = (
        replace(spec.embeddings, weights=(*tables, positions))
        if spec.max_positions and len(tables) == 1
        else spec.embeddings
    )
    return replace(spec, embeddings=learned, stacks=tuple(_mpt_stack(stack) for stack in spec.stacks))


def _spec_block_kinds(spec: ModelSpec) -> set[str]:
    return {block.kind for block in spec.blocks()}


def _mpt_stack(stack: Stack) -> Stack:
    runs = tuple(
        replace(run, pattern=tuple(_mpt_block(block) for block in run.pattern)) for run in stack.runs
    )
    return replace(stack, runs=runs, final_norms=tuple(_biased_norm(norm) for norm in stack.final_norms))


def _mpt_block(block: Block) -> Block:
    mixers = tuple(
        replace(m, weights=_with_biases(m.weights), position_bias=False) if isinstance(m, Attention) else m
        for m in block.mixers
    )
    ff = block.feed_forward
    ff = replace(ff, weights=_with_biases(ff.weights)) if isinstance(ff, Dense) else ff
    return replace(
        block, mixers=mixers, feed_forward=ff, norms=tuple(_biased_norm(norm) for norm in block.norms)
    )


def _biased_norm(norm: Norm) -> Norm:
    return replace(norm, weights=_with_biases(norm.weights))


def _with_biases(weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
    if any(w.path.endswith(".bias") for w in weights):
        return weights
    return tuple(each for w in weights for each in (w, _bias_of_weight(w)))


def _bias_of_weight(weight: Weight) -> Weight:
    role = Role.NORM if weight.role is Role.NORM else Role.BIAS
    return Weight(path=weight.path.removesuffix(".weight") + ".bias", shape=weight.shape[:1], role=role)


def llm_foundry_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What is not modelled of it."""
    rules: list[tuple[str, object, bool, str, str]] = [
        ("model", spec.name, _spec_block_kinds(spec) != {"mpt"}, "is not built of MPT blocks, which alone are modelled of llm-foundry", "engine fsdp1"),
        ("model", spec.name, not spec.head.tied, "does not tie embeddings and head, which is not modelled of llm-foundry", "engine fsdp1"),
        ("dropout", plan.dropout, plan.dropout > 0, "is not modelled there", "leave it out"),
        ("adapter", "lora", plan.adapter is not None, "is not modelled there", "engine transformers"),
        ("quantization.weights", None, plan.quantization is not None, "is not modelled there", "engine transformers"),
    ]  # fmt: skip
    return [
        Problem(field=field, value=value, reason=reason, hint=hint)
        for field, value, holds, reason, hint in rules
        if holds
    ]


CODE = ModelCode(
    forward=mpt_block_forward, embed=token_position_embeddings, head=mpt_logits, loss=flash_attn_cross_entropy, loss_input=loss_input, problems=llm_foundry_problems, axes=whole_axes, end_axes=whole_ends,
    block_numerics=lambda *given: given[-1], normalise=low_precision_layer_norm, built=mpt_spec, positions_each=lambda _: True,
)  # fmt: skip
