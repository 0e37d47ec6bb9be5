"""Routed decoders with windows in most layers: MiMo-V2-Flash, whose values are narrower than its keys, and
Step-3.5, whose windowed layers have more heads. MiMo-V2.5 is MiMo-V2-Flash's decoder, its queries, keys and
values stored as one matrix; the towers that some of it have are not read.

Defaults and tensor names are those of the configuration and modeling classes in transformers 5.23; keys
of the released configs are those that servers read.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    FeedForward,
    ModelSpec,
    Moe,
    NormKind,
    Role,
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
    correction_bias,
    experts_per_token,
    key_value_heads,
    layer_kinds,
    norm_pair,
    rotary_width,
    stacked_gated_moe,
)

SLIDING, FULL = "sliding_attention", "full_attention"


def read(config: Fields) -> ModelSpec:
    if config.text("model_type", default="mimo_v2_flash") == "step3p5":
        return _step_spec(config)
    for tower in ("vision_config", "audio_config"):
        if config.raw(tower) is not None:
            config.wrong(
                tower,
                "given",
                "is of a tower that is not accounted",
                f"the text model's config: without {tower}",
            )
    return _mimo_spec(config)


# MiMo-V2-Flash: full attention in the first layer and every sixth, twice the key heads and a sink in others


def _mimo_spec(config: Fields) -> ModelSpec:
    hidden, layers = config.count("hidden_size", default=4096), config.layers(default=48)
    slides, routed = _mimo_layers(config, layers)
    mixers = {slide: _mimo_attention(config, hidden, slides=slide) for slide in (True, False)}
    width, activation = (
        config.count("intermediate_size", default=16384),
        config.text("hidden_act", default="silu"),
    )
    feed_forwards: dict[bool, FeedForward] = {
        True: _window_experts(config, hidden, experts=256, width=2048),
        False: gated_mlp("mlp", hidden, width, activation),
    }

    def make(key: tuple[bool, bool]) -> Block:
        return _window_block("mimo_v2_flash", hidden, mixers[key[0]], feed_forwards[key[1]], NormKind.RMS)

    return causal_lm(
        config,
        "mimo_v2_flash",
        hidden,
        config.count("vocab_size", default=152576),
        repeating_layer_runs(list(zip(slides, routed, strict=True)), make),
        final_norm=rms_norm("norm", hidden),
        positions=config.count("max_position_embeddings", default=131072),
    )


def _mimo_layers(config: Fields, layers: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which layers slide and which have experts: by lists of words, or of the released config's ones and
    noughts (``READ_IN``).
    """
    pattern = config.counts("hybrid_layer_pattern", [int(i > 0 and (i + 1) % 6 > 0) for i in range(layers)])
    frequency = config.raw("moe_layer_freq")
    sparse = config.counts("moe_layer_freq") if isinstance(frequency, list) else (0, *[1] * (layers - 1))
    kinds = layer_kinds(config, "layer_types", layers, [SLIDING if one else FULL for one in pattern[:layers]])
    mlps = layer_kinds(config, "mlp_layer_types", layers, ["sparse" if one else "dense" for one in sparse])
    return tuple(kind == SLIDING for kind in kinds), tuple(kind == "sparse" for kind in mlps)


def _mimo_attention(config: Fields, hidden: int, *, slides: bool) -> Attention:
    heads = config.count("num_attention_heads", default=64)
    kv_heads = key_value_heads(config, heads, default=4)
    kept = config.count("swa_num_key_value_heads", default=2 * kv_heads) if slides else kv_heads
    head_dim, value = config.count("head_dim", default=192), config.count("v_head_dim", default=128)
    bias = config.flag("attention_bias", default=False)
    sink = Weight(path="self_attn.sinks", shape=(heads,), role=Role.OTHER, cut=0, units=heads)
    # servers keep what sliding_window_size says; the library's own key counts the token that asks, too
    window = config.count("sliding_window_size", "sliding_window", default=129) if slides else None
    return Attention(
        path="self_attn",
        heads=heads,
        kv_heads=kept,
        head_dim=head_dim,
        value_dim=value,
        rotary_dim=rotary_width(config, head_dim, default=0.334),
        window=window,
        sinks=slides,
        weights=(
            *linear_weights("self_attn.q_proj", heads * head_dim, hidden, bias=bias, cut="out", units=heads),
            *linear_weights("self_attn.k_proj", kept * head_dim, hidden, bias=bias, cut="out", units=kept),
            *linear_weights("self_attn.v_proj", kept * value, hidden, bias=bias, cut="out", units=kept),
            *linear_weights("self_attn.o_proj", hidden, heads * value, cut="in", units=heads),
            *((sink,) if slides else ()),
        ),
    )


# Step-3.5: a gate a head, more heads where there is a window, norms of one plus their weight


def _step_spec(config: Fields) -> ModelSpec:
    hidden, layers = config.count("hidden_size", default=4096), config.layers(default=45)
    ahead = config.count("num_nextn_predict_layers", default=0, low=0)
    slides, routed = _step_layers(config, layers, ahead)
    mixers = {slide: _step_attention(config, hidden, slides=slide) for slide in (True, False)}
    bias, activation = config.flag("mlp_bias", default=False), config.text("hidden_act", default="silu")
    width = config.count("intermediate_size", default=11264)
    shared = config.count("share_expert_dim", "share_expert_dims", default=1280)
    routed_experts = _window_experts(config, hidden, experts=288, width=1280)
    feed_forwards: dict[bool, FeedForward] = {
        True: replace(
            routed_experts,
            shared=gated_mlp("mlp.shared_experts", hidden, shared, activation, bias=bias),
        ),
        False: gated_mlp("mlp", hidden, width, activation, bias=bias),
    }

    def make(key: tuple[bool, bool]) -> Block:
        return _window_block("step3p5", hidden, mixers[key[0]], feed_forwards[key[1]], NormKind.RMS_OFFSET)

    return causal_lm(
        config,
        "step3p5",
        hidden,
        config.count("vocab_size", default=128815),
        repeating_layer_runs(list(zip(slides, routed, strict=True)), make),
        final_norm=rms_norm("norm", hidden, NormKind.RMS_OFFSET),
        positions=config.count("max_position_embeddings", default=128000),
    )


def _step_layers(config: Fields, layers: int, ahead: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which layers slide and which have experts; lists may go on with the layers for further tokens."""

    def without_ahead(key: str) -> Fields:
        given = config.data.get(key)
        longer = isinstance(given, list) and len(given) == layers + ahead
        data = {**config.data, key: given[:layers]} if longer and isinstance(given, list) else config.data
        return Fields(data, config.where, config.problems)

    kinds = layer_kinds(without_ahead("layer_types"), "layer_types", layers, [FULL] * layers)
    usual = ["sparse" if i in _listed_experts(config, layers) else "dense" for i in range(layers)]
    mlps = layer_kinds(without_ahead("mlp_layer_types"), "mlp_layer_types", layers, usual)
    return tuple(kind == SLIDING for kind in kinds), tuple(kind == "sparse" for kind in mlps)


def _listed_experts(config: Fields, layers: int) -> set[int]:
    """The layers that ``moe_layers_enum`` names, between commas or as a list; from the third on without."""
    given = config.raw("moe_layers_enum")
    if given is None:
        return set(range(3, layers))
    if isinstance(given, list):
        return set(config.counts("moe_layers_enum"))
    parts = [part.strip() for part in config.text("moe_layers_enum", default="").split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        config.wrong("moe_layers_enum", given, "is not a list of layers")
        return set()
    return {int(part) for part in parts}


def _step_attention(config: Fields, hidden: int, *, slides: bool) -> Attention:
    heads = config.count("num_attention_heads", default=64)
    kept = config.count("num_key_value_heads", "num_attention_groups", default=8)
    head_dim, bias = config.count("head_dim", default=128), config.flag("attention_bias", default=False)
    if slides:
        other = config.sub("attention_other_setting").count("num_attention_heads", default=heads)
        heads = config.count("num_sliding_attention_heads", default=other)
    config.divides(kept, "num_attention_heads", heads, "each key/value head serves as many query heads")
    mixer = separate_qkv_attention(
        "self_attn",
        hidden,
        heads,
        kept,
        head_dim,
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=_step_rotary_width(config, head_dim, slides=slides),
        window=config.optional("sliding_window") if slides else None,
        qk_norm=norm_pair("self_attn", ("q_norm", "k_norm"), (head_dim, head_dim), NormKind.RMS_OFFSET),
    )
    gate = linear_weights("self_attn.g_proj", heads, hidden, cut="out", units=heads)
    return replace(mixer, gated_output=True, weights=(*mixer.weights, *gate))


def _step_rotary_width(config: Fields, head_dim: int, *, slides: bool) -> int:
    """The rotated part of a head, which the released config lists layer by layer; the shortest is that of
    layers without a window.
    """
    given = config.raw("partial_rotary_factors")
    if not (isinstance(given, list) and given and all(isinstance(one, int | float) for one in given)):
        return head_dim
    return int(head_dim * min(1.0, max(given) if slides else min(given)))


def _window_experts(config: Fields, hidden: int, *, experts: int, width: int) -> Moe:
    count = config.count("n_routed_experts", "num_local_experts", "moe_num_experts", default=experts)
    return stacked_gated_moe(
        config,
        "mlp",
        hidden,
        count,
        per_token=experts_per_token(config, "num_experts_per_tok", "moe_top_k", default=8, experts=count),
        intermediate=config.count("moe_intermediate_size", default=width),
        extras=(correction_bias("mlp.gate", count),),
    )


def _window_block(
    kind: str, hidden: int, mixer: Attention, feed_forward: FeedForward, norm: NormKind
) -> Block:
    return Block(
        kind=kind,
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(mixer,),
        feed_forward=feed_forward,
        norms=tuple(rms_norm(name, hidden, norm) for name in ("input_layernorm", "post_attention_layernorm")),
    )
