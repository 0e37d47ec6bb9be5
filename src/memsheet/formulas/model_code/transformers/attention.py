"""Attention as the transformers library runs it, written over shape-only tensors.

Local variables stand for those of the library's own functions: what one of them still names is still there.
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.formulas.model_code.transformers.families import (
    EXCHANGED,
    RING,
    FamilyTraits,
    FusedQkvLayout,
    PartialRotary,
)
from memsheet.formulas.model_code.transformers.norms import apply_norm
from memsheet.formulas.model_code.transformers.rotary_positions import (
    apply_rotary_positions,
    scale_by_position,
)
from memsheet.formulas.numerics import AttentionKernel, RunConfig, record_linear
from memsheet.formulas.tapes.graph import Tensor
from memsheet.formulas.tapes.kernel_scratch import (
    efficient_backward_bytes,
    efficient_forward_bytes,
    flash_backward_bytes,
    flash_split_bytes,
)
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.dtypes import BOOL, FP16, FP32, INT64, DType
from memsheet.plan.model import Attention, Norm, Weight

with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.bloom import bloom_attention
    from memsheet.formulas.model_code.transformers.falcon import falcon_qkv_heads
    from memsheet.formulas.model_code.transformers.prefixes import after_past
    from memsheet.formulas.model_code.transformers.ring import ring_attention
    from memsheet.formulas.model_code.transformers.ulysses import exchanged_attention


Core = Callable[
    [Recorder, Tensor, Tensor, Tensor, Attention, RunConfig, FamilyTraits],
    tuple[Tensor, Tensor | None, *tuple[Tensor | None, ...]],
]
"""The context, the probabilities if there are any, and what else goes by a name until attention is done."""
HEADS: Shape = ("b", "a", "s", "d")
MERGED: Shape = ("b", "s", "a", "d")


def attention(
    r: Recorder, x: Tensor, at: Attention, how: RunConfig, own: FamilyTraits, inside: list[Tensor | None]
) -> tuple[Tensor, Tensor | None]:
    """Projections, norms of queries and keys, rotary positions, attention, output projection; and the
    probabilities if eager.

    ``inside``: takes what the module still names when it adds its result to the stream itself.
    """
    weights = {w.path: w for w in at.weights}
    q, k, v, *_whole = (
        _fused_qkv_heads(r, x, at, weights, how, own)
        if at.fused_qkv
        else _separate_qkv_heads(r, x, at, weights, how, own)
    )
    if own.joint is FusedQkvLayout.PICKED and at.kv_heads > 1:
        at = replace(at, kv_heads=at.heads)
    if at.rotary_dim:
        q, k, _named = apply_rotary_positions(r, q, k, at, how, own)
    if own.scaled_positions:
        q = scale_by_position(r, q, at.path)
    if own.late_norms:
        q, k = (
            t if n is None else apply_norm(r, t, n, how) for t, n in zip((q, k), qk_norms(at), strict=True)
        )
    if how.adapter_kind.before_keys:
        k, v = (after_past(r, x, f"{at.path}/{name}", how) for x, name in ((k, "k"), (v, "v")))
    if how.kept_keys is not None and not at.shares_kv:
        k, v = _through_cache(r, k, v, at.path, how.kept_keys)
    core = bloom_attention if own.batched_bias else CORES[how.attention]
    made = _core_attention(r, (q, k, v), at, how, own, core)
    context, probabilities = made[0], made[1]
    if own.batched_bias:
        inside += [q, k, v, *made]
    context = r.view(context, ("b", "s", "a·d"))
    out = next(n for n in reversed([w.path for w in at.weights]) if n.endswith(".weight")).removesuffix(
        ".weight"
    )
    return record_linear(r, context, weights, out, "h", "a·d", how), probabilities


def _core_attention(
    r: Recorder,
    qkv: tuple[Tensor, Tensor, Tensor],
    at: Attention,
    how: RunConfig,
    own: FamilyTraits,
    core: Core,
) -> tuple[Tensor, Tensor | None, *tuple[Tensor | None, ...]]:
    """Over the positions that a rank has, or over those of all ranks that share a sequence."""
    if RING in how.options:
        return ring_attention(r, *qkv, at, how)
    if EXCHANGED in how.options:
        return exchanged_attention(r, qkv, at.path, how)
    return core(r, *qkv, at, how, own)


# ---- queries, keys and values ------------------------------------------------------------------------------


def _fused_qkv_heads(
    r: Recorder, x: Tensor, at: Attention, weights: dict[str, Weight], how: RunConfig, own: FamilyTraits
) -> list[Tensor]:
    name = at.weights[0].path.removesuffix(".weight")
    whole = record_linear(r, x, weights, name, "(a+2k)·d", "h", how)
    shapes: tuple[Shape, ...] = tuple(("b", heads, "s", "d") for heads in ("a", "k", "k"))
    match own.joint:
        case FusedQkvLayout.SPLIT:
            return [*r.split(whole, shapes), *([whole] if own.named_qkv else [])]
        case FusedQkvLayout.SELECTED:
            return [*(r.slice(whole, shape) for shape in shapes), whole]
        case FusedQkvLayout.SLICES:
            return [*(r.slice(whole, shape) for shape in shapes), whole]
        case FusedQkvLayout.PICKED:
            return [*falcon_qkv_heads(r, whole, at), whole]


def _separate_qkv_heads(
    r: Recorder, x: Tensor, at: Attention, weights: dict[str, Weight], how: RunConfig, own: FamilyTraits
) -> list[Tensor]:
    names = [w.path.removesuffix(".weight") for w in at.weights if w.path.endswith(".weight")][:3]
    norms = (None, None, None) if own.late_norms else (*qk_norms(at), None)
    made: list[Tensor] = []
    for name, heads, norm in zip(names, "akk", norms, strict=True):
        y = record_linear(r, x, weights, name, f"{heads}·d", "h", how)
        if own.scaled_query and not made:
            y = r.scale(y, name + "/scaled")
        made.append(into_heads(r, y, heads, norm, at, how))
        del y
    return made


def qk_norms(at: Attention) -> tuple[Norm | None, Norm | None]:
    """The norm of queries and that of keys: half of the weights each."""
    if at.qk_norm is None:
        return None, None
    half = len(at.qk_norm.weights) // 2
    return tuple(  # type: ignore[return-value]
        Norm(path=w[0].path.removesuffix(".weight"), kind=at.qk_norm.kind, size=at.qk_norm.size, weights=w)
        for w in (at.qk_norm.weights[:half], at.qk_norm.weights[half:])
    )


def into_heads(
    r: Recorder, y: Tensor, heads: Axis, norm: Norm | None, at: Attention, how: RunConfig
) -> Tensor:
    """``(b, s, heads·d)`` → ``(b, heads, s, d)``, normalised before or after it is cut into heads."""
    if norm is not None and norm.size != at.head_dim:
        y = apply_norm(r, y, norm, how)
    y = r.view(y, ("b", "s", heads, "d"))
    if norm is not None and norm.size == at.head_dim:
        y = apply_norm(r, y, norm, how)
    return r.transposed_view(y, ("b", heads, "s", "d"))


# ---- the cache of a generation -----------------------------------------------------------------------------

CACHED = "/cached"
"""The end of the names of what a cache keeps of a layer."""


def _through_cache(r: Recorder, k: Tensor, v: Tensor, path: str, kept: DType) -> tuple[Tensor, Tensor]:
    """Keys and values as an empty cache hands them back: joined with nothing, which copies them, and named by
    it from then on; or themselves, where it keeps them in fewer bits (transformers 5.23 cache_utils.py:119
    DynamicLayer.update, :994 Fp8QuantizedLayer.update).
    """
    own = tuple(
        r.name_until_return(r.tensor(f"{path}/{name}{CACHED}", t.shape, kept))
        for t, name in ((k, "k"), (v, "v"))
    )
    return (k, v) if kept is not k.dtype else (own[0], own[1])


# ---- rotary positions --------------------------------------------------------------------------------------


# ---- softmax(q k) v ----------------------------------------------------------------------------------------


def repeat_kv(r: Recorder, x: Tensor, path: str, at: Attention) -> Tensor:
    """Keys or values for every query head: copied out, but a single head is only a view. The gradient is
    summed back over the group.
    """
    if at.heads == at.kv_heads:
        return x
    back, dtype = x.shape, x.dtype
    each = ("b", "a", *back[2:])
    repeated = Tensor(x.storage, each, dtype) if at.kv_heads == 1 else r.tensor(path, each, dtype)
    return r.apply(repeated, (x,), (), lambda _: [r.grad(back, dtype)])


def eager_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: RunConfig, own: FamilyTraits
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The score matrix in full: scaled, masked, softmax, cast to the queries' or values' dtype, dropout,
    times the values.
    """
    path = at.path
    inside = not at.rotary_dim or own.rest is PartialRotary.NONE  # heads lie inside positions
    views = at.kv_heads in (at.heads, 1) and not how.adapter_kind.before_keys  # which are joined anew
    late = own.joint is FusedQkvLayout.PICKED  # one head of keys is broadcast by each product
    if not late:
        k, v = repeat_kv(r, k, path + "/k", at), repeat_kv(r, v, path + "/v", at)
    if own.wide_scores:
        q, k = r.cast(q, FP32, path + "/q"), r.cast(k, FP32, path + "/k")
    weights = r.product(
        q,
        repeat_kv(r, r.autocast(k, path + "/k"), path + "/k", at) if late else k,
        _scores_shape(k),
        path + "/scores",
        copies=(how.several and inside, how.several and views and (inside or at.kv_heads == 1)),
    )
    weights = _scale_scores(r, weights, path, own)
    if at.softcap:
        weights = r.scale(weights, path + "/softcap")
        weights = r.unary(weights, path + "/softcap", saves="output")
        weights = r.scale(weights, path + "/softcap")
    _raw = weights if own.scaled_in_place else None  # goes by its name until softmax has its result
    if own.summed_bias:
        weights = r.add(weights, Tensor(None, ("a", 1, "s"), FP32), path + "/biased")
        weights = r.scale(weights, path + "/masked")
    elif at.causal or how.keeps_scores:
        weights = r.add(weights, Tensor(None, ("b", 1, "s", k.shape[2]), how.stream), path + "/scores")
    named = weights if own.summed_bias else None
    if own.wide_softmax:  # the cast is a part of its statement
        weights = _lowered_softmax(r, weights, q.dtype, path, own, how)
    else:
        weights = _scores_softmax(r, weights, path, own, how)
        weights = r.cast(weights, v.dtype, path + "/probabilities") if own.lowered_softmax else weights
    del _raw
    weights = r.dropout(weights, path + "/dropout", active=how.dropout and own.drops_scores)
    v = repeat_kv(r, r.autocast(v, path + "/v"), path + "/v", at) if late else v
    out = r.product(weights, v, HEADS, path + "/context", copies=(False, how.several and views))
    return r.copy(out, MERGED, path + "/context"), weights, named


def _scores_shape(keys: Tensor) -> Shape:
    return ("b", "a", "s", keys.shape[2])


def scores_dtype(how: RunConfig, own: FamilyTraits) -> DType:
    """Of the probabilities that eager attention returns."""
    return (how.autocast or how.parameters) if own.lowered_softmax else how.stream


def _lowered_softmax(
    r: Recorder, x: Tensor, dtype: DType, path: str, own: FamilyTraits, how: RunConfig
) -> Tensor:
    made = _scores_softmax(r, x, path, own, how)
    return r.cast(made, dtype, path + "/probabilities") if own.lowered_softmax else made


def _scale_scores(r: Recorder, x: Tensor, path: str, own: FamilyTraits) -> Tensor:
    if not own.scaled_in_place:
        return r.scale(x, path + "/scores")
    shape, dtype = x.shape, x.dtype
    return r.apply(Tensor(x.storage, shape, dtype), (x,), (), lambda _: [r.grad(shape, dtype)])


def _scores_softmax(r: Recorder, x: Tensor, path: str, own: FamilyTraits, how: RunConfig) -> Tensor:
    """Softmax in fp32 where the code or autocast asks for it; fp16 is read as it is, anything else is cast
    first.
    """
    wide = own.wide_softmax or r.widens
    if wide and x.dtype is not FP16:
        x = r.cast(x, FP32, path + "/scores")
    if how.keeps_scores:
        out = r.tensor(path + "/softmax", x.shape, FP32 if wide else x.dtype)
        return r.custom(path, (x,), out, (x, out))
    if not wide:
        return r.unary(x, path + "/softmax", saves="output")
    return r.unary(x, path + "/softmax", saves="output", dtype=FP32)


def fused_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: RunConfig, own: FamilyTraits
) -> tuple[Tensor, None]:
    """A flash kernel: keeps q, k, v, its output and one fp32 log-sum-exp a head and position, no score
    matrix.

    Its output is laid out as the queries are: where they are contiguous by head, it is copied before heads
    are merged.
    """
    path = at.path
    q, k, v = _autocast_qkv(r, q, k, v, path)
    if how.padded_head:
        q, k, v = (
            _pad_heads_copy(r, t, f"{path}/{name}_padded", how.padded_head)
            for t, name in ((q, "q"), (k, "k"), (v, "v"))
        )
    out = r.tensor(path + "/context", q.shape, q.dtype)
    lse = r.tensor(path + "/logsumexp", ("b", "a", "s"), FP32)
    seed = r.tensor(path + "/rng", (3,), INT64)
    if not (how.dropout and own.drops_scores):
        r.kernel_scratch(flash_split_bytes, ("b", "s", "a", k.shape[2], q.shape[3]), q.dtype)
    inside = (flash_backward_bytes, ("b", "s", "a", "k", k.shape[2], q.shape[3]))
    r.custom(path, (q, k, v), out, (q, k, v, out, lse, seed), inside=inside)
    if how.padded_head:
        return r.copy(r.slice(out, HEADS), MERGED, path + "/context"), None
    return (
        r.copy(out, MERGED, path + "/context")
        if at.rotary_dim and own.rest is not PartialRotary.NONE
        else r.view(out, MERGED)
    ), None


def math_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: RunConfig, own: FamilyTraits
) -> tuple[Tensor, None]:
    """Plain operations in one call, whose locals go when it returns; in fp32, and the result lowered
    again.
    """
    inside = not at.rotary_dim or own.rest is PartialRotary.NONE  # heads lie inside positions
    how = replace(how, dropout=how.dropout and own.drops_scores)
    low = _autocast_qkv(r, q, k, v, at.path)  # the wrapper has them until the call returns
    dtype = low[0].dtype
    q, k, v = (r.cast(t, FP32, f"{at.path}/{name}_fp32") for t, name in zip(low, "qkv", strict=True))
    with r.without_autocast():  # which has cast the one call's operands
        out = (_multi_query_eager if own.joint is FusedQkvLayout.PICKED else _in_plain_operations)(
            r, q, k, v, at, how, several=how.several and inside
        )
        out = r.cast(out, dtype, at.path + "/context")
    return r.copy(out, MERGED, at.path + "/context"), None


def _in_plain_operations(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: RunConfig, *, several: bool
) -> Tensor:
    """The library's attention.cpp (aten native/transformers), _scaled_dot_product_attention_math: half of the
    scale on either side, keys and values repeated, a bias in place of a mask.
    """
    path = at.path
    bias = _attention_mask_bias(r, q, k.shape[2], path, how) if at.causal else None
    q = r.scale(q, path + "/q")
    k, v = _repeat_heads_copy(r, k, path + "/k"), _repeat_heads_copy(r, v, path + "/v")
    weights = r.product(
        q, r.scale(k, path + "/k"), _scores_shape(k), path + "/scores", copies=(several, False)
    )  # the scaled keys have no name
    weights = r.add(weights, bias, path + "/scores") if bias else weights
    weights = r.unary(weights, path + "/softmax", saves="output")
    weights = r.dropout(weights, path + "/dropout", active=how.dropout)
    return r.product(weights, v, HEADS, path + "/context")


def _multi_query_eager(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: RunConfig, *, several: bool
) -> Tensor:
    """The same where one head of keys and values meets many of queries unasked: each product repeats it, and
    the mask is in the dtype that the call was given.
    """
    path = at.path
    bias = r.tensor(path + "/mask_bias", ("b", "s", "s"), how.autocast or how.parameters)
    q = r.scale(q, path + "/q")
    k = r.scale(k, path + "/k")
    weights = r.product(
        q, repeat_kv(r, k, path + "/k", at), _scores_shape(k), path + "/scores", copies=(several, several)
    )
    weights = r.add(weights, bias, path + "/scores")
    weights = r.unary(weights, path + "/softmax", saves="output")
    return r.product(
        weights, repeat_kv(r, v, path + "/v", at), HEADS, path + "/context", copies=(False, several)
    )


def _attention_mask_bias(r: Recorder, q: Tensor, keys: Axis, path: str, how: RunConfig) -> Tensor:
    """What is added to the scores: of the mask that is given, or of a causal one made here."""
    if how.mask:
        return r.tensor(path + "/mask_bias", ("b", "s", keys), q.dtype)
    ones = r.tensor(path + "/ones", ("s", "s"), BOOL)
    lower = r.tensor(path + "/tril", ("s", "s"), BOOL)
    del ones
    bias = r.tensor(path + "/mask_bias", ("s", "s"), q.dtype)
    del lower
    return bias


def _repeat_heads_copy(r: Recorder, x: Tensor, path: str) -> Tensor:
    """Keys or values for every query head, copied; the gradient is summed back over the group."""
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, ("b", "a", *back[2:]), dtype), (x,), (), lambda _: [r.grad(back, dtype)])


def efficient_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: RunConfig, own: FamilyTraits
) -> tuple[Tensor, None]:
    """The memory-efficient kernel: as flash, with keys and values repeated, statistics padded to 32 and a
    bias for a mask.
    """
    path = at.path
    k, v = repeat_kv(r, k, path + "/k", at), repeat_kv(r, v, path + "/v", at)
    q, k, v = _autocast_qkv(r, q, k, v, path)
    rows = f"{k.shape[2]}8"  # padded (attention.cpp preprocess_mask)
    bias = (r.tensor(path + "/mask_bias", ("b", "s", rows), q.dtype),) if how.mask else ()
    out = r.tensor(path + "/context", q.shape, q.dtype)
    lse = r.tensor(path + "/logsumexp", ("b", "a", "s32"), FP32)
    seed = r.tensor(path + "/rng", (2,), INT64)
    r.kernel_scratch(efficient_forward_bytes, ("b", "s", "a", q.shape[3], v.shape[3]), q.dtype)
    inside = (efficient_backward_bytes, ("b", "s", "a", k.shape[2], q.shape[3], v.shape[3]))
    r.custom(path, (q, k, v), out, (q, k, v, out, lse, seed, *bias), inside=inside)
    return r.view(out, MERGED), None


def processor_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: RunConfig, own: FamilyTraits
) -> tuple[Tensor, None]:
    """A CPU's flash kernel (aten native/transformers/attention.cpp, _scaled_dot_product_flash_attention_cpu):
    as a GPU's without the generator's state, and with the bias that a mask is turned into.
    """
    path = at.path
    if how.mask:
        k, v = repeat_kv(r, k, path + "/k", at), repeat_kv(r, v, path + "/v", at)
    q, k, v = _autocast_qkv(r, q, k, v, path)
    bias = (r.tensor(path + "/mask_bias", ("b", "s", k.shape[2]), q.dtype),) if how.mask else ()
    out = r.tensor(path + "/context", q.shape, q.dtype)
    lse = r.tensor(path + "/logsumexp", ("b", "a", "s"), FP32)
    r.custom(path, (q, k, v), out, (q, k, v, out, lse, *bias))
    return (
        r.copy(out, MERGED, path + "/context")
        if at.rotary_dim and own.rest is not PartialRotary.NONE
        else r.view(out, MERGED)
    ), None


def _autocast_qkv(r: Recorder, q: Tensor, k: Tensor, v: Tensor, path: str) -> tuple[Tensor, Tensor, Tensor]:
    v = r.autocast(v, path + "/v")
    k = r.autocast(k, path + "/k")
    return r.autocast(q, path + "/q"), k, v


def _pad_heads_copy(r: Recorder, x: Tensor, path: str, head: Axis) -> Tensor:
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, (*x.shape[:-1], head), dtype), (x,), (), lambda _: [r.grad(back, dtype)])


CORES: dict[AttentionKernel, Core] = {
    AttentionKernel.EAGER: eager_attention,
    AttentionKernel.FUSED: fused_attention,
    AttentionKernel.MATH: math_attention,
    AttentionKernel.EFFICIENT: efficient_attention,
    AttentionKernel.PROCESSOR: processor_attention,
}
