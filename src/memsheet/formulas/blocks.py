"""Transformer blocks as the transformers library runs them, written over shape-only tensors.

Each function mirrors the order of operations of the model's own code, because the order decides what is alive when. Axes:
``b`` sequences, ``s`` positions, ``h`` hidden, ``a`` query heads, ``k`` key/value heads, ``d`` head dim, ``f`` feed-forward width
(``a``, ``k`` and ``f`` are a rank's share under tensor parallelism).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from memsheet.formulas.tape import Axis, Recorder, Tape, Tensor
from memsheet.spec.dtypes import FP16, FP32, INT64, DType
from memsheet.spec.model import Arrangement, Attention, Block, Dense, Norm, NormKind, Role, Weight


class AttentionKernel(Enum):
    """Which implementation computes softmax(q k) v."""

    EAGER = "eager"
    FUSED = "flash"  # flash through torch's scaled_dot_product_attention or the flash-attn package
    EFFICIENT = "efficient"  # torch's memory-efficient kernel: one head of keys a query head, a mask if there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What decides how a block runs, apart from its shapes. Part of the key under which a recording is kept."""

    parameters: DType
    stream: DType  # of the residual stream that enters the block
    autocast: DType | None
    attention: AttentionKernel
    dropout: bool = False
    trains: bool = True  # the base weights train; False under adapters
    input_grad: bool = True
    adapter_targets: frozenset[str] = frozenset()  # last names of the linear layers that carry LoRA matrices
    adapter_dtype: DType | None = None
    adapter_dropout: bool = False
    quantized: bool = False  # linear weights are dequantized for each use
    padded_head: int | None = None  # flash pads the head dim to this many
    mask: bool = False  # the efficient kernel gets a mask, turned into a bias in the compute dtype for each layer


Activation = Callable[[Recorder, Tensor, str], Tensor]


def _gelu_new(r: Recorder, x: Tensor, path: str) -> Tensor:
    """0.5 * x * (1 + tanh(c * (x + 0.044715 * x**3))), operation by operation."""
    half = r.scale(x, path)
    cube = r.unary(x, path + "/pow", saves="input", temporaries=2)
    inner = r.add(x, r.scale(cube, path), path)
    del cube
    tanh = r.unary(r.scale(inner, path), path + "/tanh", saves="output")
    del inner
    return r.mul(half, r.unary(tanh, path + "/one_plus", saves="nothing"), path)


def _fused(r: Recorder, x: Tensor, path: str) -> Tensor:
    return r.unary(x, path, saves="input")


def _relu(r: Recorder, x: Tensor, path: str) -> Tensor:
    return r.unary(x, path, saves="output")


def _relu2(r: Recorder, x: Tensor, path: str) -> Tensor:
    return r.unary(_relu(r, x, path), path + "/square", saves="input", temporaries=2)


ACTIVATIONS: dict[str, Activation] = {
    "silu": _fused, "swish": _fused, "gelu": _fused, "gelu_pytorch_tanh": _fused, "gelu_python_tanh": _gelu_new,
    "gelu_new": _gelu_new, "gelu_fast": _gelu_new, "relu": _relu, "relu2": _relu2,
}  # fmt: skip


def rms_norm(r: Recorder, x: Tensor, norm: Norm, path: str, how: Numerics) -> Tensor:
    """Root-mean-square norm in fp32; where the weight is applied and the result cast back depends on the family."""
    weight = _parameter(r, norm.weights[0], how, path)
    wide = r.cast(x, FP32, path + "/fp32")
    square = r.unary(wide, path + "/pow", saves="input", temporaries=2)
    line = (*wide.shape[:-1], 1)
    mean = _mean(r, square, line, path)
    del square
    rstd = r.unary(r.unary(mean, path + "/eps", saves="nothing"), path + "/rsqrt", saves="output", temporaries=2)
    normal = r.mul(wide, rstd, path + "/normalized", reduces=True)
    if norm.kind is NormKind.RMS:
        return r.mul(r.cast(normal, x.dtype, path + "/normalized"), weight, path + "/output", reduces=True)
    if norm.kind is NormKind.RMS_OFFSET:
        weight = r.unary(r.cast(weight, FP32, path + "/weight"), path + "/weight", saves="nothing")
    return r.cast(r.mul(normal, weight, path + "/scaled", reduces=True), x.dtype, path + "/output")


def _mean(r: Recorder, x: Tensor, line: tuple[Axis, ...], path: str) -> Tensor:
    """The mean over the last dimension; its gradient is spread over a full-size tensor."""
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path + "/mean", line, dtype), (x,), (), lambda _: [r.grad(back, dtype)])


def layer_norm(r: Recorder, x: Tensor, norm: Norm, path: str, how: Numerics) -> Tensor:
    """torch's fused layer norm: saves its input and two fp32 statistics a position. Autocast runs it in fp32."""
    if r.compute is not None:
        x = r.cast(x, FP32, path + "/input")
    line = (*x.shape[:-1], 1)
    mean, rstd = r.tensor(path + "/mean", line, FP32), r.tensor(path + "/rstd", line, FP32)
    weights = tuple(_parameter(r, w, how, path) for w in norm.weights)
    return r.custom(path, (x, *weights), r.tensor(path + "/output", x.shape, x.dtype), (x, mean, rstd))


def unfused_layer_norm(r: Recorder, x: Tensor, norm: Norm, path: str, how: Numerics) -> Tensor:
    """Layer norm written out in fp32 elementwise operations (cohere)."""
    weight = _parameter(r, norm.weights[0], how, path)
    wide = r.cast(x, FP32, path + "/fp32")
    line = (*wide.shape[:-1], 1)
    mean = _mean(r, wide, line, path)
    centred = r.add(wide, mean, path + "/centred")
    square = r.unary(centred, path + "/pow", saves="input", temporaries=2)
    variance = _mean(r, square, line, path)
    del square
    back = r.add(wide, mean, path + "/numerator")
    rstd = r.unary(r.unary(variance, path, saves="nothing"), path + "/rsqrt", saves="output", temporaries=2)
    normal = r.mul(back, rstd, path + "/normalized", reduces=True)
    scale = r.cast(weight, FP32, path + "/weight")
    return r.cast(r.mul(normal, scale, path + "/scaled", reduces=True), x.dtype, path + "/output")


def normalise(r: Recorder, x: Tensor, norm: Norm, how: Numerics, path: str | None = None) -> Tensor:
    path = path or norm.path
    if norm.kind in (NormKind.LAYER, NormKind.LAYER_NO_AFFINE):
        return layer_norm(r, x, norm, path, how)
    if norm.kind is NormKind.LAYER_UNFUSED:
        return unfused_layer_norm(r, x, norm, path, how)
    return rms_norm(r, x, norm, path, how)


def _parameter(r: Recorder, weight: Weight, how: Numerics, path: str) -> Tensor:
    return r.parameter(path, tuple(weight.shape), how.parameters, trains=how.trains)


def project(r: Recorder, x: Tensor, weights: dict[str, Weight], name: str, out: Axis, width: Axis, how: Numerics) -> Tensor:
    """The linear layer ``name`` of a block, with its LoRA branch where it carries one."""
    weight, bias = weights[name + ".weight"], weights.get(name + ".bias")
    low = _parameter(r, bias, how, name) if bias else None
    if how.quantized and weight.role is Role.LINEAR:
        result = r.dequantized_linear(x, (out, width), out, name, bias=low)
    else:
        result = r.linear(x, r.parameter(name, (out, width), how.parameters, trains=how.trains), out, name, bias=low)
    if name.rsplit(".", 1)[-1] in how.adapter_targets and how.adapter_dtype is not None:
        return _with_adapter(r, x, result, name, out, width, how.adapter_dtype, how)
    return result


def _with_adapter(r: Recorder, x: Tensor, base: Tensor, name: str, out: Axis, width: Axis, dtype: DType, how: Numerics) -> Tensor:
    """``base + lora_B(lora_A(dropout(x))) * scaling``, the input cast to the adapter's dtype (peft's Linear.forward)."""
    down = r.parameter(f"{name}.lora_A", ("r", width), dtype)
    up = r.parameter(f"{name}.lora_B", (out, "r"), dtype)
    if r.compute is None:
        x = r.cast(x, dtype, f"{name}.lora/input")
    x = r.dropout(x, f"{name}.lora/dropout", active=how.adapter_dropout)
    branch = r.linear(r.linear(x, down, "r", f"{name}.lora_A"), up, out, f"{name}.lora_B")
    scaled = r.scale(branch, f"{name}.lora/scaled")
    del branch
    total = r.add(base, scaled, f"{name}/output")
    return r.cast(total, base.dtype, f"{name}/output")


def rotary(r: Recorder, x: Tensor, at: Attention, stream: DType, path: str) -> Tensor:
    """Rotary positions on all of a head, or on its first ``rotary_dim`` elements."""
    if at.rotary_dim == at.head_dim:
        return _rotate(r, x, stream, path)
    turned = r.slice(x, (*x.shape[:-1], at.rotary_dim))
    passed = r.slice(x, (*x.shape[:-1], at.head_dim - at.rotary_dim))
    return r.cat((_rotate(r, turned, stream, path), passed), x.shape, path + "/rotary")


def _rotate(r: Recorder, x: Tensor, stream: DType, path: str) -> Tensor:
    """x * cos + rotate_half(x) * sin, against tables that all layers share."""
    table = Tensor(None, ("s", x.shape[-1]), stream)
    direct = r.mul(x, table, path + "/cos", reduces=True)
    turned = r.mul(_rotate_half(r, x, path), table, path + "/sin", reduces=True)
    return r.add(direct, turned, path + "/rotary")


def _rotate_half(r: Recorder, x: Tensor, path: str) -> Tensor:
    last = x.shape[-1]
    half = (*x.shape[:-1], last // 2 if isinstance(last, int) else f"{last}/2")
    first, second = r.slice(x, half), r.slice(x, half)
    return r.cat((r.scale(second, path + "/neg"), first), x.shape, path + "/rotated")


def repeat_kv(r: Recorder, x: Tensor, path: str, *, grouped: bool) -> Tensor:
    """Keys or values copied out for every query head; the gradient is summed back over the group."""
    if not grouped:
        return x
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, ("b", "a", "s", "d"), dtype), (x,), (), lambda _: [r.grad(back, dtype)])


def eager_attention(r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: Numerics) -> Tensor:
    """The score matrix in full: scaled, masked, softmax in fp32, cast back, dropout, times the values."""
    path, scores = at.path, ("b", "a", "s", "s")
    grouped = at.heads != at.kv_heads
    k, v = repeat_kv(r, k, path + "/k", grouped=grouped), repeat_kv(r, v, path + "/v", grouped=grouped)
    weights = _matmul(r, q, k, scores, path + "/scores")
    weights = r.scale(weights, path + "/scores")
    if at.softcap:
        weights = r.scale(r.unary(r.scale(weights, path), path + "/softcap", saves="output"), path + "/softcap")
    weights = r.add(weights, Tensor(None, ("b", 1, "s", "s"), weights.dtype), path + "/scores")
    if weights.dtype is not FP16:  # softmax reads fp16 and writes fp32 in one kernel; anything else is cast first
        weights = r.cast(weights, FP32, path + "/scores")
    weights = r.unary(weights, path + "/softmax", saves="output", dtype=FP32)
    weights = r.cast(weights, q.dtype, path + "/probabilities")
    weights = r.dropout(weights, path + "/dropout", active=how.dropout)
    out = _matmul(r, weights, v, ("b", "a", "s", "d"), path + "/context")
    return _contiguous(r, out, path)


def _contiguous(r: Recorder, x: Tensor, path: str) -> Tensor:
    return r.copy(x, ("b", "s", "a", "d"), path + "/context")


def _matmul(r: Recorder, a: Tensor, b: Tensor, shape: tuple[Axis, ...], path: str) -> Tensor:
    """A batched product: saves both operands."""
    a, b = r.autocast(a, path + "/a"), r.autocast(b, path + "/b")
    return r.custom(path, (a, b), r.tensor(path, shape, a.dtype), tuple(t for t, other in ((a, b), (b, a)) if other.needs_grad))


def fused_attention(r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: Numerics) -> Tensor:
    """A flash kernel: keeps q, k, v, its output and one fp32 log-sum-exp a head and position, no score matrix."""
    path = at.path
    q, k, v = (r.autocast(t, f"{path}/{name}") for t, name in ((q, "q"), (k, "k"), (v, "v")))
    if how.padded_head:
        q, k, v = (_pad(r, t, f"{path}/{name}_padded", how.padded_head) for t, name in ((q, "q"), (k, "k"), (v, "v")))
    out = r.tensor(path + "/context", q.shape, q.dtype)
    lse = r.tensor(path + "/logsumexp", ("b", "a", "s"), FP32)
    seed = r.tensor(path + "/rng", (3,), INT64)
    r.custom(path, (q, k, v), out, (q, k, v, out, lse, seed))
    if how.padded_head:
        return _contiguous(r, r.slice(out, ("b", "a", "s", "d")), path)
    return r.view(out, ("b", "s", "a", "d"))


def efficient_attention(r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: Numerics) -> Tensor:
    """The memory-efficient kernel: as flash, with keys and values repeated, statistics padded to 32 and a bias for a mask."""
    path, grouped = at.path, at.heads != at.kv_heads
    k, v = repeat_kv(r, k, path + "/k", grouped=grouped), repeat_kv(r, v, path + "/v", grouped=grouped)
    q, k, v = (r.autocast(t, f"{path}/{name}") for t, name in ((q, "q"), (k, "k"), (v, "v")))
    bias = (r.tensor(path + "/mask_bias", ("b", "s", "s"), q.dtype),) if how.mask else ()
    out = r.tensor(path + "/context", q.shape, q.dtype)
    lse = r.tensor(path + "/logsumexp", ("b", "a", "s32"), FP32)
    seed = r.tensor(path + "/rng", (2,), INT64)
    r.custom(path, (q, k, v), out, (q, k, v, out, lse, seed, *bias))
    return r.view(out, ("b", "s", "a", "d"))


def _pad(r: Recorder, x: Tensor, path: str, head: Axis) -> Tensor:
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, (*x.shape[:-1], head), dtype), (x,), (), lambda _: [r.grad(back, dtype)])


CORES = {
    AttentionKernel.EAGER: eager_attention,
    AttentionKernel.FUSED: fused_attention,
    AttentionKernel.EFFICIENT: efficient_attention,
}


def attention(r: Recorder, x: Tensor, at: Attention, how: Numerics) -> Tensor:
    """Projections, norms of queries and keys, rotary positions, attention, output projection."""
    weights = {w.path: w for w in at.weights}
    q, k, v = _queries_keys_values(r, x, at, weights, how)
    if at.rotary_dim:
        q = rotary(r, q, at, how.stream, at.path + "/q")
        k = rotary(r, k, at, how.stream, at.path + "/k")
    context = CORES[how.attention](r, q, k, v, at, how)
    merged = r.view(context, ("b", "s", "a·d"))
    out = next(n for n in reversed([w.path for w in at.weights]) if n.endswith(".weight")).removesuffix(".weight")
    return project(r, merged, weights, out, "h", "a·d", how)


def _queries_keys_values(r: Recorder, x: Tensor, at: Attention, weights: dict[str, Weight], how: Numerics) -> list[Tensor]:
    if at.fused_qkv:
        name = at.weights[0].path.removesuffix(".weight")
        whole = project(r, x, weights, name, "(a+2k)·d", "h", how)
        parts = r.split(whole, (("b", "s", "a", "d"), ("b", "s", "k", "d"), ("b", "s", "k", "d")))
        return [r.view(p, ("b", p.shape[2], "s", "d")) for p in parts]
    names = [w.path.removesuffix(".weight") for w in at.weights if w.path.endswith(".weight")][:3]
    made = []
    for name, heads, norm in zip(names, ("a", "k", "k"), (True, True, False), strict=True):
        y = project(r, x, weights, name, f"{heads}·d", "h", how)
        if at.qk_norm and norm and at.qk_norm.size != at.head_dim:
            y = normalise(r, y, at.qk_norm, how, name + "_norm")
        y = r.view(y, ("b", "s", heads, "d"))
        if at.qk_norm and norm and at.qk_norm.size == at.head_dim:
            y = normalise(r, y, at.qk_norm, how, name + "_norm")
        made.append(r.transposed_view(y, ("b", heads, "s", "d")))
        del y
    return made


def dense(r: Recorder, x: Tensor, ff: Dense, how: Numerics) -> Tensor:
    """A feed-forward layer: gated (gate, up, product, down) or plain (up, activation, down)."""
    weights = {w.path: w for w in ff.weights}
    names = [w.path.removesuffix(".weight") for w in ff.weights if w.path.endswith(".weight")]
    act = ACTIVATIONS[ff.activation]
    if not ff.gated:
        inner = act(r, project(r, x, weights, names[0], "f", "h", how), ff.path + "/activation")
        return project(r, inner, weights, names[-1], "h", "f", how)
    if ff.fused:
        gate, up = r.split(project(r, x, weights, names[0], "2·f", "h", how), (("b", "s", "f"), ("b", "s", "f")))
        inner = r.mul(act(r, gate, ff.path + "/activation"), up, ff.path + "/product")
        del gate, up
        return project(r, inner, weights, names[-1], "h", "f", how)
    gate = act(r, project(r, x, weights, names[0], "f", "h", how), ff.path + "/activation")
    inner = r.mul(gate, project(r, x, weights, names[1], "f", "h", how), ff.path + "/product")
    del gate
    return project(r, inner, weights, names[-1], "h", "f", how)


def forward(r: Recorder, x: Tensor, block: Block, how: Numerics) -> Tensor:
    """One dense decoder block, by its arrangement of norms and residuals."""
    (at,), ff, norms = block.mixers, block.feed_forward, block.norms
    assert isinstance(at, Attention)
    assert isinstance(ff, Dense)

    def mix(y: Tensor) -> Tensor:
        return _branch(r, attention(r, y, at, how), block, at.path, how)

    def feed(y: Tensor) -> Tensor:
        return _branch(r, dense(r, y, ff, how), block, ff.path, how)

    match block.arrangement:
        case Arrangement.PRE:
            x = r.add(mix(normalise(r, x, norms[0], how)), x, at.path + "/residual")
            return r.add(feed(normalise(r, x, norms[1], how)), x, ff.path + "/residual")
        case Arrangement.SANDWICH:
            x = r.add(normalise(r, mix(normalise(r, x, norms[0], how)), norms[1], how), x, at.path + "/residual")
            return r.add(normalise(r, feed(normalise(r, x, norms[2], how)), norms[3], how), x, ff.path + "/residual")
        case Arrangement.POST_BRANCH:
            x = r.add(normalise(r, mix(x), norms[0], how), x, at.path + "/residual")
            return r.add(normalise(r, feed(x), norms[1], how), x, ff.path + "/residual")
        case Arrangement.POST:
            x = normalise(r, r.add(mix(x), x, at.path + "/residual"), norms[0], how)
            return normalise(r, r.add(feed(x), x, ff.path + "/residual"), norms[1], how)
        case Arrangement.PARALLEL:
            y = normalise(r, x, norms[0], how)
            return r.add(r.add(mix(y), feed(y), "residual"), x, "residual")
        case Arrangement.PARALLEL_TWO_NORMS:
            mixed = mix(normalise(r, x, norms[0], how))
            return r.add(r.add(mixed, feed(normalise(r, x, norms[1], how)), "residual"), x, "residual")
        case _:
            raise NotImplementedError(block.arrangement)


def _branch(r: Recorder, y: Tensor, block: Block, path: str, how: Numerics) -> Tensor:
    """What happens to a branch before it joins the stream: dropout, a constant factor."""
    y = r.dropout(y, path + "/residual_dropout", active=how.dropout)
    return r.scale(y, path + "/scaled") if block.residual_scale else y


@lru_cache(maxsize=512)
def record(block: Block, how: Numerics, *, saving: bool = True) -> Tape:
    """The tape of one block. ``saving``: False for a forward whose activations will be recomputed."""
    r = Recorder(compute=how.autocast, saving=saving)
    x = r.arriving(("b", "s", "h"), how.stream, needs_grad=how.input_grad)
    return r.finish(forward(r, x, block, how), x)


def unmodelled(block: Block) -> str | None:
    """Why a block cannot be recorded here, or None when it can."""
    if len(block.mixers) != 1 or not isinstance(block.mixers[0], Attention):
        return f"its mixer is {' and '.join(type(m).__name__ for m in block.mixers) or 'missing'}"
    at = block.mixers[0]
    if at.sinks or at.gated_output or at.position_bias or at.chunk:
        return "its attention has sinks, gates or biases"
    if not isinstance(block.feed_forward, Dense):
        return f"its feed-forward is {type(block.feed_forward).__name__}"
    if block.feed_forward.activation not in ACTIVATIONS:
        return f"its activation {block.feed_forward.activation} is not listed"
    if block.arrangement in (Arrangement.OTHER, Arrangement.MIXER_ONLY, Arrangement.FEED_FORWARD_ONLY):
        return "its residual arrangement is not modelled"
    return None
