"""Megatron-Core's GPT layers over TransformerEngine, operation by operation.

Read at Megatron-LM 23e00ed0963c35382dfe8a5a94fb3cda4d21e133 (core 0.14) and TransformerEngine c188b533
(2.11): megatron/core/transformer (attention.py, multi_latent_attention.py, mlp.py, transformer_layer.py),
transformer_engine/pytorch/module. Weights' gradients are added to a buffer by the products themselves
(gradient_accumulation_fusion), so backward makes none.

Axes: ``b`` sequences, ``s`` positions of a context-parallel rank, ``n`` those of one rank outside tensor
parallelism (``s`` over ``tp`` with sequence_parallel), ``h`` hidden, ``a`` heads, ``k`` groups of keys and
values, ``f`` feed-forward width, each a rank's share.
"""

from __future__ import annotations

from memsheet.arith import Count, agreed, ceil_div, maximum
from memsheet.engines.megatron.layers.attention import (
    GATHERED,
    RING,
    fused_qkv_attention,
    latent_attention,
)
from memsheet.engines.megatron.layers.experts import expert_axes, experts_layer
from memsheet.engines.megatron.layers.graphs import captured_graphs
from memsheet.engines.megatron.layers.loss import loss_input, vocab_parallel_logits, vocabulary_loss
from memsheet.engines.megatron.layers.modules import (
    FP8_PRODUCTS,
    STREAM,
    normed_column,
    rms_norm_output,
    row_parallel_linear,
    swiglu,
)
from memsheet.engines.megatron.layers.plan_problems import megatron_problems
from memsheet.formulas.model_code import ModelCode
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.formulas.tapes.evaluate import with_products
from memsheet.formulas.tapes.graph import GradientSum, Leaf, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.frozen import replace
from memsheet.plan.dtypes import BF16, BOOL, FP32, INT64, DType
from memsheet.plan.model import (
    Attention,
    Block,
    Dense,
    Embeddings,
    LatentAttention,
    ModelSpec,
    Moe,
)
from memsheet.plan.plan import AttentionKind, ContextParallel, Plan
from memsheet.plan.workload import PassShape
from memsheet.references import MEGATRON, formula
from memsheet.sheet import Component


def transformer_layer_forward(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """One layer (transformer_layer.py:430-560): attention and feed-forward, each added to the stream."""
    at, ff = block.mixers[0], block.feed_forward
    latent = isinstance(at, LatentAttention)
    mixed = latent_attention(r, x, at, how) if latent else fused_qkv_attention(r, x, at, how)  # type: ignore[arg-type]
    x = r.add(r.dropout(mixed, "/attention_dropout", active=how.dropout), x, "/residual")
    del mixed
    if isinstance(ff, Moe):
        return r.add(
            r.dropout(experts_layer(r, x, ff, how), "/mlp_dropout", active=how.dropout), x, "/residual"
        )
    assert isinstance(ff, Dense)
    fed = (
        r.again(lambda y: feed_forward(r, y, ff, how), x)
        if "mlp" in how.again
        else feed_forward(r, x, ff, how)
    )
    return r.add(r.dropout(fed, "/mlp_dropout", active=how.dropout), x, "/residual")


def feed_forward(r: Recorder, x: Tensor, ff: Dense, how: RunConfig) -> Tensor:
    """Norm and first product in one module, activation, second product (mlp.py:150-245)."""
    inner = normed_column(r, x, "2·f" if ff.gated else "f", f"{ff.path}.linear_fc1", how)
    return row_parallel_linear(r, fused_mlp_activation(r, inner, ff), f"{ff.path}.linear_fc2", how)


def fused_mlp_activation(r: Recorder, x: Tensor, ff: Dense) -> Tensor:
    """Fused: SwiGLU and GELU each save what they are given (fusions/fused_bias_swiglu.py,
    fused_bias_gelu.py).
    """
    if ff.gated:
        return swiglu(r, x, (*x.shape[:-1], "f"), f"{ff.path}/activation")
    return r.unary(x, f"{ff.path}/activation", saves="input")


def vocab_parallel_embedding(
    r: Recorder, embeddings: Embeddings, how: RunConfig, _: GradientSum
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Rows of a rank's part of the vocabulary, summed over ranks (tensor_parallel/layers.py:240-300,
    language_model_embedding.py:95-145).

    The table's gradient is a tensor of its own, which is added to the buffer and let go.
    """
    first, *others = embeddings.weights
    name, dtype = first.path.removesuffix(".weight"), how.parameters
    table = r.parameter(first.path, ("V", "h"), dtype, trains=how.trains)
    whole = ("b", "s", "h") if how.scattered else STREAM

    def look_up() -> Tensor:
        return r.apply(
            r.tensor(f"{name}/output", whole, dtype), (table,), (), lambda _grad: [r.grad(("V", "h"), dtype)]
        )

    if how.tensor_parallel:
        mask, rows = r.tensor(f"{name}/mask", ("b", "s"), BOOL), r.tensor(f"{name}/rows", ("b", "s"), INT64)
        x = look_up()
        del mask, rows
        if how.scattered:
            x = r.copy(x, whole, f"{name}/transposed") if how.several else x
            back = x.shape
            x = r.apply(
                r.tensor(f"{name}/scattered", STREAM, dtype), (x,), (), lambda _: [r.grad(back, dtype)]
            )
    else:
        x = look_up()
    for other in others:  # learned positions: looked up for each sequence, and added
        path = other.path.removesuffix(".weight")
        shape = tuple(other.shape)
        positions = Tensor(None, shape, dtype, Leaf(path, shape, dtype) if how.trains else None)
        made = r.apply(
            r.tensor(f"{path}/output", STREAM, dtype),
            (positions,),
            (),
            lambda _, shape=shape: [r.grad(shape, dtype)],
        )
        x = r.add(x, made, "embeddings/sum")
    return r.dropout(x, "embeddings/dropout", active=how.dropout), ()


def block_numerics(block: Block, plan: Plan, _: PassShape, how: RunConfig) -> RunConfig:
    """What depends on a block: whether queries of a rank belong to one group of keys, whose reshape is a
    view, and whether the kernel takes sequences in front.
    """
    at = block.mixers[0]
    groups = ceil_div(at.kv_heads, plan.mesh.tp) if isinstance(at, Attention) else 2
    sinks = isinstance(at, Attention) and at.sinks  # cuDNN's kernel alone has them (attention/utils.py:1122)
    return replace(how, one_group=bool(agreed(groups == 1)), transposes=how.transposes and not sinks)


def _kernel_options(plan: Plan) -> frozenset[str]:
    shared = (
        {ContextParallel.RING: RING, ContextParallel.ALL_GATHER: GATHERED}.get(plan.context_parallel)
        if plan.context_parallel
        else None
    )
    return frozenset(filter(None, (FP8_PRODUCTS if plan.fp8 is not None else None, shared)))


def _non_gemm_dtype(dtype: DType) -> DType:
    """What is computed with where only products are in eight bits."""
    return BF16 if dtype.bits < BF16.bits else dtype


def _plan_numerics(plan: Plan, how: RunConfig) -> RunConfig:
    routing = plan.routing
    return replace(
        how,
        scattered=plan.sequence_parallel,
        several=bool(agreed(plan.training.microbatch > 1)),
        transposes=plan.attention is AttentionKind.FLASH,
        options=_kernel_options(plan),
        parameters=_non_gemm_dtype(how.parameters),
        stream=_non_gemm_dtype(how.stream),
        exchanges=plan.context_parallel is ContextParallel.ALL_TO_ALL,
        capacity=bool(routing and routing.capacity_factor is not None),
        shares_experts=bool(agreed(plan.mesh.ep > 1)),
        splits_experts=bool(agreed(plan.mesh.etp > 1)),
    )


@formula(
    cites=MEGATRON,
    at="attention.py, mlp.py: shapes of a layer's tensors on one tensor- and context-parallel rank",
)
def layer_axis_sizes(block: Block, plan: Plan, shape: PassShape) -> dict[str, Count]:
    """Values of the axes that a block's tensors are named by."""
    at, ff, mesh = block.mixers[0], block.feed_forward, plan.mesh
    assert isinstance(at, Attention | LatentAttention)
    assert isinstance(ff, Dense | Moe)
    dense = ff if isinstance(ff, Dense) else ff.shared
    tokens = _token_axis_sizes(plan, shape)
    groups, width = (
        (0, at.v_head_dim)
        if isinstance(at, LatentAttention)
        else (maximum(1, ceil_div(at.kv_heads, mesh.tp)), at.head_dim)
    )
    found = {
        **tokens, "h": block.hidden, "a": ceil_div(at.heads, mesh.tp), "f": ceil_div(dense.intermediate if dense else 0, mesh.tp),
        "k": groups, "d": width,
        **(expert_axes(ff, plan, shape) if isinstance(ff, Moe) else {}),
    }  # fmt: skip
    if isinstance(at, LatentAttention):
        query = at.qk_nope_head_dim + at.qk_rope_head_dim
        found |= {
            "qr": at.q_lora_rank or 0, "kr": at.kv_lora_rank, "kr+dr": at.kv_lora_rank + at.qk_rope_head_dim, "dr": at.qk_rope_head_dim,
            "dq": query, "dv": at.v_head_dim, "a·dq": found["a"] * query, "a·(dn+dv)": found["a"] * (at.qk_nope_head_dim + at.v_head_dim),
        }  # fmt: skip
    return with_products({**found, "r": plan.adapter.rank if plan.adapter else 0})


def _token_axis_sizes(plan: Plan, shape: PassShape) -> dict[str, Count]:
    positions = ceil_div(shape.tokens, plan.mesh.cp)
    return {
        "c": plan.mesh.cp,
        "c-1": plan.mesh.cp - 1,
        "b": shape.sequences,
        "s": positions,
        "n": ceil_div(positions, plan.mesh.tp) if plan.sequence_parallel else positions,
    }


@formula(cites=MEGATRON, at="tensor_parallel/layers.py: a rank's part of the padded vocabulary")
def end_axes(spec: ModelSpec, plan: Plan, shape: PassShape) -> dict[str, Count]:
    """Values of the axes of embeddings, head and loss."""
    multiple = plan.vocab_multiple
    padded = ceil_div(spec.vocab, multiple) * multiple
    return {
        **_token_axis_sizes(plan, shape),
        "h": spec.hidden,
        "V": ceil_div(padded, plan.mesh.tp),
        "V0": spec.vocab,
    }


def rotary_angle_bytes(spec: ModelSpec, plan: Plan, shape: PassShape, _: RunConfig) -> BytesByPath:
    """Rotary angles, made once for a micro-batch in fp32 (rotary_pos_embedding.py:100-150)."""
    blocks = spec.blocks()
    mixers = [m for block in blocks for m in block.mixers]
    widths = {
        m.qk_rope_head_dim if isinstance(m, LatentAttention) else m.rotary_dim
        for m in mixers
        if isinstance(m, Attention | LatentAttention)
    }
    size = sum(FP32.nbytes(_token_axis_sizes(plan, shape)["s"] * width) for width in sorted(widths) if width)
    return BytesByPath.of([((Component.SAVED_ACTIVATIONS, "rotary_pos_emb"), size)])


def sink_notes(spec: ModelSpec) -> tuple[str, ...]:
    """What a reader should know of layers that the release read here does not have."""
    sinks = any(isinstance(mixer, Attention) and mixer.sinks for mixer in spec.mixers())
    return (SINKS_SINCE,) if sinks else ()


SINKS_SINCE = (
    "sinks, and experts with biases and a clamp, are as Megatron-Core 0.16 runs them, with its fused "
    "activation (bias_activation_fusion, which Megatron-Bridge sets); written out, it keeps more"
)


CODE = ModelCode(
    forward=transformer_layer_forward, embed=vocab_parallel_embedding, head=vocab_parallel_logits, loss=vocabulary_loss, loss_input=loss_input, problems=megatron_problems, block_numerics=block_numerics,
    plan_numerics=_plan_numerics, axes=layer_axis_sizes, end_axes=end_axes, shared=rotary_angle_bytes, captured=captured_graphs, normalise=lambda r, x, one, _: rms_norm_output(r, x, one.path), notes=sink_notes,
    stream=STREAM,
)  # fmt: skip
