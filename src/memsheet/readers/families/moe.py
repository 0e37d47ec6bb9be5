"""Mixture-of-experts decoders: Llama-like attention, and a router with stacked experts in place of the
feed-forward.

Module names and defaults are those of transformers 5 (models/<model_type>/): experts are two tensors a layer
with the expert first.
"""

from __future__ import annotations

from memsheet.frozen import dataclass, replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    FeedForward,
    ModelSpec,
    Moe,
    Norm,
    NormKind,
    Role,
    Run,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.parts import (
    gated_mlp,
    layer_norm,
    norm_of_kind,
    repeating_layer_runs,
    separate_qkv_attention,
)
from memsheet.readers.sparse_parts import (
    causal_lm,
    correction_bias,
    experts_per_token,
    key_value_heads,
    layer_kinds,
    norm_pair,
    nullable_count,
    rotary_width,
    router_weights,
    stacked_gated_moe,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defaults:
    """What a family's config class assumes for a missing key. ``kv_heads`` None: as many as query heads."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int | None
    intermediate: int
    experts: int
    per_token: int | None
    positions: int
    head_dim: int | None = None
    moe_intermediate: int = 0
    bias: bool = False
    tied: bool = False
    expert_keys: tuple[str, ...] = ("num_local_experts",)


# fmt: off
_FAMILIES = {
    "mixtral": _Defaults(vocab=32000, hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=14336, experts=8, per_token=2,
                         positions=131072, expert_keys=("num_local_experts", "num_experts")),
    "qwen2_moe": _Defaults(vocab=151936, hidden=2048, layers=24, heads=16, kv_heads=16, intermediate=5632, moe_intermediate=1408,
                           experts=60, per_token=4, positions=32768, bias=True, expert_keys=("num_experts",)),
    "qwen3_moe": _Defaults(vocab=151936, hidden=2048, layers=24, heads=32, kv_heads=4, intermediate=6144, moe_intermediate=768,
                           experts=128, per_token=8, positions=32768, expert_keys=("num_local_experts", "num_experts")),
    "phimoe": _Defaults(vocab=32064, hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=6400, experts=16, per_token=2,
                        positions=131072),
    "olmoe": _Defaults(vocab=50304, hidden=2048, layers=16, heads=16, kv_heads=None, intermediate=2048, experts=64, per_token=8,
                       positions=4096, expert_keys=("num_local_experts", "num_experts")),
    "granitemoe": _Defaults(vocab=32000, hidden=4096, layers=32, heads=32, kv_heads=None, intermediate=11008, experts=8, per_token=2,
                            positions=2048),
    "glm4_moe": _Defaults(vocab=151552, hidden=4096, layers=46, heads=96, kv_heads=8, intermediate=10944, moe_intermediate=1408,
                          experts=128, per_token=8, positions=131072, expert_keys=("num_local_experts", "n_routed_experts")),
    "gpt_oss": _Defaults(vocab=201088, hidden=2880, layers=36, heads=64, kv_heads=8, head_dim=64, intermediate=2880, experts=128,
                         per_token=4, positions=131072, bias=True, expert_keys=("num_local_experts", "num_experts")),
    "ernie4_5_moe": _Defaults(vocab=103424, hidden=2560, layers=28, heads=20, kv_heads=4, intermediate=12288, moe_intermediate=1536,
                              experts=64, per_token=6, positions=131072, tied=True, expert_keys=("moe_num_experts", "num_experts")),
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """The sizes of one config, read once."""

    kind: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    moe_intermediate: int
    experts: int
    per_token: int
    bias: bool
    activation: str


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="", choices=tuple(_FAMILIES)) or "mixtral"
    known = _FAMILIES[kind]
    sizes = _read_moe_sizes(config, kind, known)
    return causal_lm(
        config,
        kind,
        sizes.hidden,
        config.count("vocab_size", default=known.vocab),
        _moe_layer_runs(config, sizes),
        final_norm=_moe_layer_norm(sizes, "norm"),
        tied=known.tied,
        positions=config.count("max_position_embeddings", default=known.positions),
        head_bias=(kind == "phimoe" and config.flag("lm_head_bias", default=False))
        or (kind == "ernie4_5_moe" and sizes.bias),
        scaled_embeddings=kind == "granitemoe",
        scaled_logits=kind == "granitemoe",
    )


def _read_moe_sizes(config: Fields, kind: str, known: _Defaults) -> _Sizes:
    hidden = config.count("hidden_size", default=known.hidden)
    heads = config.count("num_attention_heads", default=known.heads)
    # a router over no experts at all is how qwen2_moe and qwen3_moe spell a dense model
    experts = config.count(
        *known.expert_keys, default=known.experts, low=0 if kind in ("qwen2_moe", "qwen3_moe") else 1
    )
    intermediate = config.count("intermediate_size", default=known.intermediate)
    bias_key = {"qwen2_moe": "qkv_bias", "ernie4_5_moe": "use_bias"}.get(kind, "attention_bias")
    per_token_keys = ("moe_k", "num_experts_per_tok") if kind == "ernie4_5_moe" else ("num_experts_per_tok",)
    return _Sizes(
        kind=kind,
        hidden=hidden,
        layers=config.layers(default=known.layers),
        heads=heads,
        kv_heads=key_value_heads(config, heads, default=known.kv_heads),
        head_dim=config.count("head_dim", default=known.head_dim or max(hidden // heads, 1)),
        intermediate=intermediate,
        moe_intermediate=config.count("moe_intermediate_size", default=known.moe_intermediate)
        if known.moe_intermediate
        else intermediate,
        experts=experts,
        per_token=experts_per_token(config, *per_token_keys, default=known.per_token, experts=experts),
        bias=kind != "mixtral" and config.flag(bias_key, default=known.bias),
        activation=config.text("hidden_act", default="silu"),
    )


def _moe_layer_runs(config: Fields, sizes: _Sizes) -> tuple[Run, ...]:
    """Layers differ in two ways only: the attention window, and whether the feed-forward is routed."""
    keys = list(zip(_layer_sliding_windows(config, sizes), _routed_layers(config, sizes), strict=True))
    qk_norm, dense = _qk_norm(config, sizes), _unrouted_mlp(sizes)
    routed = _routed_experts(config, sizes) if sizes.experts else dense

    def make(key: tuple[int | None, bool]) -> Block:
        window, is_routed = key
        return _moe_decoder_block(
            sizes, _moe_self_attention(config, sizes, window, qk_norm), routed if is_routed else dense
        )

    return repeating_layer_runs(keys, make)


def _moe_decoder_block(sizes: _Sizes, mixer: Attention, feed_forward: FeedForward) -> Block:
    return Block(
        kind=sizes.kind,
        hidden=sizes.hidden,
        arrangement=Arrangement.PRE,
        mixers=(mixer,),
        feed_forward=feed_forward,
        norms=(_moe_layer_norm(sizes, "input_layernorm"), _moe_layer_norm(sizes, "post_attention_layernorm")),
        residual_scale=sizes.kind == "granitemoe",
    )


def _moe_layer_norm(sizes: _Sizes, path: str) -> Norm:
    match sizes.kind:
        case "phimoe":
            return layer_norm(path, sizes.hidden)
        case "gpt_oss":
            return norm_of_kind(path, sizes.hidden, NormKind.RMS_FP32_SCALE)
        case _:
            return norm_of_kind(path, sizes.hidden, NormKind.RMS)


def _qk_norm(config: Fields, sizes: _Sizes) -> Norm | None:
    names = ("q_norm", "k_norm")
    if sizes.kind == "olmoe":  # over the whole projection, sized from hidden_size whatever head_dim says
        return norm_pair("self_attn", names, (sizes.hidden, sizes.hidden // sizes.heads * sizes.kv_heads))
    if sizes.kind == "qwen3_moe" or (sizes.kind == "glm4_moe" and config.flag("use_qk_norm", default=False)):
        return norm_pair("self_attn", names, (sizes.head_dim, sizes.head_dim))
    return None


def _moe_self_attention(config: Fields, sizes: _Sizes, window: int | None, qk_norm: Norm | None) -> Attention:
    mixer = separate_qkv_attention(
        "self_attn",
        sizes.hidden,
        sizes.heads,
        sizes.kv_heads,
        sizes.head_dim,
        window=window,
        qk_norm=qk_norm,
        qkv_bias=sizes.bias,
        out_bias=sizes.bias and sizes.kind not in ("qwen2_moe", "glm4_moe"),
        rotary_dim=rotary_width(config, sizes.head_dim, default=0.5 if sizes.kind == "glm4_moe" else 1.0),
    )
    if sizes.kind != "gpt_oss":
        return mixer
    sinks = Weight(path="self_attn.sinks", shape=(sizes.heads,), role=Role.OTHER, cut=0, units=sizes.heads)
    return replace(mixer, sinks=True, weights=(*mixer.weights, sinks))


def _layer_sliding_windows(config: Fields, sizes: _Sizes) -> tuple[int | None, ...]:
    """The sliding window of every layer, None where attention is full."""
    full = ["full_attention"] * sizes.layers
    match sizes.kind:
        case "mixtral" | "phimoe":
            return (config.optional("sliding_window"),) * sizes.layers
        case "qwen3_moe":
            sliding = config.flag("use_sliding_window", default=False)
            return (nullable_count(config, "sliding_window", 4096) if sliding else None,) * sizes.layers
        case "qwen2_moe":
            sliding = config.flag("use_sliding_window", default=False)
            window = nullable_count(config, "sliding_window", 4096) if sliding else None
            last = config.count("max_window_layers", default=28, low=0)
            default = [
                "sliding_attention" if sliding and i % 2 == 0 and i < last else "full_attention"
                for i in range(sizes.layers)
            ]
        case "gpt_oss":
            window = nullable_count(config, "sliding_window", 128)
            default = ["full_attention" if i % 2 else "sliding_attention" for i in range(sizes.layers)]
        case _:
            window, default = None, full
    kinds = layer_kinds(config, "layer_types", sizes.layers, default)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _routed_layers(config: Fields, sizes: _Sizes) -> tuple[bool, ...]:
    """Which layers have experts; the others keep a dense feed-forward."""
    layers = range(sizes.layers)
    match sizes.kind:
        case "qwen2_moe" | "qwen3_moe":
            step, dense = config.count("decoder_sparse_step", default=1), config.counts("mlp_only_layers")
            return tuple(bool(sizes.experts) and i not in dense and (i + 1) % step == 0 for i in layers)
        case "glm4_moe":
            first = config.count("first_k_dense_replace", default=1, low=0)
            return tuple(i >= first for i in layers)
        case "ernie4_5_moe":
            first, end = (
                config.count("moe_layer_start_index", default=1, low=0),
                config.count("moe_layer_end_index", default=-1, low=-1),
            )
            step, last = config.count("moe_layer_interval", default=1), sizes.layers - 1 if end == -1 else end
            return tuple((i + 1) % step == 0 and first <= i <= last for i in layers)
        case _:
            return (True,) * sizes.layers


def _unrouted_mlp(sizes: _Sizes) -> Dense:
    bias = sizes.kind == "ernie4_5_moe" and sizes.bias
    return gated_mlp("mlp", sizes.hidden, sizes.intermediate, sizes.activation, bias=bias)


def _routed_experts(config: Fields, sizes: _Sizes) -> Moe:
    path = "block_sparse_moe" if sizes.kind == "granitemoe" else "mlp"
    if sizes.kind == "gpt_oss":
        return _gpt_oss_experts(sizes, path)
    return stacked_gated_moe(
        config,
        path,
        sizes.hidden,
        sizes.experts,
        per_token=sizes.per_token,
        intermediate=sizes.moe_intermediate,
        gate="router" if sizes.kind in ("phimoe", "granitemoe") else "gate",
        shared=_shared_expert_mlp(config, sizes),
        extras=_moe_extras(sizes),
        router_dtype="fp32" if sizes.kind == "ernie4_5_moe" else None,
    )


def _shared_expert_mlp(config: Fields, sizes: _Sizes) -> Dense | None:
    match sizes.kind:
        case "qwen2_moe":
            width = config.count("shared_expert_intermediate_size", default=5632)
            return gated_mlp("mlp.shared_expert", sizes.hidden, width, sizes.activation)
        case "glm4_moe":
            count = config.count("n_shared_experts", default=1, low=0)
        case "ernie4_5_moe":
            count = config.count("moe_num_shared_experts", default=2, low=0)
        case _:
            count = 0
    bias = sizes.kind == "ernie4_5_moe" and sizes.bias
    return (
        gated_mlp(
            "mlp.shared_experts", sizes.hidden, count * sizes.moe_intermediate, sizes.activation, bias=bias
        )
        if count
        else None
    )


def _moe_extras(sizes: _Sizes) -> tuple[Weight, ...]:
    match sizes.kind:
        case "qwen2_moe":  # a sigmoid gate on the shared expert's output
            return (Weight(path="mlp.shared_expert_gate.weight", shape=(1, sizes.hidden), role=Role.LINEAR),)
        case "glm4_moe":
            return (correction_bias("mlp.gate", sizes.experts),)
        case "ernie4_5_moe":  # here the correction is a parameter that asks for no gradient
            path = "mlp.gate.moe_statics.e_score_correction_bias"
            return (Weight(path=path, shape=(1, sizes.experts), role=Role.OTHER, dtype="fp32"),)
        case _:
            return ()


def _gpt_oss_experts(sizes: _Sizes, path: str) -> Moe:
    """Experts stored input first (the other way round from linear layers), with biases, under a clamped
    SwiGLU.
    """
    experts, hidden, width = sizes.experts, sizes.hidden, sizes.intermediate
    return Moe(
        path=path,
        experts=experts,
        experts_per_token=sizes.per_token,
        intermediate=width,
        activation=sizes.activation,
        weights=(
            *router_weights(f"{path}.router", experts, hidden, bias=True),
            Weight(
                path=f"{path}.experts.gate_up_proj",
                shape=(experts, hidden, 2 * width),
                role=Role.EXPERT,
                cut=2,
            ),
            Weight(
                path=f"{path}.experts.gate_up_proj_bias",
                shape=(experts, 2 * width),
                role=Role.EXPERT_BIAS,
                cut=1,
            ),
            Weight(path=f"{path}.experts.down_proj", shape=(experts, width, hidden), role=Role.EXPERT, cut=1),
            Weight(path=f"{path}.experts.down_proj_bias", shape=(experts, hidden), role=Role.EXPERT_BIAS),
        ),
    )
