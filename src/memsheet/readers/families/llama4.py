"""Llama 4: routed and dense layers in turn, chunked attention with rotary positions and full attention
without, and its vision tower.
"""

from __future__ import annotations

from memsheet.frozen import dataclass, replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Embeddings,
    FeedForward,
    ModelSpec,
    Moe,
    NormKind,
    Role,
    Stack,
    Tower,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.nested import (
    bare_parameter,
    causal_head,
    model_class_name,
    names_decoder,
    patch_size_and_count,
    rename_path_roots,
)
from memsheet.readers.parts import (
    embedding_table,
    gated_mlp,
    layer_norm,
    linear_weights,
    norm_of_kind,
    plain_mlp,
    repeating_layer_runs,
    rms_norm,
    run_length,
    separate_qkv_attention,
)
from memsheet.readers.sparse_parts import (
    experts_per_token,
    key_value_heads,
    layer_kinds,
    nullable_count,
    router_weights,
)
from memsheet.readers.vision import even_heads

VISION = "vision_model"


def read(config: Fields) -> ModelSpec:
    if config.text("model_type", default="llama4") == "llama4_text":
        model_class_name(config, ("Llama4ForCausalLM",), "Llama4ForCausalLM")
        return _llama4_text_spec(config)
    text = _llama4_text_spec(config.sub("text_config"))
    if names_decoder(config, "Llama4ForCausalLM"):
        return text
    model_class_name(config, ("Llama4ForConditionalGeneration",), "Llama4ForConditionalGeneration")
    nested = rename_path_roots(text, {"model": "language_model.model", "lm_head": "language_model.lm_head"})
    return replace(
        nested, model_type="llama4", towers=(_llama4_vision_tower(config.sub("vision_config"), text.hidden),)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What tells one layer from another."""

    routed: bool
    rotary: bool
    chunk: int | None


def _llama4_text_spec(config: Fields) -> ModelSpec:
    """Defaults: Llama4TextConfig."""
    hidden = config.count("hidden_size", default=5120)
    vocab = config.count("vocab_size", default=202048)
    return ModelSpec(
        name="",
        model_type="llama4_text",
        hidden=hidden,
        vocab=vocab,
        embeddings=Embeddings(
            weights=(embedding_table("model.embed_tokens", vocab, hidden, vocabulary=True),)
        ),
        stacks=(
            Stack(
                path="model.layers",
                hidden=hidden,
                runs=repeating_layer_runs(
                    _llama4_layer_kinds(config), lambda layer: _llama4_decoder_block(config, hidden, layer)
                ),
                final_norms=(rms_norm("norm", hidden),),
                final_path="model",
            ),
        ),
        head=causal_head(vocab, hidden, tied=config.flag("tie_word_embeddings", default=False)),
        max_positions=config.count("max_position_embeddings", default=131072),
    )


def _llama4_layer_kinds(config: Fields) -> list[_Layer]:
    count = config.layers(default=48)
    step = config.count("interleave_moe_layer_step", default=1)
    interval = config.count("no_rope_layer_interval", default=4)
    routed = set(config.counts("moe_layers", range(step - 1, count, step)))
    # a list of ones and zeros, one a layer; an empty one means the interval
    rotary = config.counts("no_rope_layers", high=1) or tuple(
        int((layer + 1) % interval != 0) for layer in range(count)
    )
    if len(rotary) < count:
        config.wrong("no_rope_layers", None, f"has {len(rotary)} entries for {count} layers")
        rotary = (*rotary, *(1 for _ in range(count)))
    kinds = layer_kinds(
        config,
        "layer_types",
        count,
        ["chunked_attention" if rope else "full_attention" for rope in rotary[:count]],
    )
    chunk = nullable_count(config, "attention_chunk_size", 8192)
    return [
        _Layer(
            routed=layer in routed,
            rotary=bool(rotary[layer]),
            chunk=chunk if kinds[layer] == "chunked_attention" else None,
        )
        for layer in range(count)
    ]


def _llama4_decoder_block(config: Fields, hidden: int, layer: _Layer) -> Block:
    return Block(
        kind="llama4_text",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(_llama4_self_attention(config, hidden, layer),),
        feed_forward=_feed_forward(config, hidden, routed=layer.routed),
        norms=(rms_norm("input_layernorm", hidden), rms_norm("post_attention_layernorm", hidden)),
    )


def _llama4_self_attention(config: Fields, hidden: int, layer: _Layer) -> Attention:
    """Queries and keys are normalised, without weights, where they are rotated."""
    heads = config.count("num_attention_heads", default=40)
    kv_heads = key_value_heads(config, heads, default=8)
    head_dim = nullable_count(config, "head_dim", 128) or max(hidden // heads, 1)
    bias = config.flag("attention_bias", default=False)
    normed = layer.rotary and config.flag("use_qk_norm", default=True)
    mixer = separate_qkv_attention(
        "self_attn",
        hidden,
        heads,
        kv_heads,
        head_dim,
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=head_dim if layer.rotary else 0,
        qk_norm=norm_of_kind("self_attn.qk_norm", head_dim, NormKind.L2) if normed else None,
    )
    return replace(mixer, chunk=layer.chunk)


def _feed_forward(config: Fields, hidden: int, *, routed: bool) -> FeedForward:
    activation = config.text("hidden_act", default="silu")
    if not routed:
        return gated_mlp(
            "feed_forward", hidden, config.count("intermediate_size_mlp", default=16384), activation
        )
    width = config.count("intermediate_size", default=8192)
    experts = config.count("num_local_experts", default=16)
    return Moe(
        path="feed_forward",
        experts=experts,
        intermediate=width,
        activation=activation,
        experts_per_token=experts_per_token(config, "num_experts_per_tok", default=1, experts=experts),
        shared=gated_mlp("feed_forward.shared_expert", hidden, width, activation),
        weights=(
            *router_weights("feed_forward.router", experts, hidden),
            # stored input first, the other way round from linear layers
            Weight(
                path="feed_forward.experts.gate_up_proj",
                shape=(experts, hidden, 2 * width),
                role=Role.EXPERT,
                cut=2,
            ),
            Weight(
                path="feed_forward.experts.down_proj", shape=(experts, width, hidden), role=Role.EXPERT, cut=1
            ),
        ),
    )


def _llama4_vision_tower(config: Fields, text_hidden: int) -> Tower:
    """Defaults: Llama4VisionConfig. An image is cut into tiles, as many as its shape asks for."""
    hidden = config.count("hidden_size", default=768)
    (height, width), count = patch_size_and_count(config, image=448, patch=14)
    embeddings = (
        bare_parameter(f"{VISION}.class_embedding", hidden),
        bare_parameter(f"{VISION}.positional_embedding_vlm", count + 1, hidden),
        *linear_weights(
            f"{VISION}.patch_embedding.linear",
            hidden,
            config.count("num_channels", default=3) * height * width,
        ),
        *layer_norm(f"{VISION}.layernorm_pre", hidden).weights,
    )
    stack = Stack(
        path=f"{VISION}.model.layers",
        hidden=hidden,
        role="vision",
        runs=run_length([_vision_block(config, hidden)] * config.layers(default=34)),
        final_norms=(layer_norm("layernorm_post", hidden),),
        final_path=VISION,
    )
    return Tower(
        path=VISION,
        stack=stack,
        embeddings=embeddings,
        projector=_llama4_projector_weights(config, text_hidden),
    )


def _llama4_projector_weights(config: Fields, text_hidden: int) -> tuple[Weight, ...]:
    """The adapter after the pixel shuffle, then the step to the text's width."""
    adapter = f"{VISION}.vision_adapter.mlp"
    out = config.count("projector_output_dim", default=4096)
    shuffled = config.count("intermediate_size", default=5632)
    return (
        *linear_weights(
            f"{adapter}.fc1", config.count("projector_input_dim", default=4096), shuffled, cut="out"
        ),
        *linear_weights(f"{adapter}.fc2", out, out, cut="in"),
        *linear_weights(
            "multi_modal_projector.linear_1",
            text_hidden,
            config.count("vision_output_dim", default=7680),
            cut="out",
        ),
    )


def _vision_block(config: Fields, hidden: int) -> Block:
    """The code computes GELU whatever hidden_act says."""
    heads = even_heads(config, hidden, "num_attention_heads", default=16)
    return Block(
        kind="llama4_vision_model",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(
            separate_qkv_attention(
                "self_attn", hidden, heads, heads, hidden // heads, qkv_bias=True, out_bias=True, causal=False
            ),
        ),
        feed_forward=plain_mlp(
            "mlp",
            hidden,
            config.count("intermediate_size", default=5632),
            "gelu",
            bias=True,
            names=("fc1", "fc2"),
        ),
        norms=(layer_norm("input_layernorm", hidden), layer_norm("post_attention_layernorm", hidden)),
    )
