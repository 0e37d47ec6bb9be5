"""Kimi delta attention with multi-head latent attention between: Kimi Linear, and Ling 3 (bailing_hybrid).

Defaults and tensor names are those of the configuration and modeling classes in transformers 5.23.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import (
    Arrangement,
    Block,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Mixer,
    ModelSpec,
    Role,
    Weight,
)
from memsheet.readers.families.latent import latent_attention
from memsheet.readers.fields import Fields
from memsheet.readers.parts import gated_mlp, linear_weights, repeating_layer_runs, rms_norm
from memsheet.readers.sparse_parts import (
    causal_lm,
    correction_bias,
    experts_per_token,
    layer_kinds,
    stacked_gated_moe,
)
from memsheet.readers.state_parts import causal_conv

LING = "bailing_hybrid"
_LATENT: dict[str, int | None] = {"num_attention_heads": 32, "q_lora_rank": None}
# fmt: off
_KIMI = {"hidden_size": 2304, "intermediate_size": 9216, "moe_intermediate_size": 1024, "num_hidden_layers": 27, "num_experts": 256, "vocab_size": 163840,
         "max_position_embeddings": 1048576, "first_k_dense_replace": 1}
_LING = {"hidden_size": 2560, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 42, "num_experts": 512, "vocab_size": 157184,
         "max_position_embeddings": 262144, "first_k_dense_replace": 2}
# fmt: on


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="kimi_linear")
    known = _LING if kind == LING else _KIMI
    _refuse_lightning(config)
    hidden = config.count("hidden_size", default=known["hidden_size"])
    layers = config.layers(default=known["num_hidden_layers"])
    mixers: dict[bool, Mixer] = {
        True: _ling_delta(config, hidden) if kind == LING else _kimi_delta(config, hidden),
        False: _ling_latent(config, hidden) if kind == LING else _kimi_latent(config, hidden),
    }
    width = config.count("intermediate_size", default=known["intermediate_size"])
    feed_forwards: dict[bool, FeedForward] = {
        True: _kimi_experts(config, hidden, known),
        False: gated_mlp("mlp", hidden, width, config.text("hidden_act", default="silu")),
    }
    attends = _attention_layers(config, kind, layers)
    routed = _routed_layers(config, known, layers)

    def make(key: tuple[bool, bool]) -> Block:
        return Block(
            kind=kind,
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(mixers[key[0]],),
            feed_forward=feed_forwards[key[1]],
            norms=(rms_norm("input_layernorm", hidden), rms_norm("post_attention_layernorm", hidden)),
        )

    # neither head is tied: _tied_weights_keys of both modeling files is empty
    untied = Fields({**config.data, "tie_word_embeddings": False}, config.where, config.problems)
    keys = [(not attends[i], routed[i]) for i in range(layers)]
    return causal_lm(
        untied,
        kind,
        hidden,
        config.count("vocab_size", default=known["vocab_size"]),
        repeating_layer_runs(keys, make),
        final_norm=rms_norm("norm", hidden),
        positions=config.count(
            "max_position_embeddings", "model_max_length", default=known["max_position_embeddings"]
        ),
    )


def _refuse_lightning(config: Fields) -> None:
    """Ling 2.5 and Ring 2.5 have the name of Ling 3, and lightning attention."""
    given = config.texts("architectures")
    if given and "BailingMoeV2_5" in given[0]:
        config.wrong("architectures", given[0], "has lightning attention, which is not read yet")


def _attention_layers(config: Fields, kind: str, layers: int) -> tuple[bool, ...]:
    """Which layers attend: by a list, by layers that a part of the config counts from one, or by groups."""
    apart = config.sub("linear_attn_config")
    if kind == LING:
        size = config.count("layer_group_size", default=6)
        attends = {i for i in range(layers) if (i + 1) % size == 0}
    elif apart.raw("full_attn_layers") is not None and apart.raw("kda_layers") is not None:
        attends = {place - 1 for place in apart.counts("full_attn_layers", low=1)}
    else:
        attends = {i for i in range(layers) if i and i % 4 == 0}
    usual = ["full_attention" if i in attends else "linear_attention" for i in range(layers)]
    return tuple(kind == "full_attention" for kind in layer_kinds(config, "layer_types", layers, usual))


def _routed_layers(config: Fields, known: dict[str, int], layers: int) -> tuple[bool, ...]:
    first = config.count("first_k_dense_replace", default=known["first_k_dense_replace"], low=0)
    usual = ["dense" if i < first else "sparse" for i in range(layers)]
    return tuple(kind == "sparse" for kind in layer_kinds(config, "mlp_layer_types", layers, usual))


def _kimi_latent(config: Fields, hidden: int) -> LatentAttention:
    """Nothing is rotated: what is shared by all heads has no position."""
    return replace(latent_attention(config, hidden, _LATENT), rotates=False)


def _ling_latent(config: Fields, hidden: int) -> LatentAttention:
    """With a gate for each head of its output."""
    mixer = latent_attention(config, hidden, _LATENT)
    gate = linear_weights("self_attn.g_proj", mixer.heads, hidden, cut="out", units=mixer.heads)
    return replace(mixer, weights=(*mixer.weights, *gate))


def _kimi_delta(config: Fields, hidden: int) -> LinearAttention:
    """Gates through a width of one head."""
    apart = config.sub("linear_attn_config")
    heads = apart.count("num_heads", default=config.count("linear_num_heads", default=32))
    dim = apart.count("head_dim", default=config.count("linear_head_dim", default=128))
    kernel = apart.count("short_conv_kernel_size", default=config.count("linear_conv_kernel_dim", default=4))
    wide, path = heads * dim, "self_attn"
    own = (
        Weight(path=f"{path}.forget_gate.A_log", shape=(1, 1, heads, 1), role=Role.OTHER, cut=2, units=heads),
        *linear_weights(f"{path}.forget_gate.f_a_proj", dim, hidden),
        *linear_weights(f"{path}.forget_gate.f_b_proj", wide, dim, cut="out", units=heads),
        *linear_weights(f"{path}.g_a_proj", dim, hidden),
        *linear_weights(f"{path}.g_b_proj", wide, dim, cut="out", units=heads),
    )
    return _kimi_delta_mixer(hidden, heads, dim, kernel, own)


def _ling_delta(config: Fields, hidden: int) -> LinearAttention:
    """Gates straight from the hidden state."""
    heads = config.count("linear_num_heads", default=config.count("num_attention_heads", default=32))
    dim = config.count("linear_head_dim", default=config.count("head_dim", default=128))
    wide, path = heads * dim, "self_attn"
    own = (
        Weight(path=f"{path}.forget_gate.A_log", shape=(heads,), role=Role.OTHER, cut=0, units=heads),
        *linear_weights(f"{path}.forget_gate.f_proj", wide, hidden, cut="out", units=heads),
        *linear_weights(f"{path}.g_proj", wide, hidden, cut="out", units=heads),
    )
    return _kimi_delta_mixer(hidden, heads, dim, config.count("short_conv_kernel_size", default=4), own)


def _kimi_delta_mixer(
    hidden: int, heads: int, dim: int, kernel: int, own: tuple[Weight, ...]
) -> LinearAttention:
    """Queries, keys and values of all heads alike, a convolution over the three, a matrix state a head that
    decays by channel, in fp32 whatever a config says (``READ_IN``).
    """
    wide, path = heads * dim, "self_attn"
    return LinearAttention(
        path=path,
        kind="kimi_delta",
        key_heads=heads,
        value_heads=heads,
        key_head_dim=dim,
        value_head_dim=dim,
        state_elements=heads * dim * dim,
        conv_elements=3 * wide * kernel,
        state_dtype="float32",
        weights=(
            *(
                weight
                for name in ("q_proj", "k_proj", "v_proj")
                for weight in linear_weights(f"{path}.{name}", wide, hidden, cut="out", units=heads)
            ),
            *causal_conv(f"{path}.conv1d", 3 * wide, kernel, bias=False, units=heads),
            Weight(path=f"{path}.forget_gate.dt_bias", shape=(wide,), role=Role.OTHER, cut=0, units=heads),
            *own,
            *linear_weights(f"{path}.b_proj", heads, hidden, cut="out", units=heads),
            Weight(path=f"{path}.o_norm.weight", shape=(dim,), role=Role.NORM),
            *linear_weights(f"{path}.o_proj", hidden, wide, cut="in", units=heads),
        ),
    )


def _kimi_experts(config: Fields, hidden: int, known: dict[str, int]) -> FeedForward:
    experts = config.count("num_experts", "num_local_experts", default=known["num_experts"])
    width = config.count("moe_intermediate_size", default=known["moe_intermediate_size"])
    shared = config.count("num_shared_experts", "n_shared_experts", default=1, low=0)
    activation = config.text("hidden_act", default="silu")
    return stacked_gated_moe(
        config,
        "mlp",
        hidden,
        experts,
        per_token=experts_per_token(
            config, "num_experts_per_token", "num_experts_per_tok", default=8, experts=experts
        ),
        intermediate=width,
        shared=gated_mlp("mlp.shared_experts", hidden, shared * width, activation) if shared else None,
        extras=(correction_bias("mlp.gate", experts),),
    )
