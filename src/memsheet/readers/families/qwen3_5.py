"""The text models of Qwen3.5, dense and routed: gated delta nets whose projections are apart, every fourth
layer gated attention.

Defaults are those of Qwen3_5TextConfig and Qwen3_5MoeTextConfig, transformers 5.23.
"""

from __future__ import annotations

from memsheet.plan.model import Arrangement, Block, FeedForward, Mixer, ModelSpec, NormKind
from memsheet.readers.families.hybrid import gated_delta_net, gated_query_attention, gated_shared_experts
from memsheet.readers.fields import Fields
from memsheet.readers.parts import gated_mlp, repeating_layer_runs, rms_norm
from memsheet.readers.sparse_parts import causal_lm, layer_kinds

ROUTED = "qwen3_5_moe_text"


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="qwen3_5_text")
    routed = kind == ROUTED
    hidden = config.count("hidden_size", default=2048 if routed else 4096)
    layers = config.layers(default=40 if routed else 32)
    every = config.count("full_attention_interval", default=4)
    usual = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    mixers: dict[bool, Mixer] = {
        True: gated_delta_net(config, hidden, apart=True),
        False: gated_query_attention(config, hidden, kv_heads=2 if routed else 4),
    }
    feed_forward = _feed_forward(config, hidden, routed=routed)

    def make(linear: bool) -> Block:  # noqa: FBT001  a key of the sequence below
        names = ("input_layernorm", "post_attention_layernorm")
        return Block(
            kind=kind,
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(mixers[linear],),
            feed_forward=feed_forward,
            norms=tuple(rms_norm(name, hidden, NormKind.RMS_OFFSET) for name in names),
        )

    kinds = layer_kinds(config, "layer_types", layers, usual)
    return causal_lm(
        config,
        kind,
        hidden,
        config.count("vocab_size", default=248320),
        repeating_layer_runs([name == "linear_attention" for name in kinds], make),
        final_norm=rms_norm("norm", hidden, NormKind.RMS_OFFSET),
        positions=config.count("max_position_embeddings", default=32768),
    )


def _feed_forward(config: Fields, hidden: int, *, routed: bool) -> FeedForward:
    experts = gated_shared_experts(config, hidden, experts=256, per_token=8) if routed else None
    if experts is not None:
        return experts
    width = config.count("intermediate_size", default=12288)
    return gated_mlp("mlp", hidden, width, config.text("hidden_act", default="silu"))
