"""Decoders with multi-head latent attention and experts: DeepSeek-V2 and V3.

Keys and values come from one narrow latent and a rotary key that all heads share. Multi-token heads of a
checkpoint are not part of the model that transformers builds, and are not counted.
"""

from __future__ import annotations

from dataclasses import replace

from memsheet.plan.model import Arrangement, Block, Dense, LatentAttention, ModelSpec, Moe, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.parts import gated_mlp, linear_weights, repeating_layer_runs, rms_norm
from memsheet.readers.sparse_parts import (
    causal_lm,
    correction_bias,
    experts_per_token,
    nullable_count,
    stacked_gated_moe,
)

# fmt: off
# defaults of DeepseekV2Config and DeepseekV3Config, transformers 5.23
_V2: dict[str, int | None] = {"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "moe_intermediate_size": 1407, "num_hidden_layers": 32,
       "num_attention_heads": 32, "n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": None, "first_k_dense_replace": 0,
       "max_position_embeddings": 2048}
_V3: dict[str, int | None] = {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
       "num_attention_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
       "max_position_embeddings": 4096}
# fmt: on


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="deepseek_v3")
    known = _V2 if kind == "deepseek_v2" else _V3
    hidden = config.count("hidden_size", default=known["hidden_size"])
    layers = config.layers(default=known["num_hidden_layers"])
    first = config.count("first_k_dense_replace", default=known["first_k_dense_replace"], low=0)
    mixer, dense, routed = (
        _latent_attention(config, hidden, known),
        _deepseek_dense_mlp(config, hidden, known, kind),
        _deepseek_moe(config, hidden, known, kind),
    )

    def make(is_routed: bool) -> Block:  # noqa: FBT001  a key of the sequence below
        return Block(
            kind=kind,
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(mixer,),
            feed_forward=routed if is_routed else dense,
            norms=(rms_norm("input_layernorm", hidden), rms_norm("post_attention_layernorm", hidden)),
        )

    return causal_lm(
        config,
        kind,
        hidden,
        config.count("vocab_size", default=known["vocab_size"]),
        repeating_layer_runs([i >= first for i in range(layers)], make),
        final_norm=rms_norm("norm", hidden),
        positions=config.count("max_position_embeddings", default=known["max_position_embeddings"]),
    )


def _latent_attention(config: Fields, hidden: int, known: dict[str, int | None]) -> LatentAttention:
    heads = config.count("num_attention_heads", default=known["num_attention_heads"])
    q_rank, kv_rank = nullable_count(config, "q_lora_rank", 1536), config.count("kv_lora_rank", default=512)
    nope, rope = config.count("qk_nope_head_dim", default=128), config.count("qk_rope_head_dim", default=64)
    value = config.count("v_head_dim", default=128)
    bias = config.flag("attention_bias", default=False)
    return LatentAttention(
        path="self_attn",
        heads=heads,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=value,
        weights=(
            *_query_projection_weights(hidden, heads, heads * (nope + rope), q_rank, bias=bias),
            *linear_weights("self_attn.kv_a_proj_with_mqa", kv_rank + rope, hidden, bias=bias),
            *rms_norm("self_attn.kv_a_layernorm", kv_rank).weights,
            *linear_weights("self_attn.kv_b_proj", heads * (nope + value), kv_rank, cut="out", units=heads),
            *linear_weights("self_attn.o_proj", hidden, heads * value, bias=bias, cut="in", units=heads),
        ),
    )


def _query_projection_weights(
    hidden: int, heads: int, width: int, rank: int | None, *, bias: bool
) -> tuple[Weight, ...]:
    """Down to ``rank``, a norm, up to all heads; or straight to all heads where there is no rank."""
    if rank is None:
        return linear_weights("self_attn.q_proj", width, hidden, cut="out", units=heads)
    return (
        *linear_weights("self_attn.q_a_proj", rank, hidden, bias=bias),
        *rms_norm("self_attn.q_a_layernorm", rank).weights,
        *linear_weights("self_attn.q_b_proj", width, rank, cut="out", units=heads),
    )


def _deepseek_dense_mlp(config: Fields, hidden: int, known: dict[str, int | None], kind: str) -> Dense:
    width = config.count("intermediate_size", default=known["intermediate_size"])
    return gated_mlp(
        "mlp", hidden, width, config.text("hidden_act", default="silu"), bias=_mlp_bias(config, kind)
    )


def _mlp_bias(config: Fields, kind: str) -> bool:
    return kind == "deepseek_v2" and config.flag("mlp_bias", default=False)


def _deepseek_moe(config: Fields, hidden: int, known: dict[str, int | None], kind: str) -> Moe:
    alias = "num_experts" if kind == "deepseek_v2" else "num_local_experts"
    experts = config.count("n_routed_experts", alias, default=known["n_routed_experts"])
    width = config.count("moe_intermediate_size", default=known["moe_intermediate_size"])
    shared = config.count("n_shared_experts", default=known["n_shared_experts"], low=0)
    activation, bias = config.text("hidden_act", default="silu"), _mlp_bias(config, kind)
    limited = kind == "deepseek_v2" and config.text("topk_method", default="greedy") == "group_limited_greedy"
    made = stacked_gated_moe(
        config,
        "mlp",
        hidden,
        experts,
        per_token=experts_per_token(
            config, "num_experts_per_tok", default=known["num_experts_per_tok"], experts=experts
        ),
        intermediate=width,
        shared=gated_mlp("mlp.shared_experts", hidden, shared * width, activation, bias=bias)
        if shared
        else None,
        extras=(correction_bias("mlp.gate", experts),) if kind == "deepseek_v3" else (),
    )
    return replace(made, groups=config.count("n_group", default=1)) if limited else made
