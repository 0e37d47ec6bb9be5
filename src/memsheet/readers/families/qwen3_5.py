"""Qwen3.5, dense and routed, alone or with its vision tower: gated delta nets whose projections are apart,
every fourth layer gated attention; checkpoints hold a layer for further tokens.

Defaults are those of the configuration classes of transformers 5.23 (configuration_qwen3_5.py,
configuration_qwen3_5_moe.py).
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Block, FeedForward, Mixer, ModelSpec, NormKind
from memsheet.readers.families.hybrid import gated_delta_net, gated_query_attention, gated_shared_experts
from memsheet.readers.families.qwen3_vl import qwen3_vision_tower, seeing_qwen
from memsheet.readers.fields import Fields
from memsheet.readers.nested import names_decoder
from memsheet.readers.parts import gated_mlp, repeating_layer_runs, rms_norm
from memsheet.readers.sparse_parts import causal_lm, layer_kinds

ROUTED = "qwen3_5_moe_text"
_DECODERS = {"qwen3_5": "Qwen3_5ForCausalLM", "qwen3_5_moe": "Qwen3_5MoeForCausalLM"}
MOST_AHEAD = 64


def read(config: Fields) -> ModelSpec:
    """The text model as it is, or inside the one that sees."""
    kind = config.text("model_type", default="qwen3_5_text")
    if kind.endswith("_text"):
        return _text_spec(config)
    nested = config.sub("text_config")
    text = _text_spec(Fields({**nested.data, "model_type": f"{kind}_text"}, nested.where, config.problems))
    if names_decoder(config, _DECODERS[kind]):
        return text
    return seeing_qwen(config, text, qwen3_vision_tower(config.sub("vision_config")))


def _text_spec(config: Fields) -> ModelSpec:
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
    spec = causal_lm(
        config,
        kind,
        hidden,
        config.count("vocab_size", default=248320),
        repeating_layer_runs([name == "linear_attention" for name in kinds], make),
        final_norm=rms_norm("norm", hidden, NormKind.RMS_OFFSET),
        positions=config.count("max_position_embeddings", default=32768),
    )
    return replace(spec, ahead=config.count("mtp_num_hidden_layers", default=1, low=0, high=MOST_AHEAD))


def _feed_forward(config: Fields, hidden: int, *, routed: bool) -> FeedForward:
    experts = gated_shared_experts(config, hidden, experts=256, per_token=8) if routed else None
    if experts is not None:
        return experts
    width = config.count("intermediate_size", default=12288)
    return gated_mlp("mlp", hidden, width, config.text("hidden_act", default="silu"))
