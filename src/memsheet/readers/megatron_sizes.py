"""The model that Megatron-LM's own arguments describe, by their names (``num_layers``, ``hidden_size`` …).

Layers, defaults and the meaning of each argument are those of NVIDIA/Megatron-LM d98e8a64 and 23e00ed
(core 0.14): megatron/training/arguments.py (1320-1333, 1631-1650, 2382-2461, 3520-3557),
core/models/gpt/gpt_layer_specs.py:640-665, core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memsheet.frozen import replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    Embeddings,
    Head,
    LatentAttention,
    ModelSpec,
    Moe,
    Norm,
    NormKind,
    Role,
    Source,
    Stack,
    Weight,
)
from memsheet.readers.families.latent import latent_attention
from memsheet.readers.fields import Fields
from memsheet.readers.parts import (
    embedding_table,
    gated_mlp,
    norm_of_kind,
    plain_mlp,
    repeating_layer_runs,
    separate_qkv_attention,
    vocabulary_head,
)
from memsheet.readers.sparse_parts import norm_pair, router_weights, stacked_experts

LATENT = {
    "kv_lora_rank": ("kv_lora_rank", 32), "qk_nope_head_dim": ("qk_head_dim", 128),
    "qk_rope_head_dim": ("qk_pos_emb_head_dim", 64), "v_head_dim": ("v_head_dim", 128),
}  # fmt: skip
"""Sizes of latent attention by the names that the families have, the argument of each and its default."""
PATTERN = re.compile(r"\[([01])(?:,([01]))*\](?:\*\d+)?")


def read_megatron_sizes(arguments: Mapping[str, Any]) -> ModelSpec:
    """The decoder that ``arguments`` describe. Raises InputError with every size that is missing or wrong."""
    config = Fields(arguments)
    hidden, layers = config.count("hidden_size"), config.layers("num_layers")
    norm = _norm_kind(config)
    routed = _routed_layers(config, layers)
    mixer = _self_attention(config, hidden, norm)
    dense, experts = (
        _dense_feed_forward(config, hidden),
        _routed_experts(config, hidden) if any(routed) else None,
    )
    vocab = config.count("vocab_size")

    def make(*, is_routed: bool) -> Block:
        return Block(
            kind="megatron_decoder",
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(mixer,),
            feed_forward=experts if is_routed and experts else dense,
            norms=tuple(_layer_norm(name, hidden, norm) for name in ("input_layernorm", "pre_mlp_layernorm")),
        )

    tied = not config.flag("untie_embeddings_and_output_weights", default=False)
    table = embedding_table("embedding.word_embeddings", vocab, hidden, vocabulary=True)
    spec = ModelSpec(
        name=f"decoder of {layers} layers, hidden {hidden:,}",
        model_type="megatron_decoder",
        hidden=hidden,
        vocab=vocab,
        embeddings=Embeddings(weights=(table, *_position_table(config, hidden)), dropout=True),
        stacks=(
            Stack(
                path="decoder.layers",
                hidden=hidden,
                runs=repeating_layer_runs(routed, lambda key: make(is_routed=key)),
                final_norms=(_layer_norm("final_layernorm", hidden, norm),),
                final_path="decoder",
            ),
        ),
        head=Head(
            kind="causal_lm",
            width=vocab,
            tied=tied,
            weights=() if tied else vocabulary_head("output_layer", vocab, hidden),
        ),
        max_positions=config.optional("max_position_embeddings"),
        source=Source(kind="dict", notes=("the model is what the file's own flags describe",)),
    )
    config.done()
    return spec


def _norm_kind(config: Fields) -> NormKind:
    said = config.text("normalization", default="LayerNorm")
    return NormKind.RMS if said.lower() == "rmsnorm" else NormKind.LAYER


def _layer_norm(path: str, size: int, kind: NormKind) -> Norm:
    return norm_of_kind(path, size, kind, bias=kind is NormKind.LAYER)


def _has_biases(config: Fields) -> bool:
    return not config.flag("disable_bias_linear", default=False)


def _position_table(config: Fields, hidden: int) -> tuple[Weight, ...]:
    """Learned positions, unless they are rotary or none."""
    if _position_kind(config) != "learned_absolute":
        return ()
    rows = config.count("max_position_embeddings", "seq_length", default=1024)
    return (embedding_table("embedding.position_embeddings", rows, hidden),)


def _position_kind(config: Fields) -> str:
    if config.flag("use_rotary_position_embeddings", default=False):
        return "rope"
    kind = config.text("position_embedding_type", default="learned_absolute")
    left_out = config.flag("no_position_embedding", default=False)
    return "none" if left_out and kind == "learned_absolute" else kind


def _self_attention(config: Fields, hidden: int, norm: NormKind) -> Attention | LatentAttention:
    if config.flag("multi_latent_attention", default=False):
        return _latent_attention(config, hidden)
    heads = config.count("num_attention_heads")
    groups = heads
    if config.flag("group_query_attention", default=False) or config.raw("num_key_value_heads") is not None:
        groups = config.count("num_query_groups", "num_key_value_heads", default=1)
    config.divides(groups, "num_attention_heads", heads, "each group of queries has the same number of heads")
    if config.raw("kv_channels") is None:
        config.divides(heads, "hidden_size", hidden, "each attention head has the same width")
    head_dim = config.count("kv_channels", default=max(hidden // heads, 1))
    turned = int(head_dim * config.number("rotary_percent", default=1.0))
    normed = config.flag("qk_layernorm", default=False)
    bias = _has_biases(config)
    return separate_qkv_attention(
        "self_attention",
        hidden,
        heads,
        groups,
        head_dim,
        qkv_bias=bias or config.flag("add_qkv_bias", default=False),
        out_bias=bias,
        rotary_dim=turned if _position_kind(config) in ("rope", "yarn", "mrope") else 0,
        qk_norm=norm_pair("self_attention", ("q_layernorm", "k_layernorm"), (head_dim, head_dim), norm)
        if normed
        else None,
    )


def _latent_attention(config: Fields, hidden: int) -> LatentAttention:
    """Latent attention, whose sizes have names of their own here."""
    sizes = {name: config.count(said, default=usual) for name, (said, usual) in LATENT.items()}
    heads = config.count("num_attention_heads")
    own = {**sizes, "num_attention_heads": heads, "q_lora_rank": config.optional("q_lora_rank")}
    return replace(
        latent_attention(Fields(own, problems=config.problems), hidden, own), path="self_attention"
    )


def _feed_forward_width(config: Fields, hidden: int) -> int:
    """The feed-forward's width: four times the hidden size, two thirds of it where it is gated, in 64s."""
    usual = int((4 * hidden * 2 / 3) / 64) * 64 if _is_gated(config) else 4 * hidden
    return config.count("ffn_hidden_size", default=max(usual, 1))


def _is_gated(config: Fields) -> bool:
    return any(config.flag(name, default=False) for name in ("swiglu", "quick_geglu"))


def _activation_name(config: Fields) -> str:
    return "silu" if _is_gated(config) else "relu2" if config.flag("squared_relu", default=False) else "gelu"


def _feed_forward(config: Fields, path: str, hidden: int, width: int, *, bias: bool) -> Dense:
    make = gated_mlp if _is_gated(config) else plain_mlp
    return make(path, hidden, width, _activation_name(config), bias=bias)


def _dense_feed_forward(config: Fields, hidden: int) -> Dense:
    return _feed_forward(config, "mlp", hidden, _feed_forward_width(config, hidden), bias=_has_biases(config))


def _routed_experts(config: Fields, hidden: int) -> Moe:
    """Routed experts in grouped matrices, with the shared one beside them (core/transformer/moe)."""
    experts = config.count("num_experts")
    each = config.count("moe_ffn_hidden_size", default=_feed_forward_width(config, hidden))
    shared = config.optional("moe_shared_expert_intermediate_size")
    topk = config.count("moe_router_topk", default=2)
    if topk > experts:
        config.wrong("moe_router_topk", topk, f"is more than the {experts} experts there are")
    return Moe(
        path="mlp",
        experts=experts,
        experts_per_token=topk,
        intermediate=each,
        activation=_activation_name(config),
        gated=_is_gated(config),
        shared=_feed_forward(config, "mlp.shared_experts", hidden, shared, bias=_has_biases(config))
        if shared
        else None,
        weights=(
            *router_weights("mlp.router", experts, hidden),
            *_expert_matrices(config, experts, hidden, each),
        ),
    )


def _expert_matrices(config: Fields, experts: int, hidden: int, width: int) -> tuple[Weight, ...]:
    """The experts' matrices, and the biases that each has where linear layers have any."""
    if _is_gated(config):
        matrices = stacked_experts("mlp.experts", experts, hidden, width)
    else:
        matrices = (
            Weight(path="mlp.experts.linear_fc1", shape=(experts, width, hidden), role=Role.EXPERT, cut=1),
            Weight(path="mlp.experts.linear_fc2", shape=(experts, hidden, width), role=Role.EXPERT, cut=2),
        )
    if not _has_biases(config):
        return matrices
    wide = matrices[0].shape[1]
    return (
        *matrices,
        Weight(path="mlp.experts.linear_fc1_bias", shape=(experts, wide), role=Role.EXPERT_BIAS, cut=1),
        Weight(path="mlp.experts.linear_fc2_bias", shape=(experts, hidden), role=Role.EXPERT_BIAS),
    )


def _routed_layers(config: Fields, layers: int) -> tuple[bool, ...]:
    """Which layers have experts: each n-th from the first on, or as a list says."""
    if config.raw("num_experts") is None:
        return (False,) * layers
    said = config.raw("moe_layer_freq", default=1)
    if isinstance(said, int) and not isinstance(said, bool) and said > 0:
        return tuple(at % said == 0 for at in range(layers))
    pattern = _layer_pattern(str(said), layers)
    if pattern is None:
        config.wrong("moe_layer_freq", said, f"is no pattern of {layers} layers", "([0]*3+[1]*58)")
        return (True,) * layers
    return pattern


def _layer_pattern(text: str, layers: int) -> tuple[bool, ...] | None:
    """``([0]*3+[1]*58)`` as a layer each, read and never run; None where it is another expression."""
    found: list[bool] = []
    for part in re.sub(r"[\s()]", "", text).split("+"):
        if PATTERN.fullmatch(part) is None:
            return None
        held, _, times = part.partition("]")
        count = int(times[1:] or 1)
        if count > layers:
            return None
        found += [digit == "1" for digit in held[1:].split(",")] * count
        if len(found) > layers:
            return None
    return tuple(found) if len(found) == layers else None
