"""Megatron-Core's attention and latent attention over TransformerEngine's kernels (Megatron-LM 23e00ed,
TransformerEngine c188b533).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from memsheet.engines.megatron.layers.modules import (
    column_parallel_linear,
    normed_column,
    rearranged_copy,
    rms_norm_output,
    row_parallel_linear,
)
from memsheet.formulas.numerics import AttentionKernel, RunConfig
from memsheet.formulas.tapes.graph import Grad, Storage, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.plan.dtypes import BOOL, FP32, DType
from memsheet.plan.model import Attention, LatentAttention

HEADS: Shape = ("b", "s", "a", "d")
GROUPS: Shape = ("b", "s", "k", "d")


def fused_qkv_attention(r: Recorder, x: Tensor, at: Attention, how: RunConfig) -> Tensor:
    """Queries, keys and values from one product; angles fused; kernel; projection (attention.py:590-830,
    1010-1070).
    """
    mixed = normed_column(r, x, "(a+2k)·d", f"{at.path}.linear_qkv", how)
    q, k, v = r.split(mixed, (HEADS, GROUPS, GROUPS))
    del mixed
    if not how.one_group:  # queries of several groups lie apart
        q = r.copy(q, HEADS, f"{at.path}/query")
    if at.qk_norm is not None:
        q, k = (
            rms_norm_output(r, q, f"{at.path}.q_layernorm"),
            rms_norm_output(r, k, f"{at.path}.k_layernorm"),
        )
    if at.rotary_dim:
        q, k = (
            rearranged_copy(r, q, HEADS, f"{at.path}/query_turned"),
            rearranged_copy(r, k, GROUPS, f"{at.path}/key_turned"),
        )
    context = core_attention(r, q, k, v, at.path, how)
    del q, k
    out = row_parallel_linear(r, r.view(context, ("b", "s", "a·d")), f"{at.path}.linear_proj", how)
    del v
    return out


def core_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, path: str, how: RunConfig, width: Axis = "d"
) -> Tensor:
    """softmax(q k) v. Values, a slice of the joint product, are copied; flash-attn works on sequences in
    front, so with several of them all three are copied, and its result back
    (dot_product_attention/backends.py:712-735, 950-990); cuDNN takes them as they are.

    Under recompute of core_attn the kernel runs again in backward.
    """
    if "core_attn" in how.again:
        return _recomputed_core_attention(r, (q, k, v), path, how, width)
    if how.attention is AttentionKernel.EAGER:
        return _in_full(r, q, k, v, path, how)
    back = how.several and how.transposes
    q, k = (
        (r.copy(one, one.shape, f"{path}/{name}") if back else one)
        for one, name in ((q, "query"), (k, "key"))
    )
    v = r.copy(v, v.shape, f"{path}/value")
    return _context_parallel_kernel(r, q, k, v, path, how, width)


RING, GATHERED = "ring", "all_gather"
"""How context-parallel ranks see each other's keys and values, among a plan's options."""


def _context_parallel_kernel(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, path: str, how: RunConfig, width: Axis
) -> Tensor:
    """Over context-parallel ranks by all-to-all, what is computed with has all positions of some heads, and
    the result is exchanged again (dot_product_attention/context_parallel.py, AttnFuncWithCPAndQKVOA2A).
    """
    if how.exchanges:
        return _all_to_all_attention(r, (q, k, v), path, ("b", "s", "a", width))
    if RING in how.options:
        return _in_a_ring(r, q, k, v, path, width)
    if GATHERED in how.options:
        return _all_gather_attention(r, q, k, v, path, width)
    shape, dtype = ("b", "s", "a", width), q.dtype
    out = r.tensor(f"{path}/context", shape, dtype)
    rows = r.tensor(f"{path}/logsumexp", ("b", "a", "s"), FP32)
    out = r.custom(path, (q, k, v), out, (q, k, v, out, rows))
    return r.copy(out, shape, f"{path}/context_back") if how.several and how.transposes else out


def _in_a_ring(r: Recorder, q: Tensor, k: Tensor, v: Tensor, path: str, width: Axis) -> Tensor:
    """Keys and values are joined and go round; a buffer of every rank's stays until the end, and the last of
    them is what is saved; so do the partial results, which are summed in fp32 (AttnFuncWithCPAndKVP2P).
    Backward sends keys, values and their gradients round in two buffers.
    """
    shape, dtype = ("b", "s", "a", width), q.dtype
    metas = [(one.shape, one.dtype) for one in (q, k, v)]
    joined: Shape = (2, *k.shape)
    others = r.tensor(f"{path}/ring", ("c-1", *joined), dtype)
    last = r.tensor(f"{path}/key_value", joined, dtype)
    parts = r.tensor(f"{path}/partial", ("c", *shape), dtype)
    total = r.tensor(f"{path}/sum", shape, FP32)
    rows = r.tensor(f"{path}/logsumexp", ("b", "a", "s"), FP32)
    out = r.tensor(f"{path}/context", shape, dtype)
    del others, parts, total

    def backward(_: Grad) -> list[Grad | None]:
        ring = [r.grad((2, *joined), dtype, f"{path}/ring") for _ in range(2)]
        whole = r.grad(shape, dtype)
        step = [r.grad(*meta) for meta in metas]
        del step, whole
        grads: list[Grad | None] = [r.grad(*meta) for meta in metas]
        del ring
        return grads

    return r.apply(out, (q, k, v), (q, last, rows, out), backward)


def _all_gather_attention(r: Recorder, q: Tensor, k: Tensor, v: Tensor, path: str, width: Axis) -> Tensor:
    """Keys and values of all ranks gathered and put in order, in forward and again in backward; the halves of
    the result are saved beside the result itself (AttnFuncWithCPAndKVAllGather).
    """
    shape, dtype = ("b", "s", "a", width), q.dtype
    whole: Shape = ("c", *k.shape)
    metas = [(one.shape, one.dtype) for one in (q, k, v)]

    def gather(kind: str) -> list[Grad]:
        arrived = [r.grad(whole, dtype, f"{path}/{kind}") for _ in range(2)]
        ordered = [r.grad(whole, dtype, f"{path}/{kind}")]
        arrived.pop(0)
        ordered.append(r.grad(whole, dtype, f"{path}/{kind}"))
        return ordered

    all_ranks = gather("gathered")
    out = r.tensor(f"{path}/context", shape, dtype)
    halves = r.tensor(f"{path}/halves", shape, dtype)
    rows = r.tensor(f"{path}/logsumexp", ("b", "a", "s"), FP32)
    del all_ranks

    def backward(_: Grad) -> list[Grad | None]:
        sums = [r.grad(whole, dtype) for _ in range(2)]
        again = gather("gathered")
        grads: list[Grad | None] = [r.grad(*meta) for meta in metas]
        del again, sums
        return grads

    return r.apply(out, (q, k, v), (q, k, v, halves, rows), backward)


def _all_to_all_attention(
    r: Recorder, given: Sequence[Tensor], path: str, value: Shape, *, start: Callable[[], None] | None = None
) -> Tensor:
    """Queries, keys and values are exchanged for all positions of some heads, which are saved, and the result
    back again; in backward the result's gradient, and theirs (AttnFuncWithCPAndQKVOA2A). ``value``: the
    result's shape; ``start``: what backward begins with.
    """
    dtype = given[0].dtype
    metas = [(one.shape, one.dtype) for one in given]
    names = [f"{path}/{name}" for name in ("query", "key", "value")]
    whole = _exchange(r, r.tensor, [(n, *meta) for n, meta in zip(names, metas, strict=True)])
    context = r.tensor(f"{path}/context", value, dtype)
    rows = r.tensor(f"{path}/logsumexp", ("b", "a", "s"), FP32)
    (out,) = _exchange(r, r.tensor, [(f"{path}/context", value, dtype)])

    def make(name: str, shape: Shape, kind: DType) -> Grad:
        return r.grad(shape, kind, name)

    def backward(_: Grad) -> list[Grad | None]:
        if start is not None:
            start()
        arrived = _exchange(r, make, [(f"{path}/backward", value, dtype)])
        made = [r.grad(*meta) for meta in metas]
        back = _exchange(r, make, [(f"{path}/backward", *meta) for meta in metas])
        del arrived, made
        return list(back)

    return r.apply(out, tuple(given), (*whole, context, rows), backward)


Made = TypeVar("Made", Tensor, Grad)


def _exchange(
    r: Recorder, make: Callable[[str, Shape, DType], Made], metas: Sequence[tuple[str, Shape, DType]]
) -> list[Made]:
    """Each cut for the other ranks, received, and put in order in a stream of its own, one behind the other;
    what was cut stays until all are through (flash_attn_a2a_communicate:404-496).
    """
    cut, received, ordered = list[Made](), list[Made](), list[Made]()

    def take(at: int, kind: str) -> Made:
        name, shape, dtype = metas[at]
        return make(f"{name}/{kind}", shape, dtype)

    for step in range(len(metas) + 2):
        if 0 < step <= len(metas):
            received.append(take(step - 1, "received"))
        if step > 1:
            with r.side_stream():
                ordered.append(take(step - 2, "exchanged"))
            received.pop(0)
        if step < len(metas):
            cut.append(take(step, "cut"))
    return ordered


SCORES: Shape = ("b", "a", "s", "s")


def _in_full(r: Recorder, q: Tensor, k: Tensor, v: Tensor, path: str, how: RunConfig) -> Tensor:
    """Scores, softmax fused with scale and mask, dropout, times the values, whose order is then that of the
    sequence (dot_product_attention.py:130-240). Keys and values are repeated for the queries of a group.
    """
    k, v = (
        one if one.shape == HEADS else rearranged_copy(r, one, HEADS, f"{path}/repeated") for one in (k, v)
    )
    scores = r.product(q, k, SCORES, f"{path}/scores")
    shares = r.unary(scores, f"{path}/softmax", saves="output")
    del scores
    shares = r.dropout(shares, f"{path}/dropout", active=how.dropout)
    return r.copy(r.product(shares, v, HEADS, f"{path}/context"), HEADS, f"{path}/context")


def _recomputed_core_attention(
    r: Recorder, given: tuple[Tensor, ...], path: str, how: RunConfig, width: Axis
) -> Tensor:
    """The kernel under a checkpoint of its own, which keeps queries, keys and values as they come; its result
    is the projection's input.
    """
    shape, dtype = ("b", "s", "a", width), given[0].dtype
    metas = [(one.shape, one.dtype) for one in given]
    scratch: list[tuple[Shape, DType]] = [(given[2].shape, dtype), (shape, dtype)]
    if (
        how.attention is AttentionKernel.EAGER
    ):  # shares and what dropout made of them, and the gradients of both
        scratch = [(SCORES, dtype)] * (4 if how.dropout else 3) + ([(SCORES, BOOL)] if how.dropout else [])

    def backward(_: Grad) -> list[Grad | None]:
        made = [r.grad(*meta, f"{path}/recomputed") for meta in scratch]
        grads: list[Grad | None] = [r.grad(*meta) for meta in metas]
        del made
        return grads

    return r.apply(r.tensor(f"{path}/context", shape, dtype), given, given, backward)


# ---- latent attention --------------------------------------------------------------------------------------


def latent_attention(r: Recorder, x: Tensor, at: LatentAttention, how: RunConfig) -> Tensor:
    """Expanded (multi_latent_attention.py:100-560): latents from products that every tensor-parallel rank
    makes whole, norms fused with the products that raise them; angles turned in the queries' own place, keys
    and values written anew.

    Under recompute of mla_up_proj queries, keys and values go when the kernel has read them, and are made
    again before its backward (tensor_parallel/random.py, CheckpointWithoutOutput).
    """
    path = at.path
    normed = rms_norm_output(r, x, "input_layernorm")
    low = (
        column_parallel_linear(r, normed, "qr", f"{path}.linear_q_down_proj", how, parallel=False)
        if at.q_lora_rank
        else normed
    )
    joint = column_parallel_linear(r, normed, "kr+dr", f"{path}.linear_kv_down_proj", how, parallel=False)
    latent, shared = r.split(joint, (("b", "n", "kr"), ("b", "n", "dr")))
    del joint, normed
    if how.scattered:
        shared = rearranged_copy(r, shared, ("b", "s", "dr"), f"{path}/key_positions")
    again: list[Storage] = []
    raised = (
        _raised_again(r, (low, latent, shared), at, again)
        if "mla_up_proj" in how.again
        else _latent_up_projections(r, low, latent, shared, at, how)
    )
    del low, latent, shared
    context = _kernel_of_latent(r, raised, path, how, again)
    raised.clear()
    return row_parallel_linear(r, r.view(context, ("b", "s", "a·d")), f"{path}.linear_proj", how)


QUERY: Shape = ("b", "s", "a", "dq")
VALUE: Shape = ("b", "s", "a", "dv")


def _latent_up_projections(
    r: Recorder, low: Tensor, latent: Tensor, shared: Tensor, at: LatentAttention, how: RunConfig
) -> list[Tensor]:
    """Queries, keys and values of every head."""
    path = at.path
    if at.q_lora_rank:
        q = normed_column(r, low, "a·dq", f"{path}.linear_q_up_proj", how)
    else:
        q = column_parallel_linear(r, low, "a·dq", f"{path}.linear_q_proj", how)
    latent = r.copy(latent, latent.shape, f"{path}/latent")  # a slice is made contiguous for the module
    both = normed_column(r, latent, "a·(dn+dv)", f"{path}.linear_kv_up_proj", how)
    whole, dtype, back = both.shape, both.dtype, shared.shape
    k, v = r.tensor(f"{path}/key", QUERY, dtype), r.tensor(f"{path}/value", VALUE, dtype)
    k = r.apply(k, (both, shared), (), lambda *_: [r.grad(whole, dtype), r.grad(back, dtype)])
    v.node, v.port = k.node, 1
    return [r.view(q, QUERY), k, v]


def _raised_again(
    r: Recorder, given: tuple[Tensor, ...], at: LatentAttention, again: list[Storage]
) -> list[Tensor]:
    """The same under its checkpoint, which keeps what it was given. ``again``: what backward has made anew,
    let go when it is through.
    """
    dtype = given[0].dtype
    metas = [(one.shape, one.dtype) for one in given]
    q, k = r.tensor(f"{at.path}/query", QUERY, dtype), r.tensor(f"{at.path}/key", QUERY, dtype)
    v = r.tensor(f"{at.path}/value", VALUE, dtype)

    def backward(*_: Grad) -> list[Grad | None]:
        grads: list[Grad | None] = [r.grad(*meta) for meta in metas]
        again.clear()
        return grads

    q = r.apply(q, given, given, backward)
    k.node, k.port, v.node, v.port = q.node, 1, q.node, 2
    return [q, k, v]


def _kernel_of_latent(
    r: Recorder, raised: list[Tensor], path: str, how: RunConfig, again: list[Storage]
) -> Tensor:
    """Heads of two sizes, which cuDNN takes as they are. ``again``: not None but empty where its operands are
    thrown away.
    """
    q, k, v = raised
    dtype, thrown = q.dtype, "mla_up_proj" in how.again
    metas = [(one.shape, one.dtype) for one in (q, k, v)]

    def raise_again() -> None:
        if thrown:
            again.extend(r.storage(f"{path}/raised", *meta) for meta in metas)

    if how.exchanges:
        return _all_to_all_attention(r, raised, path, VALUE, start=raise_again)
    out = r.tensor(f"{path}/context", VALUE, dtype)
    rows = r.tensor(f"{path}/logsumexp", ("b", "a", "s"), FP32)

    def backward(_: Grad) -> list[Grad | None]:
        raise_again()
        return [r.grad(*meta) for meta in metas]

    return r.apply(out, (q, k, v), (out, rows) if thrown else (q, k, v, out, rows), backward)
