"""Ling 1 and 2, and Ring on the same layers (bailing_moe): grouped attention whose matrices stand in one, and
experts after the first layers. No release of transformers has their code; servers do.

Tensor names are those of vLLM's code (``READ_IN``), with the joined matrix of queries, keys and values in its
three parts, which ranks cut each for itself. Layers for further tokens are not read.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Attention, Block, ModelSpec, Moe, Role, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.parts import gated_mlp, repeating_layer_runs, rms_norm, separate_qkv_attention
from memsheet.readers.sparse_parts import (
    causal_lm,
    experts_per_token,
    key_value_heads,
    norm_pair,
    rotary_width,
    stacked_gated_moe,
)

FIRST, SECOND = "bailing_moe", "bailing_moe_v2"
JOINED = ("query_key_value.query", "query_key_value.key", "query_key_value.value", "dense")


def read(config: Fields) -> ModelSpec:
    kind = _generation(config)
    hidden = config.count("hidden_size")
    layers = config.layers()
    first = config.count("first_k_dense_replace", default=0, low=0)
    bias, activation = config.flag("use_bias", default=False), config.text("hidden_act", default="silu")
    mixer = _joined_attention(config, hidden, bias=bias)
    dense = gated_mlp("mlp", hidden, config.count("intermediate_size"), activation, bias=bias)
    experts = _ling_experts(config, hidden, activation, bias=bias)
    norms = (rms_norm("input_layernorm", hidden), rms_norm("post_attention_layernorm", hidden))

    def make(routed: bool) -> Block:  # noqa: FBT001 - a layer's kind
        return Block(
            kind=kind,
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(mixer,),
            feed_forward=experts if routed else dense,
            norms=norms,
        )

    return causal_lm(
        config,
        kind,
        hidden,
        config.count("vocab_size"),
        repeating_layer_runs([number >= first for number in range(layers)], make),
        final_norm=rms_norm("norm", hidden),
        embeddings="word_embeddings",
        positions=config.optional("max_position_embeddings"),
    )


def _generation(config: Fields) -> str:
    """Ling 2 has the name of Ling 1 in its configs, and an architecture of its own."""
    given = config.texts("architectures")
    second = any("V2" in name for name in given) or config.text("model_type", default=FIRST) == SECOND
    if any("Linear" in name or "V2_5" in name for name in given):
        config.wrong("architectures", given[0], "has lightning attention, which is not read yet")
    return SECOND if second else FIRST


def _joined_attention(config: Fields, hidden: int, *, bias: bool) -> Attention:
    heads = config.count("num_attention_heads")
    head_dim = config.count("head_dim", default=max(hidden // heads, 1))
    norms = norm_pair("attention", ("query_layernorm", "key_layernorm"), (head_dim, head_dim))
    return separate_qkv_attention(
        "attention",
        hidden,
        heads,
        key_value_heads(config, heads, default=None),
        head_dim,
        names=JOINED,
        qkv_bias=bias or config.flag("use_qkv_bias", default=False),
        out_bias=bias,
        rotary_dim=config.count("rotary_dim", default=rotary_width(config, head_dim), low=0),
        qk_norm=norms if config.flag("use_qk_norm", default=False) else None,
    )


def _ling_experts(config: Fields, hidden: int, activation: str, *, bias: bool) -> Moe:
    count, width = config.count("num_experts"), config.count("moe_intermediate_size")
    shared = config.count("num_shared_experts", default=0, low=0)
    own = config.count("moe_shared_expert_intermediate_size", default=width)
    balance = Weight(path="mlp.gate.expert_bias", shape=(count,), role=Role.ROUTER, dtype="fp32")
    made = stacked_gated_moe(
        config,
        "mlp",
        hidden,
        count,
        per_token=experts_per_token(config, "num_experts_per_tok", default=None, experts=count),
        intermediate=width,
        shared=gated_mlp("mlp.shared_experts", hidden, shared * own, activation, bias=bias)
        if shared
        else None,
        extras=(balance,) if config.flag("moe_router_enable_expert_bias", default=False) else (),
        router_dtype="fp32" if config.text("router_dtype", default="") == "fp32" else None,
    )
    return replace(made, groups=config.count("n_group", default=1))
