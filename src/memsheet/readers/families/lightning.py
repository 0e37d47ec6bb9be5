"""MiniMax-Text-01 and M1: lightning attention and softmax attention in turn, experts in every layer.

Defaults and tensor names are those of MiniMaxConfig and modeling_minimax.py, transformers 5.23.
"""

from __future__ import annotations

from memsheet.plan.model import Arrangement, Block, LinearAttention, Mixer, ModelSpec, Role, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.parts import linear_weights, repeating_layer_runs, rms_norm, separate_qkv_attention
from memsheet.readers.sparse_parts import (
    causal_lm,
    experts_per_token,
    key_value_heads,
    layer_kinds,
    rotary_width,
    stacked_gated_moe,
)


def read(config: Fields) -> ModelSpec:
    hidden, layers = config.count("hidden_size", default=4096), config.layers(default=32)
    heads = config.count("num_attention_heads", default=32)
    head_dim = config.count("head_dim", default=hidden // heads or 1)
    mixers: dict[bool, Mixer] = {
        True: _lightning_attention(config, hidden, heads, head_dim),
        False: separate_qkv_attention(
            "self_attn",
            hidden,
            heads,
            key_value_heads(config, heads, default=8),
            head_dim,
            rotary_dim=rotary_width(config, head_dim),
            window=config.optional("sliding_window"),
        ),
    }
    experts = config.count("num_local_experts", "num_experts", default=8)
    routed = stacked_gated_moe(
        config,
        "mlp",
        hidden,
        experts,
        per_token=experts_per_token(config, "num_experts_per_tok", default=2, experts=experts),
        intermediate=config.count("intermediate_size", default=14336),
    )

    def make(lightning: bool) -> Block:  # noqa: FBT001  a key of the sequence below
        return Block(
            kind="minimax",
            hidden=hidden,
            arrangement=Arrangement.OTHER,  # the residual is what the norm gave
            mixers=(mixers[lightning],),
            feed_forward=routed,
            norms=(rms_norm("input_layernorm", hidden), rms_norm("post_attention_layernorm", hidden)),
            residual_scale=True,
        )

    usual = ["linear_attention" if i % 2 else "full_attention" for i in range(layers)]
    kinds = layer_kinds(config, "layer_types", layers, usual)
    return causal_lm(
        config,
        "minimax",
        hidden,
        config.count("vocab_size", default=32000),
        repeating_layer_runs([kind == "linear_attention" for kind in kinds], make),
        final_norm=rms_norm("norm", hidden),
        positions=config.count("max_position_embeddings", default=4096 * 32),
    )


def _lightning_attention(config: Fields, hidden: int, heads: int, head_dim: int) -> LinearAttention:
    """Queries, keys and values from one matrix, a matrix state a head, a norm and a gate over the output; how
    fast each head forgets is kept in tables of a block.
    """
    wide, block, path = heads * head_dim, config.count("block_size", default=256), "self_attn"
    tables = (
        ("slope_rate", (heads, 1, 1)),
        ("query_decay", (heads, block, 1)),
        ("key_decay", (heads, block, 1)),
        ("diagonal_decay", (1, heads, block, block)),
    )
    return LinearAttention(
        path=path,
        kind="lightning",
        key_heads=heads,
        value_heads=heads,
        key_head_dim=head_dim,
        value_head_dim=head_dim,
        state_elements=heads * head_dim * head_dim,
        conv_elements=0,
        weights=(
            Weight(path=f"{path}.norm.weight", shape=(wide,), role=Role.NORM, cut=0, units=heads),
            *linear_weights(f"{path}.qkv_proj", 3 * wide, hidden, cut="out", units=heads),
            *linear_weights(f"{path}.out_proj", hidden, wide, cut="in", units=heads),
            *linear_weights(f"{path}.output_gate", wide, hidden, cut="out", units=heads),
            *(Weight(path=f"{path}.{name}", shape=shape, role=Role.BUFFER) for name, shape in tables),
        ),
    )
