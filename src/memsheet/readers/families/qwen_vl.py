"""Qwen2-VL and Qwen2.5-VL: images of any size cut into patches, 2 x 2 of them merged into one token of a
Qwen2 decoder.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    ModelSpec,
    Norm,
    Run,
    Stack,
    Tower,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.nested import (
    causal_head,
    height_and_width,
    model_class_name,
    of_kind,
    rename_path_roots,
    text_model,
    tied_by_either,
)
from memsheet.readers.parts import (
    fused_attention,
    gated_mlp,
    layer_norm,
    linear_weights,
    plain_mlp,
    repeating_layer_runs,
    rms_norm,
)
from memsheet.readers.vision import even_heads, patch_convolution_weights

VISUAL = "model.visual"
# Qwen2VLTextConfig and Qwen2_5_VLTextConfig, where they differ from Qwen2Config
_TEXT = {
    "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "max_position_embeddings": 32768, "max_window_layers": 80, "sliding_window": 4096,
}  # fmt: skip
_FULL_ATTENTION = (7, 15, 23, 31)  # Qwen2_5_VLVisionConfig.fullatt_block_indexes


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="qwen2_vl", choices=("qwen2_vl", "qwen2_5_vl"))
    name = {"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration"}.get(kind, "Qwen2VLForConditionalGeneration")
    model_class_name(config, (name,), name)
    nested = config.sub("text_config")
    text = text_model(_text_fields(config, nested), "qwen2")
    vision = config.sub("vision_config")
    return replace(
        of_kind(rename_path_roots(text, {"model": "model.language_model"}), kind),
        model_type=kind,
        head=causal_head(text.vocab, text.hidden, tied=tied_by_either(config, nested)),
        towers=(_qwen2_vision_tower(vision) if kind == "qwen2_vl" else qwen2_5_vision_tower(vision),),
    )


def _text_fields(config: Fields, nested: Fields) -> Fields:
    """The text part: nested, or in older files flat beside everything else. Its code takes hidden over heads
    as head_dim.
    """
    flat = config.raw("text_config") is None
    given = {key: value for key, value in (config if flat else nested).data.items() if key != "head_dim"}
    return Fields({**_TEXT, **given, "model_type": "qwen2"}, "" if flat else nested.where, config.problems)


def _qwen_vision_block(
    kind: str,
    hidden: int,
    heads: int,
    *,
    norms: tuple[Norm, ...],
    mlp: Dense,
    kv_heads: int | None = None,
    chunk: int | None = None,
) -> Block:
    """``chunk``: tokens of a window, where attention stays inside windows."""
    head_dim = hidden // heads
    mixer: Attention = fused_attention(
        "attn",
        hidden,
        heads,
        kv_heads or heads,
        head_dim,
        qkv_bias=True,
        out_bias=True,
        names=("qkv", "proj"),
        rotary_dim=head_dim,
    )
    mixers = (replace(mixer, causal=False, chunk=chunk),)
    return Block(
        kind=kind, hidden=hidden, arrangement=Arrangement.PRE, mixers=mixers, feed_forward=mlp, norms=norms
    )


def _qwen_vision_tower(
    config: Fields, hidden: int, runs: tuple[Run, ...], merger_norm: Norm, out: int
) -> Tower:
    """Patches in, merged tokens of width ``out`` out. How many depends on the image."""
    kernel = (
        height_and_width(config, "temporal_patch_size", 2)[0],
        *height_and_width(config, "patch_size", 14),
    )
    merged = hidden * config.count("spatial_merge_size", default=2) ** 2
    projector: tuple[Weight, ...] = (
        *merger_norm.weights,
        *linear_weights(f"{VISUAL}.merger.mlp.0", merged, merged, bias=True, cut="out"),
        *linear_weights(f"{VISUAL}.merger.mlp.2", out, merged, bias=True, cut="in"),
    )
    return Tower(
        path=VISUAL,
        stack=Stack(path=f"{VISUAL}.blocks", hidden=hidden, runs=runs, role="vision"),
        projector=projector,
        embeddings=patch_convolution_weights(
            f"{VISUAL}.patch_embed.proj", hidden, config.count("in_channels", default=3), kernel, bias=False
        ),
    )


def _qwen2_vision_tower(config: Fields) -> Tower:
    """Defaults: Qwen2VLVisionConfig. Its hidden_size is the text model's width."""
    hidden = config.count("embed_dim", default=1280)
    heads = even_heads(config, hidden, "num_heads", "num_attention_heads", default=16, width="embed_dim")
    mlp = plain_mlp(
        "mlp",
        hidden,
        hidden * config.count("mlp_ratio", default=4),
        config.text("hidden_act", default="quick_gelu"),
        bias=True,
        names=("fc1", "fc2"),
    )
    block = _qwen_vision_block(
        "qwen2_vl_vision",
        hidden,
        heads,
        norms=(layer_norm("norm1", hidden), layer_norm("norm2", hidden)),
        mlp=mlp,
    )
    runs = (Run(pattern=(block,), count=config.layers("depth", "num_hidden_layers", default=32)),)
    return _qwen_vision_tower(
        config,
        hidden,
        runs,
        layer_norm(f"{VISUAL}.merger.ln_q", hidden),
        config.count("hidden_size", default=3584),
    )


def qwen2_5_vision_tower(
    config: Fields, kind: str = "qwen2_5_vl_vision", kv_heads: int | None = None
) -> Tower:
    """Defaults: Qwen2_5_VLVisionConfig. A few layers see the whole image, the others windows of it."""
    hidden = config.count("hidden_size", default=3584)
    heads = even_heads(config, hidden, "num_heads", "num_attention_heads", default=16)
    intermediate = config.count("intermediate_size", default=3420)
    mlp = gated_mlp("mlp", hidden, intermediate, config.text("hidden_act", default="silu"), bias=True)
    norms = (rms_norm("norm1", hidden), rms_norm("norm2", hidden))
    window = _window_patch_count(config)
    full = set(config.counts("fullatt_block_indexes", _FULL_ATTENTION))
    layers = config.layers("depth", "num_hidden_layers", default=32)
    runs = repeating_layer_runs(
        [None if layer in full else window for layer in range(layers)],
        lambda chunk: _qwen_vision_block(
            kind, hidden, heads, norms=norms, mlp=mlp, kv_heads=kv_heads, chunk=chunk
        ),
    )
    return _qwen_vision_tower(
        config,
        hidden,
        runs,
        rms_norm(f"{VISUAL}.merger.ln_q", hidden),
        config.count("out_hidden_size", default=3584),
    )


def _window_patch_count(config: Fields) -> int:
    """Patches of one window: its side is a whole number of merged tokens."""
    merge = config.count("spatial_merge_size", default=2)
    side = config.count("window_size", default=112) // merge // height_and_width(config, "patch_size", 14)[0]
    return (max(side, 1) * merge) ** 2
