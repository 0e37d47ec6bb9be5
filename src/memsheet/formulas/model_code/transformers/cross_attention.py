"""T5's blocks as the transformers library runs them (5.23, modeling_t5.py), written over shape-only tensors:
an encoder's, a decoder's with attention over what the encoder made, and what lies between the two stacks.

Axes as in ``blocks.py``; as many tokens on either side. ``f`` between the stacks is the vocabulary.
"""

from __future__ import annotations

from memsheet.arith import Count, where
from memsheet.formulas.model_code.shared_tables import LetGo
from memsheet.formulas.model_code.transformers.chosen_kernels import BIAS_ALIGNMENT
from memsheet.formulas.model_code.transformers.families import BRIDGE, LAST, is_t5
from memsheet.formulas.model_code.transformers.feed_forward import ACTIVATIONS
from memsheet.formulas.model_code.transformers.norms import apply_norm
from memsheet.formulas.numerics import AttentionKernel, RunConfig, record_linear
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.formulas.tapes.graph import Grad, Leaf, Node, Pass, Tensor
from memsheet.formulas.tapes.kernel_scratch import efficient_backward_bytes, efficient_forward_bytes
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.frozen import replace
from memsheet.plan.dtypes import BOOL, FP32, INT64, DType
from memsheet.plan.model import (
    Attention,
    Block,
    CrossAttention,
    Dense,
    ModelSpec,
    NormKind,
    Run,
    Stack,
    Weight,
)
from memsheet.plan.plan import AttentionKind, Plan, RecomputeMode
from memsheet.plan.workload import PassShape
from memsheet.sheet import Component

TWO = 2
STREAM: Shape = ("b", "s", "h")
HEADS: Shape = ("b", "a", "s", "d")
SCORES: Shape = ("b", "a", "s", "s")
BIAS: Shape = (1, "a", "s", "s")


def two_stacks(spec: ModelSpec) -> ModelSpec:
    """An encoder-decoder as one row of layers: the encoder's, its last norm and the decoder's look-ups, the
    decoder's.
    """
    encoder, decoder = (replace(stack, runs=_mark_last_layer(stack)) for stack in spec.stacks)
    table = Dense(path="", intermediate=spec.vocab, activation="", gated=False, weights=())
    block = encoder.runs[0].pattern[0]
    between = replace(
        block,
        kind=f"{spec.model_type}{BRIDGE}",
        norms=encoder.final_norms,
        feed_forward=table,
        mixers=(_weightless_attention(block),),
    )
    bridge = Stack(
        path=encoder.final_path, hidden=spec.hidden, runs=(Run(pattern=(between,), count=1),), role="bridge"
    )
    return replace(spec, stacks=(replace(encoder, final_norms=()), bridge, decoder))


def _weightless_attention(block: Block) -> Attention:
    at = block.mixers[0]
    assert isinstance(at, Attention)
    return replace(at, weights=())


def _mark_last_layer(stack: Stack) -> tuple[Run, ...]:
    """The runs with the last layer by itself."""
    *before, run = stack.runs
    (block,) = run.pattern
    end = Run(pattern=(replace(block, kind=block.kind + LAST),), count=1)
    return (*before, *((replace(run, count=run.count - 1),) if run.count > 1 else ()), end)


def t5_block(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """Two or three sublayers. The probabilities of one go by a name until the next attention is done, biases
    until the block is (modeling_t5.py:450-509).
    """
    if block.kind.endswith(BRIDGE):
        return _encoder_decoder_bridge(r, x, block, how)
    last = block.kind.endswith(LAST)
    at, *others = block.mixers
    assert isinstance(at, Attention)
    biases = [_position_bias(r, at, how, last=last)]
    x, _probabilities = _self_sublayer(r, x, block, at, biases[0], how)
    for cross in others:
        assert isinstance(cross, CrossAttention)
        biases.append(_zero_cross_bias(r, at, cross, how, last=last))
        x, _probabilities = _cross_sublayer(r, x, block, cross, biases[-1], how, last=last)
    return _feed_forward(r, x, block, how)


# ---- sublayers ---------------------------------------------------------------------------------------------


def _self_sublayer(
    r: Recorder, x: Tensor, block: Block, at: Attention, bias: Tensor, how: RunConfig
) -> tuple[Tensor, Tensor | None]:
    normed = apply_norm(r, x, block.norms[0], how)
    out, probabilities = _t5_attention(r, normed, normed, at, bias, how)
    return r.add(
        x, r.dropout(out, at.path + "/residual_dropout", active=how.dropout), "/residual"
    ), probabilities


def _cross_sublayer(
    r: Recorder, x: Tensor, block: Block, cross: CrossAttention, zeros: Tensor, how: RunConfig, *, last: bool
) -> tuple[Tensor, Tensor | None]:
    """Keys and values of what the encoder made."""
    normed = apply_norm(r, x, block.norms[1], how)
    memory = r.view(_stack_shared_tensor(STREAM, how.stream, "encoder/memory", last=last, needs=True), STREAM)
    out, probabilities = _t5_attention(r, normed, memory, cross, zeros, how)
    return r.add(
        x, r.dropout(out, cross.path + "/residual_dropout", active=how.dropout), "/residual"
    ), probabilities


def _feed_forward(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """Dropout before the last layer, which gets its input in its own dtype, whatever autocast makes of it
    (:85-90).
    """
    ff = block.feed_forward
    assert isinstance(ff, Dense)
    normed = apply_norm(r, x, block.norms[-1], how)
    out = _t5_feed_forward(r, normed, ff, how)
    return r.add(x, r.dropout(out, ff.path + "/residual_dropout", active=how.dropout), "/residual")


def _t5_feed_forward(r: Recorder, x: Tensor, ff: Dense, how: RunConfig) -> Tensor:
    weights = {w.path: w for w in ff.weights}
    first, *second, last = (w.path.removesuffix(".weight") for w in ff.weights)
    inner = ACTIVATIONS[ff.activation](
        r, record_linear(r, x, weights, first, "f", "h", how), ff.path + "/activation"
    )
    if second:
        gate = inner
        inner = r.mul(gate, record_linear(r, x, weights, second[0], "f", "h", how), ff.path + "/product")
    inner = r.dropout(inner, ff.path + "/dropout", active=how.dropout)
    return record_linear(r, r.cast(inner, how.parameters, ff.path + "/cast"), weights, last, "h", "f", how)


# ---- attention ---------------------------------------------------------------------------------------------


def _t5_attention(
    r: Recorder, x: Tensor, memory: Tensor, at: Attention | CrossAttention, bias: Tensor, how: RunConfig
) -> tuple[Tensor, Tensor | None]:
    """Scores that are not scaled but multiplied by one, their sum with the bias, then with a mask
    (:145-175).
    """
    path, weights = at.path, {w.path: w for w in at.weights}
    q, k, v = (
        _project_to_heads(r, source, name, weights, at.path, how)
        for source, name in ((x, "q"), (memory, "k"), (memory, "v"))
    )
    if how.attention is not AttentionKernel.EAGER:
        context = _biased_efficient_attention(r, q, k, v, _as_mask(r, at, bias), path, padded=how.mask)
        return record_linear(
            r, r.view(context, ("b", "s", "a·d")), weights, path + ".o", "h", "a·d", how
        ), None
    scores = r.scale(
        r.product(q, k, SCORES, path + "/scores", copies=(how.several, how.several)), path + "/scores"
    )
    scores = r.add(scores, bias, path + "/biased")
    if isinstance(at, Attention) and at.causal:
        scores = r.add(scores, Tensor(None, ("b", 1, "s", "s"), how.stream), path + "/masked")
    scores = _t5_softmax(r, scores, path)
    scores = r.dropout(scores, path + "/dropout", active=how.dropout)
    out = r.product(scores, v, HEADS, path + "/context", copies=(False, how.several))
    out = r.copy(out, ("b", "s", "a", "d"), path + "/context")
    return record_linear(r, r.view(out, ("b", "s", "a·d")), weights, path + ".o", "h", "a·d", how), scores


def _as_mask(r: Recorder, at: Attention | CrossAttention, bias: Tensor) -> Tensor:
    """The bias with what a causal mask leaves out, laid out anew; zeros are as they are
    (integrations/sdpa_attention.py:55-91).
    """
    if isinstance(at, CrossAttention):
        return bias
    if at.causal:
        dtype = bias.dtype
        chosen = r.tensor(at.path + "/causal_mask", ("s", "s"), BOOL)
        bias = r.apply(
            r.tensor(at.path + "/where", BIAS, dtype), (bias,), (chosen,), lambda _: [r.grad(BIAS, dtype)]
        )
    return r.copy(bias, BIAS, at.path + "/bias")


def _biased_efficient_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, path: str, *, padded: bool
) -> Tensor:
    """Torch's memory-efficient kernel, which makes a gradient of the mask for every sequence. ``padded``: its
    rows are copied out to a multiple of eight elements (attention.cpp preprocess_mask, pad_bias).
    """
    mask = r.autocast(mask, path + "/bias")
    mask = _pad_bias_rows(r, mask, path) if padded else mask
    shape, dtype = mask.shape, mask.dtype
    wide = r.apply(Tensor(mask.storage, SCORES, dtype), (mask,), (), lambda _: [r.grad(shape, dtype)])
    out = r.tensor(path + "/context", HEADS, q.dtype)
    lse, seed = r.tensor(path + "/logsumexp", ("b", "a", "s32"), FP32), r.tensor(path + "/rng", (2,), INT64)
    r.kernel_scratch(efficient_forward_bytes, ("b", "s", "a", q.shape[3], v.shape[3]), q.dtype)
    inside = (efficient_backward_bytes, ("b", "s", "a", k.shape[2], q.shape[3], v.shape[3]))
    r.custom(path, (q, k, v, wide), out, (q, k, v, out, lse, seed, mask), inside=inside)
    return r.view(out, ("b", "s", "a", "d"))


def _pad_bias_rows(r: Recorder, mask: Tensor, path: str) -> Tensor:
    """A view of longer rows, whose gradient is that of the rows first."""
    dtype, rows = mask.dtype, (*BIAS[:-1], "s8")

    def backward(_: Grad) -> list[Grad | None]:
        longer = r.grad(rows, dtype)
        grad = r.grad(BIAS, dtype)
        del longer
        return [grad]

    made = r.apply(r.tensor(path + "/padded_bias", rows, dtype), (mask,), (), backward)
    return Tensor(made.storage, BIAS, dtype, made.node, made.port)


def _project_to_heads(
    r: Recorder, x: Tensor, name: str, weights: dict[str, Weight], path: str, how: RunConfig
) -> Tensor:
    y = record_linear(r, x, weights, f"{path}.{name}", "a·d", "h", how)
    return r.transposed_view(r.view(y, ("b", "s", "a", "d")), HEADS)


def _t5_softmax(r: Recorder, x: Tensor, path: str) -> Tensor:
    wide = r.cast(x, FP32, path + "/fp32") if r.widens else x
    return r.unary(wide, path + "/softmax", saves="output")


def _relative_bias_table(at: Attention) -> Weight | None:
    """Of biases by distance, which a stack's first layer has."""
    return next((w for w in at.weights if "relative_attention_bias" in w.path), None)


def _position_bias(r: Recorder, at: Attention, how: RunConfig, *, last: bool) -> Tensor:
    """The first layer looks its bias up, the others get that (:335-348). Run again, it gets none and looks up
    another.
    """
    table, again = _relative_bias_table(at), r.pass_ is Pass.RECOMPUTED
    if table is None:
        return _stack_shared_tensor(
            BIAS, how.parameters, at.path + "/position_bias", last=last, needs=how.trains
        )
    bias = (
        r.tensor(at.path + "/position_bias", BIAS, how.parameters)
        if again
        else Tensor(None, BIAS, how.parameters)
    )
    if not how.trains:
        return bias
    shape: Shape = (table.shape[0], "a")
    weight = r.parameter(table.path, shape, how.parameters)
    buckets = (r.tensor(at.path + "/buckets", ("s", "s"), INT64),) if again else ()  # of each distance (:274)
    return r.apply(bias, (weight,), buckets, lambda _: [r.grad(shape, how.parameters)])


def _zero_cross_bias(
    r: Recorder, at: Attention, cross: CrossAttention, how: RunConfig, *, last: bool
) -> Tensor:
    """The bias beside the encoder's tokens, which checkpoints ask for a gradient all the same (:338-344). The
    first layer makes it, and again where it runs again; the gradient is still that of the first.
    """
    dtype, path = how.autocast or how.parameters, cross.path + "/position_bias"
    zeros = _stack_shared_tensor(BIAS, dtype, path, last=last, needs=r.pass_ is not Pass.PLAIN)
    made = r.pass_ is Pass.RECOMPUTED and _relative_bias_table(at) is not None
    return replace(zeros, storage=r.storage(path, BIAS, dtype)) if made else zeros


def _stack_shared_tensor(shape: Shape, dtype: DType, path: str, *, last: bool, needs: bool) -> Tensor:
    """What all layers of a stack take. Its gradient stays from the last layer's backward on, and the others
    add to it in place.
    """
    if not needs:
        return Tensor(None, shape, dtype)
    return Tensor(
        None, shape, dtype, Leaf(path, shape, dtype) if last else Node(0, "", (), [], [], lambda _: [])
    )


# ---- between the stacks ------------------------------------------------------------------------------------


def _encoder_decoder_bridge(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """The encoder's last norm and dropout, what they make, which all layers of the decoder take, and the
    decoder's look-ups.
    """
    memory = r.dropout(apply_norm(r, x, block.norms[0], how), "/memory_dropout", active=how.dropout)
    table: Shape = ("f", "h")
    node = Node(0, "", (), [], [], lambda _: []) if how.trains else None
    weight = Tensor(None, table, how.parameters, node)
    if (
        how.trains and r.compute is None
    ):  # the head's gradient is a transposed view there: the sum of the two is a third tensor
        weight = r.apply(
            Tensor(None, table, how.parameters),
            (weight,),
            (),
            lambda _: [r.grad(table, how.parameters, "shared")],
        )
    found = r.tensor("/look_up", STREAM, how.parameters)
    y = r.apply(found, (weight,), (), lambda _: [r.grad(table, how.parameters, "shared") if node else None])
    return r.dropout(_attach_encoder_memory(r, y, memory), "/embeddings_dropout", active=how.dropout)


def _attach_encoder_memory(r: Recorder, y: Tensor, memory: Tensor) -> Tensor:
    """``y``, which goes on with the encoder's ``memory``: the decoder's layers take both, and hold on to that
    until backward has passed them.
    """
    dtype = memory.dtype
    return r.apply(
        Tensor(y.storage, y.shape, y.dtype), (y, memory), (memory,), lambda g: [g, Grad(None, STREAM, dtype)]
    )


def named_biases(spec: ModelSpec, plan: Plan, shape: PassShape, how: RunConfig, *, kept: bool) -> list[Count]:
    """What every layer of a decoder adds to its scores: the first one's look-ups, and zeros beside the
    encoder's tokens; with dropout the states from before it. Checkpoints hold on to the biases, and to those
    that the encoder's layers add.
    """
    own, zeros = _bias_sizes(spec, shape, how)
    if kept:
        return [own, own, zeros]
    looked_up = how.parameters.nbytes(shape.sequences * shape.tokens * spec.hidden)
    return [
        own,
        zeros - _saved_zeros(plan, shape, zeros),
        *([looked_up] if plan.dropout else []),
    ]


def saved_biases(spec: ModelSpec, plan: Plan, shape: PassShape, how: RunConfig) -> list[tuple[str, Count]]:
    """Which bucket each distance is in, for both stacks' tables; the zeros, which kernels save."""
    tables = sum(stack.role in ("encoder", "decoder") for stack in spec.stacks) if how.trains else 0
    buckets = ("relative_attention_bias", tables * INT64.nbytes(shape.tokens * shape.tokens))
    return [
        buckets,
        ("position_bias", _saved_zeros(plan, shape, _bias_sizes(spec, shape, how)[1])),
    ]


def _saved_zeros(plan: Plan, shape: PassShape, zeros: Count) -> Count:
    """Bytes of the zeros beside the encoder's tokens, where kernels save them and no copy of longer rows."""
    if plan.attention is not AttentionKind.SDPA:
        return 0
    return where(shape.tokens % BIAS_ALIGNMENT == 0, zeros, 0)


def _bias_sizes(spec: ModelSpec, shape: PassShape, how: RunConfig) -> tuple[Count, Count]:
    """Of the looked-up bias and of the zeros, which come in the dtype of queries."""
    at = spec.stacks[-1].runs[0].pattern[0].mixers[0]
    assert isinstance(at, Attention)
    elements = at.heads * shape.tokens * shape.tokens
    return how.parameters.nbytes(elements), (how.autocast or how.parameters).nbytes(elements)


def let_go(spec: ModelSpec, plan: Plan, how: RunConfig) -> LetGo:
    """What a decoder's layers have shared: gradients, and what checkpoints held on to. Zeros that were asked
    for a gradient, and that gradient, stay as long as the graph whose leaf they are.
    """
    if len(spec.stacks) < TWO:
        return LetGo()
    decoder = spec.stacks[-1]
    at = decoder.runs[0].pattern[0].mixers[0]
    assert isinstance(at, Attention)
    own, zeros = _bias_sizes(spec, plan.training.shape, how)
    tokens = plan.training.microbatch * plan.training.seq_len
    again = plan.recompute.mode is RecomputeMode.FULL
    kept, shared, place = Component.SAVED_ACTIVATIONS, Component.GRADIENTS, f"{decoder.path}.*"
    held = [((kept, "position_bias"), own)] if again else []
    if again and plan.attention is AttentionKind.EAGER:
        held.append(((kept, "model/causal_mask"), how.stream.nbytes(tokens * plan.training.seq_len)))
    biases = [((shared, f"{place}.{at.path}/position_bias"), own)] if how.trains else []
    memory = ((shared, f"{place}.encoder/memory"), how.stream.nbytes(tokens * spec.hidden))
    looked_up = (
        [((shared, f"{spec.stacks[0].path}.*.{at.path}/position_bias"), -own)] if how.trains else []
    )  # by the encoder's first layer
    end = [*held, *([((kept, "position_bias"), zeros)] if again and how.trains else []), *looked_up]
    return LetGo(
        masks=BytesByPath.of(held),
        gradients=BytesByPath.of(biases),
        after=BytesByPath.of([memory]),
        end=BytesByPath.of(end),
    )


def looked_up_again(spec: ModelSpec, plan: Plan, how: RunConfig) -> BytesByPath:
    """What checkpoints of the later layers of a stack held on to, and is gone when backward comes to its
    first, which makes its own.
    """
    if len(spec.stacks) < TWO or not is_t5(spec.stacks[-1].runs[0].pattern[0].kind):
        return EMPTY  # stacks of another kind, a tower and a decoder say, look nothing up
    if plan.recompute.mode is not RecomputeMode.FULL or plan.recompute.stretched or plan.recompute.by_layers:
        return EMPTY
    return BytesByPath.of(
        [((Component.SAVED_ACTIVATIONS, "position_bias"), _bias_sizes(spec, plan.training.shape, how)[0])]
    )


def t5_norm(spec: ModelSpec) -> ModelSpec:
    """The model with its norms of the kind that T5's code computes."""

    def norms(block: Block) -> Block:
        return replace(block, norms=tuple(replace(norm, kind=NormKind.RMS_UNCAST) for norm in block.norms))

    stacks = tuple(
        replace(
            stack,
            runs=tuple(replace(run, pattern=tuple(map(norms, run.pattern))) for run in stack.runs),
            final_norms=tuple(replace(norm, kind=NormKind.RMS_UNCAST) for norm in stack.final_norms),
        )
        for stack in spec.stacks
    )
    return replace(spec, stacks=stacks)
