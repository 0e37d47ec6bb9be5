"""LongCat-Flash: two latent attentions and two feed-forwards a layer, with experts beside the first of them.

Defaults and tensor names are those of LongcatFlashConfig and modeling_longcat_flash.py, transformers 5.23.
Its identity experts have no matrices in a checkpoint and in servers; the library makes gates for them that
nothing reads, which are not counted.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Block, LatentAttention, ModelSpec, Moe, Weight
from memsheet.readers.families.latent import latent_attention
from memsheet.readers.fields import MAX_LAYERS, Fields
from memsheet.readers.parts import gated_mlp, linear_weights, repeating_layer_runs, rms_norm
from memsheet.readers.sparse_parts import (
    causal_lm,
    correction_bias,
    experts_per_token,
    router_weights,
    stacked_experts,
)

_LATENT: dict[str, int | None] = {"num_attention_heads": 64}


def read(config: Fields) -> ModelSpec:
    hidden = config.count("hidden_size", default=6144)
    twice = config.count("num_hidden_layers", default=2 * config.layers("num_layers", default=28), low=2)
    layers, mixer = min(twice // 2, MAX_LAYERS), latent_attention(config, hidden, _LATENT)
    width = config.count("ffn_hidden_size", "intermediate_size", default=12288)
    activation = config.text("hidden_act", default="silu")
    block = Block(
        kind="longcat_flash",
        hidden=hidden,
        arrangement=Arrangement.OTHER,
        mixers=tuple(_numbered_mixer(mixer, place) for place in range(2)),
        feed_forward=_longcat_experts(config, hidden),
        norms=tuple(
            rms_norm(f"{name}.{place}", hidden)
            for name in ("input_layernorm", "post_attention_layernorm")
            for place in range(2)
        ),
        extras=tuple(
            weight
            for place in range(2)
            for weight in gated_mlp(f"mlps.{place}", hidden, width, activation).weights
        ),
    )
    return causal_lm(
        config,
        "longcat_flash",
        hidden,
        config.count("vocab_size", default=131072),
        repeating_layer_runs(["longcat_flash"] * layers, lambda _: block),
        final_norm=rms_norm("norm", hidden),
        positions=config.count("max_position_embeddings", default=131072),
    )


def _numbered_mixer(mixer: LatentAttention, place: int) -> LatentAttention:
    path = f"{mixer.path}.{place}"

    def moved(weight: Weight) -> Weight:
        return replace(weight, path=path + weight.path.removeprefix(mixer.path))

    return replace(mixer, path=path, weights=tuple(map(moved, mixer.weights)))


def _longcat_experts(config: Fields, hidden: int) -> Moe:
    """Experts with matrices, and a router that scores those without beside them (``READ_IN``)."""
    experts = config.count("n_routed_experts", "num_local_experts", default=512)
    idle = config.count("zero_expert_num", default=256, low=0)
    width = config.count("expert_ffn_hidden_size", "moe_intermediate_size", default=2048)
    router = "mlp.router.classifier"
    bias = linear_weights(router, experts + idle, hidden, bias=True)[1:]
    return Moe(
        path="mlp",
        experts=experts,
        experts_per_token=experts_per_token(
            config, "moe_topk", "num_experts_per_tok", default=12, experts=experts
        ),
        intermediate=width,
        activation=config.text("hidden_act", default="silu"),
        weights=(
            *router_weights(router, experts + idle, hidden),
            *(bias if config.flag("router_bias", default=False) else ()),
            *stacked_experts("mlp.experts", experts, hidden, width),
            correction_bias("mlp.router", experts + idle),
        ),
    )
