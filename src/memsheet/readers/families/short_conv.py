"""LFM2 and LFM2-MoE: gated short convolutions, with attention in listed layers.

Defaults and tensor names are those of Lfm2Config, Lfm2MoeConfig and their modeling classes, transformers
5.23.
"""

from __future__ import annotations

from memsheet.plan.model import (
    Arrangement,
    Block,
    Dense,
    FeedForward,
    Mixer,
    ModelSpec,
    Role,
    StateSpace,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.parts import (
    gated_mlp,
    linear_weights,
    repeating_layer_runs,
    rms_norm,
    separate_qkv_attention,
)
from memsheet.readers.sparse_parts import (
    causal_lm,
    experts_per_token,
    key_value_heads,
    layer_kinds,
    norm_pair,
    stacked_gated_moe,
)
from memsheet.readers.state_parts import causal_conv

ROUTED = "lfm2_moe"
NAMES = ("w1", "w3", "w2")


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="lfm2")
    routed = kind == ROUTED
    hidden, layers = config.count("hidden_size", default=2048 if routed else 2560), config.layers(default=32)
    kinds = _layer_kinds(config, layers, routed=routed)
    mixers: dict[bool, Mixer] = {True: short_conv(config, hidden), False: _lfm_attention(config, hidden)}
    dense = _lfm_mlp(config, hidden, routed=routed)
    first = config.count("num_dense_layers", default=2, low=0) if routed else layers
    experts = _lfm_experts(config, hidden) if routed else dense

    def make(key: tuple[bool, bool]) -> Block:
        feed_forward: FeedForward = experts if key[1] else dense
        return Block(
            kind=kind,
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(mixers[key[0]],),
            feed_forward=feed_forward,
            norms=(rms_norm("operator_norm", hidden), rms_norm("ffn_norm", hidden)),
        )

    return causal_lm(
        _with_usual_tie(config),
        kind,
        hidden,
        config.count("vocab_size", default=65536),
        repeating_layer_runs([(kinds[i] == "conv", i >= first) for i in range(layers)], make),
        final_norm=rms_norm("embedding_norm", hidden),
        tied=True,
        positions=config.count("max_position_embeddings", default=128_000),
    )


def _with_usual_tie(config: Fields) -> Fields:
    """The first releases' ``tie_embedding`` overrides the usual key (configuration_lfm2.py)."""
    if config.raw("tie_embedding") is None:
        return config
    tied = config.flag("tie_embedding", default=True)
    return Fields({**config.data, "tie_word_embeddings": tied}, config.where, config.problems)


def _layer_kinds(config: Fields, layers: int, *, routed: bool) -> tuple[str, ...]:
    """Convolution or attention by a list, or by the layers that attend; without either all attend."""
    attends = set(range(layers))
    if not routed and config.raw("full_attn_idxs") is not None:
        attends = set(config.counts("full_attn_idxs"))
    usual = ["full_attention" if i in attends else "conv" for i in range(layers)]
    if routed and config.raw("layer_types") is None:
        config.wrong("layer_types", None, "is missing, and the family has no usual one")
    return layer_kinds(config, "layer_types", layers, usual)


def short_conv(config: Fields, hidden: int) -> StateSpace:
    """Two gates and an input from one projection, a convolution of a few tokens, whose inputs alone are
    kept.
    """
    kernel, bias = config.count("conv_L_cache", default=3), config.flag("conv_bias", default=False)
    return StateSpace(
        path="conv",
        kind="short_conv",
        inner=hidden,
        state=0,
        conv_kernel=kernel,
        state_elements=0,
        conv_elements=hidden * kernel,
        weights=(
            *causal_conv("conv.conv", hidden, kernel, bias=bias),
            *linear_weights("conv.in_proj", 3 * hidden, hidden, bias=bias, cut="out"),
            *linear_weights("conv.out_proj", hidden, hidden, bias=bias, cut="in"),
        ),
    )


def _lfm_attention(config: Fields, hidden: int) -> Mixer:
    heads = config.count("num_attention_heads", default=32)
    head_dim = config.count("head_dim", default=hidden // heads or 1)
    return separate_qkv_attention(
        "self_attn",
        hidden,
        heads,
        key_value_heads(config, heads, default=8),
        head_dim,
        names=("q_proj", "k_proj", "v_proj", "out_proj"),
        qk_norm=norm_pair("self_attn", ("q_layernorm", "k_layernorm"), (head_dim, head_dim)),
    )


def _lfm_mlp(config: Fields, hidden: int, *, routed: bool) -> Dense:
    if routed:
        return gated_mlp(
            "feed_forward", hidden, config.count("intermediate_size", default=7168), "silu", names=NAMES
        )
    width = config.count("block_ff_dim", "intermediate_size", default=12288)
    if config.flag("block_auto_adjust_ff_dim", default=True):
        width = _adjusted_width(config, width)
    return gated_mlp("feed_forward", hidden, width, "silu", names=NAMES)


def _adjusted_width(config: Fields, width: int) -> int:
    """Two thirds, times a factor, rounded up to a multiple (modeling_lfm2.py, Lfm2MLP)."""
    width = int(2 * width / 3)
    if "block_ffn_dim_multiplier" in config.data and config.raw("block_ffn_dim_multiplier") is None:
        return width
    multiple = config.count("block_multiple_of", default=256)
    width = int(config.number("block_ffn_dim_multiplier", default=1.0) * width)
    return -(-width // multiple) * multiple


def _lfm_experts(config: Fields, hidden: int) -> FeedForward:
    experts = config.count("num_experts", default=32)
    biased = config.flag("use_expert_bias", default=True)
    bias = Weight(path="feed_forward.expert_bias", shape=(experts,), role=Role.BUFFER, dtype="fp32")
    return stacked_gated_moe(
        config,
        "feed_forward",
        hidden,
        experts,
        per_token=experts_per_token(config, "num_experts_per_tok", default=4, experts=experts),
        intermediate=config.count("moe_intermediate_size", default=1792),
        extras=(bias,) if biased else (),
    )
