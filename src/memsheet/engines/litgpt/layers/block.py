"""litgpt's blocks over shape-only tensors, in the order of its code (Lightning-AI/litgpt 0f021f3a, lit_gpt/).

Local variables stand for those of its functions: what one of them still names is still there. Axes are those
of ``blocks.py``. Attention is flash attention 2, of torch from 2.2 on (its README:113-121; the flash-attn
package before): its output is laid out as the queries are, head by head, so that it is copied where heads are
merged. Four-bit layers are those of bitsandbytes 0.41.0, which it pinned.
"""

from __future__ import annotations

from memsheet.engines.litgpt.layers.built import BEFORE, FIRST
from memsheet.formulas.model_code.transformers.attention import HEADS, MERGED
from memsheet.formulas.model_code.transformers.norms import apply_norm
from memsheet.formulas.numerics import RunConfig, record_parameter
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.plan.dtypes import BOOL, FP16, FP32, INT64, DType
from memsheet.plan.model import Arrangement, Attention, Block, Dense, Role, Weight

Weights = dict[str, Weight]
BIAS_ALIGNMENT = 8
"""Elements that a mask's last dimension is padded to for the efficient kernel (torch
transformers/attention.cpp, preprocess_mask).
"""


def litgpt_block_forward(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """A block (model.py:146-167). Nothing of those ahead of the first prompts trains, so that nothing is kept
    of what they hand on.
    """
    (at,), ff, norms = block.mixers, block.feed_forward, block.norms
    assert isinstance(at, Attention)
    assert isinstance(ff, Dense)
    if block.kind in (BEFORE, FIRST):
        x = Tensor(x.storage, x.shape, x.dtype)
    n_1 = apply_norm(r, x, norms[0], how)
    h = causal_self_attention(r, n_1, at, how)
    if block.arrangement is not Arrangement.PRE:
        n_2 = n_1 if block.arrangement is Arrangement.PARALLEL else apply_norm(r, x, norms[1], how)
        return r.add(r.add(feed_forward(r, n_2, ff, how), h, "/residual"), x, "/residual")
    x = r.add(h, x, "/residual")
    return r.add(feed_forward(r, apply_norm(r, x, norms[1], how), ff, how), x, "/residual")


# ---- linear layers -----------------------------------------------------------------------------------------


def linear_with_adapter(
    r: Recorder, x: Tensor, weights: Weights, name: str, out: Axis, width: Axis, how: RunConfig
) -> Tensor:
    """A linear layer with what its adapter adds: a bias and a scale of its own (adapter_v2.py:58), or a
    branch of two matrices (lora.py:176).

    The second is added for queries, keys and values together elsewhere (``_queries_keys_values``).
    """
    if f"{name}.adapter_scale" in weights:
        bias, scale = (
            module_parameter(r, weights[f"{name}.adapter_{what}"], (out,), how) for what in ("bias", "scale")
        )
        return r.mul(
            r.add(
                pretrained_linear(r, x, weights, f"{name}.linear", out, width, how), bias, f"{name}/shifted"
            ),
            scale,
            f"{name}/output",
        )
    pretrained = pretrained_linear(
        r, x, weights, f"{name}.linear" if f"{name}.linear.weight" in weights else name, out, width, how
    )
    if f"{name}.lora_A" not in weights or name == JOINED:
        return pretrained
    rank = weights[f"{name}.lora_A"].shape[0]
    down, up = (
        module_parameter(r, weights[f"{name}.lora_A"], (rank, width), how),
        module_parameter(r, weights[f"{name}.lora_B"], (out, rank), how),
    )
    low = r.linear(
        r.dropout(x, f"{name}/lora_dropout", active=how.adapter_dropout), down, rank, f"{name}.lora_A"
    )
    lora = r.scale(r.linear(low, up, out, f"{name}.lora_B"), f"{name}/lora_scaled")
    return r.add(pretrained, lora, f"{name}/output")


JOINED = "attn.attn"


def module_parameter(r: Recorder, weight: Weight, shape: Shape, how: RunConfig) -> Tensor:
    """A parameter of its module's own, by the axes of what it meets."""
    x = record_parameter(r, weight, how, weight.path.rpartition(".")[0])
    return Tensor(None, shape, x.dtype, x.node, stays=True)


def pretrained_linear(
    r: Recorder, x: Tensor, weights: Weights, name: str, out: Axis, width: Axis, how: RunConfig
) -> Tensor:
    """The layer itself."""
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    low = module_parameter(r, bias, (out,), how) if bias else None
    if how.quantized and weight.role is Role.LINEAR:
        return four_bit(r, x, (out, width), out, name)
    return r.linear(
        x, r.parameter(f"{name}.weight", (out, width), how.parameters, trains=how.trains), out, name, bias=low
    )


def four_bit(r: Recorder, x: Tensor, weight_shape: Shape, out: Axis, name: str) -> Tensor:
    """MatMul4Bit (bitsandbytes 0.41.0 autograd/_functions.py:495-549): the weight comes back in fp16, which
    litgpt's loader quantized from (fabric/plugins/precision/bitsandbytes.py:335), and is cast again. The
    input is kept as an attribute, which stays until the graph is gone.
    """
    shape, dtype, back = (*x.shape[:-1], out), x.dtype, x.shape
    weight = dequantized_weight(r, weight_shape, dtype, name)
    result = r.tensor(f"{name}/output", shape, dtype)
    del weight
    kept = [x.storage]

    def backward(_: Grad) -> list[Grad | None]:
        assert kept  # named here, so that it lives as long as this function
        weight = dequantized_weight(r, weight_shape, dtype, name)
        grad = r.grad(back, dtype)
        del weight
        return [grad]

    return r.apply(result, (x,), (), backward)


def dequantized_weight(r: Recorder, shape: Shape, dtype: DType, name: str) -> Tensor:
    """A four-bit weight as the product takes it; the fp16 one it is cast from goes."""
    half = r.tensor(f"{name}/dequantized_fp16", shape, FP16)
    return r.cast(half, dtype, f"{name}/dequantized")


# ---- attention ---------------------------------------------------------------------------------------------


def causal_self_attention(r: Recorder, x: Tensor, at: Attention, how: RunConfig) -> Tensor:
    """CausalSelfAttention.forward (model.py:183-230)."""
    weights = {w.path: w for w in at.weights}
    qkv = _queries_keys_values(r, x, at, weights, how)
    group = at.heads // at.kv_heads
    qkv = r.transposed_view(qkv, ("b", "k", group + 2, "s", "d"))
    q, k, v = r.split(qkv, (("b", "k", group, "s", "d"), ("b", "k", 1, "s", "d"), ("b", "k", 1, "s", "d")))
    k, v = _expand_kv_heads(r, k, at, "attn/k"), _expand_kv_heads(r, v, at, "attn/v")
    q = r.copy(q, HEADS, "attn/q") if at.kv_heads not in (1, at.heads) else r.view(q, HEADS)
    q_roped, k_roped = (
        apply_rope(r, _rotary_dims(r, q, at), "attn/q"),
        apply_rope(r, _rotary_dims(r, k, at), "attn/k"),
    )
    q = r.cat((q_roped, _unrotated_dims(r, q, at)), HEADS, "attn/q/rotary")
    k = r.cat((k_roped, _unrotated_dims(r, k, at)), HEADS, "attn/k/rotary")
    y = r.view(flash_sdpa(r, q, k, v), MERGED)
    if "attn.gating_factor" in weights:
        y = _with_prompts(r, q, y, at, weights, how)
    y = r.copy(y, ("b", "s", "a·d"), "attn/merged")
    return linear_with_adapter(r, y, weights, "attn.proj", "h", "a·d", how)


def _queries_keys_values(r: Recorder, x: Tensor, at: Attention, weights: Weights, how: RunConfig) -> Tensor:
    """LoRAQKVLinear.forward (lora.py:379-415): one product with A, a convolution of one element with B, zeros
    for what has no matrices.
    """
    pretrained = linear_with_adapter(r, x, weights, JOINED, "(a+2k)·d", "h", how)
    if f"{JOINED}.lora_A" not in weights:
        return pretrained
    a, b = weights[f"{JOINED}.lora_A"], weights[f"{JOINED}.lora_B"]
    rows, outputs = a.shape[0], b.shape[0]
    down, up = module_parameter(r, a, (rows, "h"), how), module_parameter(r, b, b.shape, how)
    after_a = r.linear(
        r.dropout(x, f"{JOINED}/lora_dropout", active=how.adapter_dropout), down, rows, f"{JOINED}.lora_A"
    )
    after_b = _lora_conv1d(r, after_a, up, outputs, at)
    lora = r.scale(_lora_zero_pad(r, after_b, outputs, at, how), f"{JOINED}/lora_scaled")
    return r.add(pretrained, lora, f"{JOINED}/output")


def _lora_conv1d(r: Recorder, x: Tensor, up: Tensor, outputs: int, at: Attention) -> Tensor:
    """conv1d: in groups where queries, keys and values are as wide, else one after another and joined
    (lora.py:325-358).
    """
    shape: Shape = ("b", "s", outputs)
    made = r.tensor(f"{JOINED}.lora_B/output", shape, x.dtype)
    if at.heads != at.kv_heads:
        parts, made = made, r.tensor(f"{JOINED}.lora_B/joined", shape, x.dtype)
        del parts
    return r.custom(f"{JOINED}.lora_B", (x, up), made, (x, up))


def _lora_zero_pad(r: Recorder, x: Tensor, outputs: int, at: Attention, how: RunConfig) -> Tensor:
    """zero_pad (lora.py:283-323): columns are copied into zeros. index_copy keeps its source, for its
    gradient is expanded as that.
    """
    whole: Shape = ("b", "s", "(a+2k)·d")
    if outputs == (at.heads + 2 * at.kv_heads) * at.head_dim:
        return r.view(x, whole)
    zeros = r.tensor(f"{JOINED}/zeros", whole, x.dtype)
    index = r.tensor(f"{JOINED}/lora_ind", (outputs,), INT64)
    source = r.copy(x, x.shape, f"{JOINED}/lora_source") if how.several else x
    back, dtype = x.shape, x.dtype
    padded = r.apply(
        r.tensor(f"{JOINED}/lora_padded", whole, dtype),
        (source,),
        (source, index),
        lambda _: [r.grad(back, dtype)],
    )
    del zeros
    return padded


def _expand_kv_heads(r: Recorder, x: Tensor, at: Attention, path: str) -> Tensor:
    """Keys or values for every query head: a copy, of a single head a view; the gradient is summed over the
    group.
    """
    if at.heads == at.kv_heads:
        return r.view(x, HEADS)
    back, dtype = x.shape, x.dtype
    out = Tensor(x.storage, HEADS, dtype) if at.kv_heads == 1 else r.tensor(path, HEADS, dtype)
    return r.apply(out, (x,), (), lambda _: [r.grad(back, dtype)])


def _rotary_dims(r: Recorder, x: Tensor, at: Attention) -> Tensor:
    """The part of a head that positions turn: all of it is the tensor itself."""
    return r.view(x, HEADS) if at.rotary_dim == at.head_dim else r.slice(x, (*HEADS[:-1], at.rotary_dim))


def _unrotated_dims(r: Recorder, x: Tensor, at: Attention) -> Tensor:
    """The part that they leave alone, which may be empty and has a gradient of zeros then."""
    return r.slice(x, (*HEADS[:-1], at.head_dim - at.rotary_dim))


def apply_rope(r: Recorder, x: Tensor, path: str) -> Tensor:
    """apply_rope (model.py:341-347). Tables are fp32: they are made anew, for the longest sample, outside the
    precision's context.
    """
    last = x.shape[-1]
    half = (*x.shape[:-1], last // 2 if isinstance(last, int) else f"{last}/2")
    x1, x2 = r.slice(x, half), r.slice(x, half)
    rotated = r.cat((r.scale(x2, f"{path}/neg"), x1), x.shape, f"{path}/rotated")
    cos, sin = (Tensor(None, ("s", last), FP32) for _ in range(2))
    roped = r.add(r.mul(x, cos, f"{path}/cos"), r.mul(rotated, sin, f"{path}/sin"), f"{path}/roped")
    return r.cast(roped, x.dtype, f"{path}/roped")


def flash_sdpa(r: Recorder, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = r.tensor("attn/context", HEADS, q.dtype)
    lse = r.tensor("attn/logsumexp", ("b", "a", "s"), FP32)
    seed = r.tensor("attn/rng", (2,), INT64)
    return r.custom("attn", (q, k, v), out, (q, k, v, out, lse, seed))


def _with_prompts(
    r: Recorder, q: Tensor, y: Tensor, at: Attention, weights: Weights, how: RunConfig
) -> Tensor:
    """Attention over the prompts, weighed by a gate (adapter.py:119-150)."""
    length = weights["attn.adapter_wte.weight"].shape[0]
    ones = r.tensor("attn/amask", ("s", length), BOOL)
    ay = r.view(_over_prompts(r, q, length, how), MERGED)
    del ones
    gate = module_parameter(r, weights["attn.gating_factor"], (1, 1, "a", 1), how)
    return r.add(y, r.mul(ay, gate, "attn/gated"), "attn/with_prompts")


def _over_prompts(r: Recorder, q: Tensor, length: int, how: RunConfig) -> Tensor:
    """A mask keeps flash out. The efficient kernel wants as many sequences of keys as of queries and there is
    one, so that several are attended to by plain operations (torch transformers/sdp_utils_cpp.h,
    check_batch_size_and_num_heads_dense).
    """
    shape, dtype = q.shape, q.dtype
    out = r.tensor("attn/prompts", shape, dtype)
    if not how.several:
        mask = r.tensor("attn/prompts_bias", ("s", -(-length // BIAS_ALIGNMENT) * BIAS_ALIGNMENT), dtype)
        lse = r.tensor("attn/prompts_logsumexp", ("b", "a", "s32"), FP32)
        return r.custom("attn/prompts", (q,), out, (q, out, lse, mask))
    scaled = r.scale(q, "attn/prompts_q")
    return r.custom(
        "attn/prompts", (scaled,), out, (r.tensor("attn/prompts_softmax", ("b", "a", "s", length), dtype),)
    )


# ---- feed-forward ------------------------------------------------------------------------------------------


def feed_forward(r: Recorder, x: Tensor, ff: Dense, how: RunConfig) -> Tensor:
    """GptNeoxMLP and LLaMAMLP (model.py:265-290)."""
    weights = {w.path: w for w in ff.weights}
    if not ff.gated:
        x = linear_with_adapter(r, x, weights, "mlp.fc", "f", "h", how)
        x = r.unary(x, "mlp/activation", saves="input")
        return linear_with_adapter(r, x, weights, "mlp.proj", "h", "f", how)
    x_fc_1 = linear_with_adapter(r, x, weights, "mlp.fc_1", "f", "h", how)
    x_fc_2 = linear_with_adapter(r, x, weights, "mlp.fc_2", "f", "h", how)
    x = r.mul(r.unary(x_fc_1, "mlp/activation", saves="input"), x_fc_2, "mlp/product")
    return linear_with_adapter(r, x, weights, "mlp.proj", "h", "f", how)
