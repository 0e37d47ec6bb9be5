"""A layer of torchtune's decoders, operation by operation (torchtune 0.4, modules/transformer.py,
attention.py, feed_forward.py).

Local variables stand for those of its own functions: what one of them still names is still there.
"""

from __future__ import annotations

from memsheet.formulas.numerics import RunConfig, record_parameter
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.plan.dtypes import FP32, INT8, INT64, DType
from memsheet.plan.model import Attention, Block, Dense, Norm, Role, Weight

HEADS: Shape = ("b", "s", "a", "d")
COMPILED = "compiled"


def eager_layer_forward(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """TransformerSelfAttentionLayer.forward (transformer.py:75-127)."""
    (at,), ff, norms = block.mixers, block.feed_forward, block.norms
    assert isinstance(at, Attention)
    assert isinstance(ff, Dense)
    h = rms_norm(r, x, norms[0], how)
    attended = multi_head_attention(r, h, at, how)
    h = r.add(attended, x, "/residual")
    fed = feed_forward(r, rms_norm(r, h, norms[1], how), ff, how)
    return r.add(h, fed, "/residual")


def rms_norm(r: Recorder, x: Tensor, norm: Norm, how: RunConfig) -> Tensor:
    """RMSNorm.forward (rms_norm.py:28-44): in fp32 by a name that stays, normalised, lowered, times the
    weight.
    """
    path, dtype = norm.path, x.dtype
    weight = record_parameter(r, norm.weights[0], how, path)
    wide = r.cast(x, FP32, path + "/fp32")
    normed = r.cast(_rms_normalized_input(r, wide, path), dtype, path + "/normalized")
    return r.mul(normed, weight, path + "/output")


def _rms_normalized_input(r: Recorder, x: Tensor, path: str) -> Tensor:
    back, line = x.shape, (*x.shape[:-1], 1)
    square = r.unary(x, path + "/pow", saves="input", temporaries=2)
    mean = r.apply(r.tensor(path + "/mean", line, FP32), (square,), (), lambda _: [r.grad(back, FP32)])
    del square
    mean = r.unary(mean, path + "/eps", saves="nothing")
    return r.mul(x, r.unary(mean, path + "/rsqrt", saves="output", temporaries=2), path + "/normalized")


# ---- linear layers -----------------------------------------------------------------------------------------


def lora_or_nf4_linear(
    r: Recorder, x: Tensor, weights: dict[str, Weight], name: str, shape: tuple[Axis, Axis], how: RunConfig
) -> Tensor:
    """nn.Linear, FrozenNF4Linear or LoRALinear (peft/lora.py:121-141): ``shape`` is that of the weight."""
    weight, bias = weights[name + ".weight"], weights.get(name + ".bias")
    low = record_parameter(r, bias, how, f"{name}.bias") if bias else None
    out, width = shape
    if how.quantized and weight.role is Role.LINEAR:
        result = nf4_linear(r, x, shape, name)
        if low is not None:
            result = r.add(result, low, f"{name}/output")
    else:
        result = r.linear(x, r.parameter(name, shape, how.parameters, trains=how.trains), out, name, bias=low)
    if name.rsplit(".", 1)[-1] not in how.adapter_targets or how.adapter_dtype is None:
        return result
    down = r.parameter(f"{name}.lora_A", ("r", width), how.adapter_dtype)
    up = r.parameter(f"{name}.lora_B", (out, "r"), how.adapter_dtype)
    branch = r.linear(
        r.dropout(x, f"{name}/lora_dropout", active=how.adapter_dropout), down, "r", f"{name}.lora_A"
    )
    branch = r.scale(r.linear(branch, up, out, f"{name}.lora_B"), f"{name}/lora_scaled")
    return r.add(result, branch, f"{name}/output")


def nf4_linear(r: Recorder, x: Tensor, shape: tuple[Axis, Axis], path: str) -> Tensor:
    """LinearNF4 (torchao 0.7, dtypes/nf4tensor.py): the weight is dequantized for the product and again for
    the input's gradient.
    """
    given, dtype = x.shape, x.dtype
    weight = _dequantized_nf4_weight(r, shape, x.dtype, path)
    result = r.tensor(f"{path}/output", (*given[:-1], shape[0]), dtype)
    del weight

    def backward(_: Grad) -> list[Grad | None]:
        weight = _dequantized_nf4_weight(r, shape, dtype, path)
        grad = r.grad(given, dtype)
        del weight
        return [grad]

    return r.apply(result, (x,), (), backward)


def _dequantized_nf4_weight(r: Recorder, shape: tuple[Axis, Axis], dtype: DType, path: str) -> Grad:
    """NF4Tensor.get_original_weight: two elements of a byte as 64-bit indices, looked up, scaled, joined; all
    by names that stay.

    Half as many indices of 64 bits are 4 bytes an element, half as many values of 16 bits one.
    """
    name = f"{path}/dequantized"
    indices = [r.grad(shape, FP32, name) for _ in range(2)]
    looked = [r.grad(shape, INT8, name) for _ in range(2)]
    scaled = []
    for _ in range(2):
        factors = r.grad(shape, INT8, name)
        scaled.append(r.grad(shape, INT8, name))
        del factors
    whole = r.grad(shape, dtype, name)
    del indices, looked, scaled
    return whole


# ---- attention ---------------------------------------------------------------------------------------------


def multi_head_attention(r: Recorder, x: Tensor, at: Attention, how: RunConfig) -> Tensor:
    """MultiHeadAttention.forward (attention.py:190-300): queries turned, then keys, then keys and values
    repeated for every query head.
    """
    weights = {w.path: w for w in at.weights}
    names = [w.path.removesuffix(".weight") for w in at.weights if w.path.endswith(".weight")]
    q = r.view(lora_or_nf4_linear(r, x, weights, names[0], ("a·d", "h"), how), HEADS)
    q = rotary_embedding(r, q, at.path + "/q")
    k = lora_or_nf4_linear(r, x, weights, names[1], ("k·d", "h"), how)
    v = lora_or_nf4_linear(r, x, weights, names[2], ("k·d", "h"), how)
    k = rotary_embedding(r, r.view(k, ("b", "s", "k", "d")), at.path + "/k")
    v = r.view(v, ("b", "s", "k", "d"))
    k, v = _repeat_kv_heads(r, k, at.path + "/k", at), _repeat_kv_heads(r, v, at.path + "/v", at)
    out = flash_kernel_output(r, q, k, v, at.path)
    return lora_or_nf4_linear(r, r.view(out, ("b", "s", "a·d")), weights, names[3], ("h", "a·d"), how)


def _repeat_kv_heads(r: Recorder, x: Tensor, path: str, at: Attention) -> Tensor:
    """Keys or values expanded and reshaped, which copies; the gradient is summed back."""
    if at.heads == at.kv_heads:
        return x
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path + "/repeated", HEADS, dtype), (x,), (), lambda _: [r.grad(back, dtype)])


def flash_kernel_output(r: Recorder, q: Tensor, k: Tensor, v: Tensor, path: str) -> Tensor:
    """A flash kernel, whose output is laid out as the queries are: by position, so that merging heads copies
    nothing.
    """
    out = r.tensor(path + "/context", HEADS, q.dtype)
    lse, seed = r.tensor(path + "/logsumexp", ("b", "a", "s"), FP32), r.tensor(path + "/rng", (3,), INT64)
    return r.custom(path, (q, k, v), out, (q, k, v, out, lse, seed))


def rotary_embedding(r: Recorder, x: Tensor, path: str) -> Tensor:
    """RotaryPositionalEmbeddings.forward (position_embeddings.py:80-130): in fp32, odd and even elements by
    themselves.
    """
    dtype = x.dtype
    wide = r.cast(x, FP32, path + "/fp32")
    half: Shape = (*x.shape[:-1], "d/2")
    parts: list[Tensor] = []
    for sign in range(2):
        first = _rotary_half_product(r, wide, half, path)
        second = _rotary_half_product(r, wide, half, path)
        parts.append(_combine_rotary_products(r, first, second, path, negated=sign == 0))
        del first, second
    joined = r.cat((parts[0], parts[1]), x.shape, path + "/stacked")
    parts.clear()
    return r.cast(joined, dtype, path + "/rotary")


def _rotary_half_product(r: Recorder, wide: Tensor, half: Shape, path: str) -> Tensor:
    """One half times a column of the cache, which is a view of the model's buffer."""
    return r.mul(r.slice(wide, half), Tensor(None, half, FP32), path + "/product")


def _combine_rotary_products(r: Recorder, a: Tensor, b: Tensor, path: str, *, negated: bool) -> Tensor:
    """The difference of two products, whose second gradient is negated, or their sum."""
    shape = a.shape

    def backward(g: Grad) -> list[Grad | None]:
        return [
            Grad(g.storage, shape, FP32),
            r.grad(shape, FP32) if negated else Grad(g.storage, shape, FP32),
        ]

    return r.apply(r.tensor(path + "/turned", shape, FP32), (a, b), (), backward)


# ---- feed-forward ------------------------------------------------------------------------------------------


def feed_forward(r: Recorder, x: Tensor, ff: Dense, how: RunConfig) -> Tensor:
    """FeedForward.forward (feed_forward.py:40-52)."""
    weights = {w.path: w for w in ff.weights}
    gate, up, down = (w.path.removesuffix(".weight") for w in ff.weights if w.path.endswith(".weight"))
    h = r.unary(
        lora_or_nf4_linear(r, x, weights, gate, ("f", "h"), how), ff.path + "/activation", saves="input"
    )
    h = r.mul(h, lora_or_nf4_linear(r, x, weights, up, ("f", "h"), how), ff.path + "/product")
    return lora_or_nf4_linear(r, h, weights, down, ("h", "f"), how)
