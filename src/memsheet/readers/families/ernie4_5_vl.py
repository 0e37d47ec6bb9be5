"""ERNIE 4.5 VL: a decoder whose layers keep experts for words and others for pictures, and one shared expert
for both; a tower, and a resampler that merges patches in space and in time.
"""

from __future__ import annotations

from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    Embeddings,
    ModelSpec,
    Moe,
    Role,
    Stack,
    Tower,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.nested import causal_head, model_class_name
from memsheet.readers.parts import (
    embedding_table,
    fused_attention,
    gated_mlp,
    layer_norm,
    linear_weights,
    plain_mlp,
    repeating_layer_runs,
    rms_norm,
    run_length,
    separate_qkv_attention,
)
from memsheet.readers.sparse_parts import experts_per_token, key_value_heads, router_weights, stacked_experts
from memsheet.readers.vision import even_heads

_CLASS = "Ernie4_5_VLMoeForConditionalGeneration"
_TEXT, _VISUAL, _RESAMPLER = "model.language_model", "model.vision_tower", "model.resampler_model"
_WIDTHS = (1536, 512)
_KINDS = ("dense", "sparse")


def read(config: Fields) -> ModelSpec:
    """Defaults: Ernie4_5_VLMoeTextConfig and Ernie4_5_VLMoeVisionConfig."""
    model_class_name(config, (_CLASS,), _CLASS)
    text = config.sub("text_config")
    hidden = text.count("hidden_size", default=2560)
    vocab = text.count("vocab_size", default=103424)
    return ModelSpec(
        name="",
        model_type="ernie4_5_vl_moe",
        hidden=hidden,
        vocab=vocab,
        embeddings=Embeddings(
            weights=(embedding_table(f"{_TEXT}.embed_tokens", vocab, hidden, vocabulary=True),)
        ),
        stacks=(
            Stack(
                path=f"{_TEXT}.layers",
                hidden=hidden,
                runs=repeating_layer_runs(
                    _routed_layers(text), lambda routed: _ernie_block(text, hidden, routed=routed)
                ),
                final_norms=(rms_norm("norm", hidden),),
                final_path=_TEXT,
            ),
        ),
        head=causal_head(vocab, hidden, tied=config.flag("tie_word_embeddings", default=True)),
        towers=(_ernie_tower(config.sub("vision_config"), hidden),),
        max_positions=text.count("max_position_embeddings", default=131072),
    )


def _routed_layers(text: Fields) -> tuple[bool, ...]:
    layers = text.layers(default=28)
    kinds = text.texts("mlp_layer_types")
    if not kinds:
        return tuple(layer > 0 for layer in range(layers))
    if len(kinds) != layers or any(kind not in _KINDS for kind in kinds):
        text.wrong("mlp_layer_types", list(kinds)[:8], f"is not dense or sparse for each of {layers} layers")
        return (False,) * layers
    return tuple(kind == "sparse" for kind in kinds)


def _ernie_block(text: Fields, hidden: int, *, routed: bool) -> Block:
    return Block(
        kind="ernie4_5_vl_moe_text",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(_ernie_attention(text, hidden),),
        feed_forward=_two_kinds_of_experts(text, hidden) if routed else _ernie_mlp(text, hidden),
        norms=(rms_norm("input_layernorm", hidden), rms_norm("post_attention_layernorm", hidden)),
    )


def _ernie_attention(text: Fields, hidden: int) -> Attention:
    heads = text.count("num_attention_heads", default=20)
    bias = text.flag("use_bias", default=False)
    kv_heads, head_dim = (
        key_value_heads(text, heads, default=4),
        text.count("head_dim", default=hidden // heads),
    )
    return separate_qkv_attention(
        "self_attn", hidden, heads, kv_heads, head_dim, qkv_bias=bias, out_bias=bias
    )


def _ernie_mlp(text: Fields, hidden: int, path: str = "mlp", width: int | None = None) -> Dense:
    inner = text.count("intermediate_size", default=12288) if width is None else width
    activation, bias = text.text("hidden_act", default="silu"), text.flag("use_bias", default=False)
    return gated_mlp(path, hidden, inner, activation, bias=bias)


def _two_kinds_of_experts(text: Fields, hidden: int) -> Moe:
    """A word goes to experts of the first kind, a patch of a picture to as many of the second, narrower."""
    widths = text.counts("moe_intermediate_size", _WIDTHS, low=1)
    if len(widths) != len(_WIDTHS):
        text.wrong("moe_intermediate_size", list(widths), "is not a width for words and one for pictures")
        widths = _WIDTHS
    experts = text.count("moe_num_experts", "num_experts", default=64)
    per_token = experts_per_token(text, "moe_k", "num_experts_per_tok", default=6, experts=experts)
    shared = text.count("moe_num_shared_experts", default=2, low=0)
    return Moe(
        path="mlp",
        experts=experts,
        experts_per_token=per_token,
        intermediate=widths[0],
        activation=text.text("hidden_act", default="silu"),
        shared=_ernie_mlp(text, hidden, "mlp.shared_experts", shared * widths[0]) if shared else None,
        weights=(
            *_experts_of_kind("mlp.text_moe", experts, hidden, widths[0]),
            *_experts_of_kind("mlp.vision_moe", experts, hidden, widths[1]),
        ),
    )


def _experts_of_kind(path: str, experts: int, hidden: int, width: int) -> tuple[Weight, ...]:
    statics = f"{path}.gate.moe_statics.e_score_correction_bias"
    return (
        *router_weights(f"{path}.gate", experts, hidden, dtype="fp32"),
        *stacked_experts(f"{path}.experts", experts, hidden, width),
        Weight(path=statics, shape=(1, experts), role=Role.OTHER, dtype="fp32"),
    )


def _ernie_tower(vision: Fields, out: int) -> Tower:
    """Patches in; squares of them, then neighbours in time, merged to one token of the decoder's width."""
    hidden = vision.count("hidden_size", default=1280)
    heads = even_heads(vision, hidden, "num_heads", "num_attention_heads", default=16)
    patch = vision.count("patch_size", default=14)
    pixels = vision.count("in_channels", default=3) * patch * patch
    merged = hidden * vision.count("spatial_merge_size", default=2) ** 2
    later = merged * vision.count("temporal_merge_size", default=2)
    block = Block(
        kind="ernie4_5_vl_moe_vision",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(_ernie_vision_attention(hidden, heads),),
        feed_forward=plain_mlp(
            "mlp",
            hidden,
            vision.count("intermediate_size", default=5120),
            vision.text("hidden_act", default="quick_gelu"),
            bias=True,
            names=("fc1", "fc2"),
        ),
        norms=(layer_norm("norm1", hidden), layer_norm("norm2", hidden)),
    )
    return Tower(
        path=_VISUAL,
        stack=Stack(
            path=f"{_VISUAL}.blocks",
            hidden=hidden,
            runs=run_length([block] * vision.layers("depth", "num_hidden_layers", default=32)),
            final_norms=(layer_norm("ln", hidden),),
            final_path=_VISUAL,
            role="vision",
        ),
        embeddings=linear_weights(f"{_VISUAL}.patch_embed.proj", hidden, pixels),
        projector=(
            *_merging_layers("spatial_linear", merged, merged),
            *_merging_layers("temporal_linear", later, merged),
            *linear_weights(f"{_RESAMPLER}.mlp", out, merged, bias=True),
            *rms_norm(f"{_RESAMPLER}.after_norm", out).weights,
        ),
    )


def _ernie_vision_attention(hidden: int, heads: int) -> Attention:
    head_dim = hidden // heads
    return fused_attention(
        "attn", hidden, heads, heads, head_dim, qkv_bias=True, out_bias=True, names=("qkv", "proj"),
        rotary_dim=head_dim,
    )  # fmt: skip


def _merging_layers(name: str, width: int, out: int) -> tuple[Weight, ...]:
    path = f"{_RESAMPLER}.{name}"
    return (
        *linear_weights(f"{path}.fc1", out, width, bias=True, cut="out"),
        *linear_weights(f"{path}.fc2", out, out, bias=True, cut="in"),
        *layer_norm(f"{path}.ln", out).weights,
    )
