"""The text model of MiniMax-M3: grouped heads that in most layers attend to blocks of tokens which an indexer
picks by one key a token; experts with one that is shared.

Defaults and tensor names are those of MiniMaxM3VLTextConfig and modeling_minimax_m3_vl.py, transformers 5.23.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Attention, Block, FeedForward, ModelSpec, NormKind
from memsheet.readers.fields import Fields
from memsheet.readers.parts import (
    fused_gated_mlp,
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
    stacked_gated_moe,
)

TEXT, SPARSE = "minimax_m3_vl_text", "minimax_m3_sparse"


def read(config: Fields) -> ModelSpec:
    hidden, layers = config.count("hidden_size", default=6144), config.layers(default=60)
    mixers = {picks: _m3_attention(config, hidden, picks=picks) for picks in (True, False)}
    feed_forwards: dict[bool, FeedForward] = {
        True: _m3_experts(config, hidden),
        False: fused_gated_mlp("mlp", hidden, config.count("dense_intermediate_size", default=12288), "silu"),
    }

    def make(key: tuple[bool, bool]) -> Block:
        names = ("input_layernorm", "post_attention_layernorm")
        return Block(
            kind=TEXT,
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(mixers[key[0]],),
            feed_forward=feed_forwards[key[1]],
            norms=tuple(rms_norm(name, hidden, NormKind.RMS_OFFSET) for name in names),
        )

    return causal_lm(
        config,
        TEXT,
        hidden,
        config.count("vocab_size", default=200064),
        repeating_layer_runs(_layer_keys(config, layers), make),
        final_norm=rms_norm("norm", hidden, NormKind.RMS_OFFSET),
        positions=config.count("max_position_embeddings", default=524288),
    )


def _layer_keys(config: Fields, layers: int) -> list[tuple[bool, bool]]:
    """Which layers pick their tokens, and which have experts: by lists of words, or of ones and noughts."""
    picked = config.sub("sparse_attention_config").counts("sparse_attention_freq", [0] * layers)
    routed = config.counts("moe_layer_freq", [1] * layers)
    kinds = layer_kinds(
        config, "layer_types", layers, [SPARSE if one else "full_attention" for one in picked]
    )
    mlps = layer_kinds(config, "mlp_layer_types", layers, ["sparse" if one else "dense" for one in routed])
    return [(kinds[i] == SPARSE, mlps[i] == "sparse") for i in range(layers)]


def _m3_attention(config: Fields, hidden: int, *, picks: bool) -> Attention:
    heads, head_dim = (
        config.count("num_attention_heads", default=64),
        config.count("head_dim", default=128),
    )
    mixer = separate_qkv_attention(
        "self_attn",
        hidden,
        heads,
        key_value_heads(config, heads, default=4),
        head_dim,
        rotary_dim=config.count("rotary_dim", default=64),
        qk_norm=norm_pair("self_attn", ("q_norm", "k_norm"), (head_dim, head_dim), NormKind.RMS_OFFSET),
    )
    if not picks:
        return mixer
    apart, path = config.sub("sparse_attention_config"), "self_attn.indexer"
    count = apart.count("sparse_num_index_heads", default=config.count("index_n_heads", default=4))
    width = apart.count("sparse_index_dim", default=config.count("index_head_dim", default=128))
    norms = norm_pair(path, ("q_norm", "k_norm"), (width, width), NormKind.RMS_OFFSET)
    own = (
        *linear_weights(f"{path}.q_proj", count * width, hidden),
        *linear_weights(f"{path}.k_proj", width, hidden),
        *norms.weights,
    )
    return replace(mixer, index_dim=width, weights=(*mixer.weights, *own))


def _m3_experts(config: Fields, hidden: int) -> FeedForward:
    experts = config.count("num_local_experts", "num_experts", default=128)
    shared = config.count("shared_intermediate_size", default=3072)
    made = stacked_gated_moe(
        config,
        "mlp",
        hidden,
        experts,
        per_token=experts_per_token(config, "num_experts_per_tok", default=4, experts=experts),
        intermediate=config.count("intermediate_size", default=3072),
        shared=fused_gated_mlp("mlp.shared_experts", hidden, shared, "silu"),
        extras=(correction_bias("mlp.gate", experts),),
    )
    return replace(made, activation="silu")  # whatever the config says: configuration_minimax_m3_vl.py
