"""A layer of torchtitan's decoders (Llama, Qwen3) and its two ends, operation by operation (torchtitan
9dec370, models/llama/model.py:87-332).

The stream between layers is cut along the sequence over tensor-parallel ranks (``s/t``); attention and
feed-forward gather it. ``compiled`` layers are what torch.compile makes of the same: elementwise operations
are one kernel each and keep nothing of their own.
"""

from __future__ import annotations

from memsheet.engines.torchtitan.layers.attention import HEADS, attention_of, without_storage
from memsheet.engines.torchtitan.layers.experts import routed_feed_forward
from memsheet.engines.torchtitan.layers.latent import latent_attention_forward
from memsheet.engines.torchtitan.layers.rotations import apply_rotary_emb
from memsheet.engines.torchtitan.layers.switches import (
    ASYNC,
    COMPILED,
    FP8_GATHERED,
    FP8_PRODUCTS,
    FUSED_NORM,
    REDUCED_HEAD,
    REPEATS,
)
from memsheet.formulas.model_code.transformers.norms import rms_norm
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Chosen, Grad, GradientSum, Leaf, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.frozen import replace
from memsheet.plan.dtypes import BOOL, FP8, FP32, INT64, DType
from memsheet.plan.model import Attention, Block, Dense, Embeddings, Head, LatentAttention, Moe, Norm
from memsheet.plan.plan import Loss

STREAM: Shape = ("b", "s/t", "h")
WHOLE: Shape = ("b", "s", "h")


def decoder_block_forward(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """One layer."""
    (at,), ff = block.mixers, block.feed_forward
    assert isinstance(at, Attention | LatentAttention)
    if isinstance(at, Attention):
        said = sequence_parallel_attention(r, torchtitan_rms_norm(r, x, block.norms[0], how), at, how)
    else:
        said = latent_attention_forward(r, torchtitan_rms_norm(r, x, block.norms[0], how), at, how)
    h = _residual_sum(r, x, said, said, how)
    del said
    if isinstance(ff, Moe):
        normed = torchtitan_rms_norm(r, h, block.norms[1], how)
        said = routed_feed_forward(r, normed, ff, how)
        if ff.shared is not None:
            said = r.add(said, feed_forward(r, normed, ff.shared, how), f"{ff.path}/sum")
        del normed
        return r.add(h, said, "/residual")
    assert isinstance(ff, Dense)
    said = feed_forward(r, torchtitan_rms_norm(r, h, block.norms[1], how), ff, how)
    return _residual_sum(r, h, said, h, how)


def _residual_sum(r: Recorder, a: Tensor, b: Tensor, spare: Tensor, how: RunConfig) -> Tensor:
    """The stream and what a part adds to it. A compiler writes it in the place of ``spare``, which
    nothing reads afterwards, unless backward or a checkpoint keeps it: the first sum is made as it is read.
    """
    if COMPILED not in how.options or r.saves or how.chosen:
        return r.add(a, b, "/residual")
    return r.apply(Tensor(spare.storage, a.shape, a.dtype), (a, b), (), lambda _: [None, None])


def torchtitan_rms_norm(r: Recorder, x: Tensor, norm: Norm, how: RunConfig) -> Tensor:
    """Written out in fp32, or one kernel that keeps a statistic for each position (inductor's, or torch's
    own).
    """
    if not how.options & {COMPILED, FUSED_NORM}:
        return rms_norm(r, x, norm, norm.path, how)
    weight = r.parameter(norm.path, (norm.size,), how.parameters)
    out, rstd = (
        _elementwise_output(r, norm.path + "/output", x.shape, how, x),
        r.tensor(norm.path + "/rstd", (*x.shape[:-1], 1), FP32),
    )
    return r.custom(norm.path, (x, weight), out, (x, weight, rstd))


def _elementwise_output(r: Recorder, path: str, shape: Shape, how: RunConfig, like: Tensor) -> Tensor:
    """What an elementwise kernel makes. One that is only read to be cast to eight bits is computed where it
    is read: inductor copies a short expression of few reads into each of its users (torch/_inductor/ir.py,
    StorageBox.should_realize_on_reuse).
    """
    return Tensor(None, shape, like.dtype) if _inlines_fp8_casts(how) else r.tensor(path, shape, like.dtype)


def _inlines_fp8_casts(how: RunConfig) -> bool:
    return {COMPILED, FP8_PRODUCTS} <= how.options


# ---- products ----------------------------------------------------------------------------------------------


def maybe_fp8_linear(r: Recorder, x: Tensor, path: str, out: Axis, width: Axis, how: RunConfig) -> Tensor:
    """``x @ weight.T``, in eight bits where the layer was swapped."""
    if FP8_PRODUCTS not in how.options:
        return r.linear(x, r.parameter(path, (out, width), how.parameters), out, path)
    return _fp8_linears(r, x, ((path, out),), width, how)[0]


def _last_read_linear(
    r: Recorder, read: list[Tensor], path: str, out: Axis, width: Axis, how: RunConfig
) -> Tensor:
    """``maybe_fp8_linear`` of the first of ``read``, which is emptied: nothing else reads that, nor the
    others, which it is computed of as it is cast. A compiler lets go of them when the cast is made, unless
    backward reads them.
    """
    x = read[0]
    if not _inlines_fp8_casts(how) or r.saves:
        made = maybe_fp8_linear(r, x, path, out, width, how)
        read.clear()
        return made
    low = r.tensor(f"{path}/fp8_input", x.shape, FP8)
    x = without_storage(x)
    read.clear()
    made = _fp8_linear(r, x, path, out, width, how)
    del low
    return made


def shared_input_linears(
    r: Recorder,
    x: Tensor,
    layers: tuple[tuple[str, Axis], ...],
    width: Axis,
    how: RunConfig,
    *,
    casts_once: bool = True,
) -> list[Tensor]:
    """Several layers of one input. In a compiled layer its casts to eight bits are made together, one for
    all (``casts_once``), or one for each where it takes four reads or fewer to compute it (torch 2.6.0
    _inductor/ir.py, should_realize_on_reuse; config.py, realize_reads_threshold).
    """
    if FP8_PRODUCTS in how.options and COMPILED in how.options:
        return _fp8_linears(r, x, layers, width, how, casts=1 if casts_once else len(layers))
    return [maybe_fp8_linear(r, x, path, out, width, how) for path, out in layers]


def _fp8_linears(
    r: Recorder, x: Tensor, layers: tuple[tuple[str, Axis], ...], width: Axis, how: RunConfig, casts: int = 1
) -> list[Tensor]:
    """Float8Linear of torchao (0.7, float8_linear.py:50-170): input and weight are saved as they are and cast
    for each product. An input that is in eight bits already is saved so, a weight that was gathered so needs
    no cast.
    """
    low = (
        [x] if x.dtype is FP8 else [r.tensor(f"{path}/fp8_input", x.shape, FP8) for path, _ in layers[:casts]]
    )
    made = list[Tensor]()
    for path, out in layers:
        made.append(_fp8_linear(r, x, path, out, width, how))
        low = low[1:] or low  # the last cast stays until the last product
    return made


def _fp8_linear(r: Recorder, x: Tensor, path: str, out: Axis, width: Axis, how: RunConfig) -> Tensor:
    casts, dtype = FP8_GATHERED not in how.options, how.stream
    weight = r.parameter(path, (out, width), how.parameters)
    shape, given, matrix = (*x.shape[:-1], out), x.shape, weight.shape
    cast = [r.tensor(f"{path}/fp8_weight", matrix, FP8)] if casts else []
    result = r.result(f"{path}/output", shape, dtype, Chosen.EVERY_SECOND_PRODUCT)
    cast.clear()

    def backward(g: Grad) -> list[Grad | None]:
        cast, turned = _eight_bit_layouts(r, g)
        low = [g if cast else r.grad(shape, FP8), *([r.grad(matrix, FP8)] if casts else [])]
        to_input = r.grad(given, dtype)
        low[1:] = [r.grad(given, FP8), *([] if turned else [r.grad(shape, FP8)])]  # for the other product
        return [Grad(to_input.storage, given, x_dtype), r.grad(matrix, dtype)]

    x_dtype = x.dtype
    return r.apply(result, (x, weight), (x, weight), backward)


def _eight_bit_layouts(r: Recorder, g: Grad) -> tuple[bool, bool]:
    """Whether a gradient arrives in eight bits, and whether it does so in both layouts."""
    if g.storage is None:
        return False, False
    entry = r.entries[g.storage.index]
    cast = entry.dtype is FP8
    return cast, cast and entry.path.endswith(BOTH_LAYOUTS)


BOTH_LAYOUTS = "/fp8_gradients"


# ---- tensor-parallel ranks ---------------------------------------------------------------------------------


def all_gather_sequence(r: Recorder, x: Tensor, path: str, how: RunConfig) -> Tensor:
    """The whole sequence: gathered rank after rank, then joined along the sequence (torch
    distributed/_functional_collectives.py:183-226); backward adds the ranks' gradients and cuts them. Eight
    bits are cast to before (torchao 0.7 float8_tensor_parallel.py). In products that torch pipelines with it,
    what arrives lies in symmetric memory, outside the allocator.
    """
    if not how.tensor_parallel:
        return r.view(x, WHOLE)
    dtype = x.dtype
    sent = r.tensor(f"{path}/fp8_input", STREAM, FP8) if FP8_PRODUCTS in how.options else None
    kind = FP8 if sent else dtype
    flat = None if ASYNC in how.options else r.tensor(f"{path}/all_gather", WHOLE, kind)
    del sent
    out = r.tensor(f"{path}/gathered", WHOLE, kind)
    del flat

    def backward(g: Grad) -> list[Grad | None]:
        ordered = None if ASYNC in how.options else r.grad(WHOLE, dtype, f"{path}/ordered")
        cut = r.grad(STREAM, dtype, f"{path}/reduce_scatter")
        del ordered
        return [cut]

    return r.apply(out, (x,), (), backward)


def reduce_scatter_sequence(r: Recorder, y: Tensor, path: str, how: RunConfig) -> Tensor:
    """The ranks' parts added and cut along the sequence, for which they are put in order first; backward
    gathers.
    """
    if not how.tensor_parallel:
        return r.view(y, STREAM)
    dtype = y.dtype
    ordered = None if ASYNC in how.options else r.tensor(f"{path}/ordered", WHOLE, dtype)
    out = r.result(f"{path}/reduce_scatter", STREAM, dtype, Chosen.REDUCE_SCATTER)
    del ordered

    kind = FP8 if FP8_PRODUCTS in how.options else dtype

    def backward(g: Grad) -> list[Grad | None]:
        sent = r.grad(STREAM, FP8, f"{path}/fp8_gradient") if kind is FP8 else None
        flat = None if ASYNC in how.options else r.grad(WHOLE, kind, f"{path}/all_gather")
        del sent
        whole = r.grad(WHOLE, kind, f"{path}/gathered")
        del flat
        return [Grad(whole.storage, WHOLE, dtype)]

    return r.apply(out, (y,), (), backward)


# ---- attention ---------------------------------------------------------------------------------------------


def sequence_parallel_attention(r: Recorder, x: Tensor, at: Attention, how: RunConfig) -> Tensor:
    whole = all_gather_sequence(r, x, at.path, how)
    del x
    names = [w.path.removesuffix(".weight") for w in at.weights]
    q, k, v = (
        _in_one(r, whole, names[0], at.path, how) if at.fused_qkv else _one_by_one(r, whole, names[:3], how)
    )
    if COMPILED in how.options:
        del whole
    if at.qk_norm is not None:  # over each head (b5bcd76, models/common/attention.py:928-931)
        norms = head_norms(at.qk_norm)
        q = torchtitan_rms_norm(r, q, norms[0], how)
        k = torchtitan_rms_norm(r, k, norms[1], how)
    pair = [q, k]
    del q, k
    q, k = apply_rotary_emb(r, pair, at.path, how)
    keys = _for_every_head(r, k, v.dtype, at, "/k", how)
    values = _for_every_head(r, v, v.dtype, at, "/v", how)
    del k, v
    parts = [q, keys, values]
    del q, keys, values
    read = [r.view(attention_of(how)(r, parts, at.path, how), ("b", "s", "a·d"))]
    said = _last_read_linear(r, read, names[-1], "h", "a·d", how)
    return reduce_scatter_sequence(r, said, at.path, how)


def head_norms(norm: Norm) -> tuple[Norm, ...]:
    """The norms of queries and of keys, each a module with a weight of its own."""
    return tuple(replace(norm, path=w.path.removesuffix(".weight"), weights=(w,)) for w in norm.weights)


def _one_by_one(r: Recorder, x: Tensor, names: list[str], how: RunConfig) -> list[Tensor]:
    made = shared_input_linears(
        r,
        x,
        tuple((name, f"{heads}·d") for name, heads in zip(names, "akk", strict=True)),
        "h",
        how,
        casts_once=False,
    )
    return [r.view(made.pop(0), ("b", "s", heads, "d")) for heads in "akk"]


def _in_one(r: Recorder, x: Tensor, name: str, path: str, how: RunConfig) -> list[Tensor]:
    """One product, of whose parts each is made contiguous (b5bcd76, models/common/attention.py:722-800)."""
    shapes: tuple[Shape, ...] = tuple(("b", "s", heads, "d") for heads in "akk")
    parts = r.split(maybe_fp8_linear(r, x, name, "(a+2k)·d", "h", how), shapes)
    return [r.copy(parts.pop(0), shape, f"{path}/{part}") for shape, part in zip(shapes, "qkv", strict=True)]


def _for_every_head(r: Recorder, x: Tensor, dtype: DType, at: Attention, name: str, how: RunConfig) -> Tensor:
    """Keys or values in ``dtype``, repeated (model.py:116-125): one head is only expanded, which is a view.
    A compiler lowers them where it repeats them.
    """
    if REPEATS not in how.options or at.kv_heads in (at.heads, 1):
        x = r.cast(x, dtype, f"{at.path}{name}_rotary")
    if REPEATS not in how.options or at.heads == at.kv_heads:
        return x
    back, own = x.shape, x.dtype
    repeated = Tensor(x.storage, HEADS, dtype) if at.kv_heads == 1 else r.tensor(at.path + name, HEADS, dtype)
    return r.apply(repeated, (x,), (), lambda _: [r.grad(back, own)])


# ---- feed-forward ------------------------------------------------------------------------------------------


def feed_forward(r: Recorder, x: Tensor, ff: Dense, how: RunConfig) -> Tensor:
    """``w2(silu(w1(x)) * w3(x))`` (model.py:253)."""
    gate_of, up_of, down_of = (w.path.removesuffix(".weight") for w in ff.weights)
    whole = all_gather_sequence(r, x, ff.path, how)
    del x
    if COMPILED in how.options:
        gate, up = shared_input_linears(r, whole, ((gate_of, "f"), (up_of, "f")), "h", how)
        del whole
        read = [_gate_up_product(r, gate, up, ff.path, how), gate, up]
        del gate, up
        with r.nothing_chosen():
            return reduce_scatter_sequence(
                r, _last_read_linear(r, read, down_of, "h", "f", how), ff.path, how
            )
    gate = r.unary(maybe_fp8_linear(r, whole, gate_of, "f", "h", how), ff.path + "/activation", saves="input")
    inner = r.mul(gate, maybe_fp8_linear(r, whole, up_of, "f", "h", how), ff.path + "/product")
    del gate
    return reduce_scatter_sequence(r, maybe_fp8_linear(r, inner, down_of, "h", "f", how), ff.path, how)


def _gate_up_product(r: Recorder, gate: Tensor, up: Tensor, path: str, how: RunConfig) -> Tensor:
    """Activation and product in one kernel, both gradients in another: in eight bits that one casts each of
    them twice, laid out for either product (the buffers of inductor's function for this layer, torch 2.13.0).
    """
    shape, dtype = gate.shape, gate.dtype

    def backward(_: Grad) -> list[Grad | None]:
        if not _inlines_fp8_casts(how):
            return [r.grad(shape, dtype) for _ in range(2)]
        cast = [r.grad((2, *shape), FP8, path + BOTH_LAYOUTS) for _ in range(2)]
        return [Grad(both.storage, shape, dtype) for both in cast]

    return r.apply(
        _elementwise_output(r, path + "/product", shape, how, gate), (gate, up), (gate, up), backward
    )


# ---- the two ends ------------------------------------------------------------------------------------------


def tensor_parallel_embedding(
    r: Recorder, embeddings: Embeddings, how: RunConfig, tied: GradientSum = GradientSum.NO
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Rows of the table; over tensor-parallel ranks each looks up its own, and the sum is cut along the
    sequence.
    """
    path, dtype = embeddings.weights[0].path, how.parameters
    name = path.removesuffix(".weight")
    tied = GradientSum.NO if REDUCED_HEAD in how.options else tied
    if not how.tensor_parallel:
        table = r.parameter(path, ("V0", "h"), dtype, joined=tied)
        return r.apply(
            r.tensor(f"{name}/output", STREAM, dtype), (table,), (), lambda _: [r.grad(("V0", "h"), dtype)]
        ), ()
    table = Tensor(None, ("V0", "h"), dtype, Leaf(name, ("V", "h"), dtype, joined=GradientSum.CUT))
    masks = r.tensor(f"{name}/elsewhere", ("b", "s"), BOOL), r.tensor(f"{name}/rows", ("b", "s"), INT64)
    found = r.apply(
        r.tensor(f"{name}/rows_found", WHOLE, dtype), (table,), (), lambda _: [r.grad(("V0", "h"), dtype)]
    )
    del masks
    return reduce_scatter_sequence(r, found, name, how), ()


def tensor_parallel_logits(
    r: Recorder, x: Tensor, head: Head, how: RunConfig, loss: Loss, table: str
) -> Tensor:
    """Logits: of the rank's share of the vocabulary where the loss takes them so, else of all of it."""
    name = (table if head.tied else head.weights[0].path).removesuffix(".weight")
    weight = r.parameter(
        name, ("V", "h"), how.parameters, joined=GradientSum.WAITS if head.tied else GradientSum.NO
    )
    whole = all_gather_sequence(r, x, name, how)
    del x
    if loss is Loss.CHUNKED:  # which makes logits itself
        return whole
    logits = r.linear(whole, weight, "V", name)
    del whole
    return (
        r.gathered(logits, ("b", "s", "V0"), name) if how.tensor_parallel and loss is Loss.PLAIN else logits
    )
