"""GLM-4.1V, GLM-4.5V and GLM-4.6V, dense and routed: a GLM-4 decoder beside a tower with gated feed-forward
layers, whose patches a convolution joins and a gated merger projects.

Defaults are those of the configuration classes of transformers 5.23 (configuration_glm4v.py,
configuration_glm4v_moe.py).
"""

from __future__ import annotations

from typing import Any

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Block, ModelSpec, Run, Stack, Tower, Weight
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
    embedding_table,
    fused_attention,
    gated_mlp,
    layer_norm,
    linear_weights,
    rms_norm,
)
from memsheet.readers.vision import even_heads, patch_convolution_weights

VISUAL = "model.visual"
_CLASSES = {"glm4v": "Glm4v", "glm4v_moe": "Glm4vMoe"}
# Glm4vTextConfig and Glm4vMoeTextConfig, where they differ from Glm4Config and Glm4MoeConfig
_TEXT: dict[str, Any] = {"max_position_embeddings": 32768}
_ROUTED_TEXT: dict[str, Any] = {
    "vocab_size": 151424,
    "max_position_embeddings": 65536,
    "attention_bias": True,
}
_UNREAD = {"glm4": ("model_type", "attention_bias"), "glm4_moe": ("model_type", "use_qk_norm")}
"""Keys of GLM-4's that the code of the text model beside a tower reads nothing of."""
HIDDEN, HEADS = 4096, 32


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="glm4v", choices=tuple(_CLASSES))
    nested = config.sub("text_config")
    routed = kind == "glm4v_moe"
    code = "glm4_moe" if routed else "glm4"
    given = {key: value for key, value in nested.data.items() if key not in _UNREAD[code]}
    fields = Fields(
        {**_text_defaults(nested, routed=routed), **given, "model_type": code}, nested.where, config.problems
    )
    name = f"{_CLASSES[kind]}ForConditionalGeneration"
    model_class_name(config, (name,), name)
    text = of_kind(text_model(fields, code), kind)
    return replace(
        rename_path_roots(text, {"model": "model.language_model"}),
        model_type=kind,
        head=causal_head(text.vocab, text.hidden, tied=tied_by_either(config, nested)),
        towers=(_glm_vision_tower(config.sub("vision_config")),),
    )


def _text_defaults(nested: Fields, *, routed: bool) -> dict[str, Any]:
    """A dense layer's heads share the width evenly where no config says how wide they are."""
    if routed:
        return _ROUTED_TEXT
    hidden, heads = nested.data.get("hidden_size", HIDDEN), nested.data.get("num_attention_heads", HEADS)
    even = type(hidden) is int and type(heads) is int and heads > 0
    return {**_TEXT, "head_dim": hidden // heads} if even else _TEXT


def _glm_vision_tower(config: Fields) -> Tower:
    """Patches in; 2 x 2 of them made one by a convolution and projected to the text model's width."""
    hidden = config.count("hidden_size", default=1536)
    out = config.count("out_hidden_size", default=4096)
    merge = config.count("spatial_merge_size", default=2)
    patch = height_and_width(config, "patch_size", 14)
    side = height_and_width(config, "image_size", 336)[0]
    kernel = (height_and_width(config, "temporal_patch_size", 2)[0], *patch)
    places = max(1, side // patch[0]) ** 2
    conv = patch_convolution_weights(
        f"{VISUAL}.patch_embed.proj", hidden, config.count("in_channels", default=3), kernel, bias=True
    )
    return Tower(
        path=VISUAL,
        stack=Stack(
            path=f"{VISUAL}.blocks",
            hidden=hidden,
            runs=(
                Run(
                    pattern=(_vision_block(config, hidden, out),),
                    count=config.layers("depth", "num_hidden_layers", default=24),
                ),
            ),
            role="vision",
        ),
        embeddings=(
            *conv,
            embedding_table(f"{VISUAL}.embeddings.position_embedding", places, hidden),
            *rms_norm(f"{VISUAL}.post_conv_layernorm", hidden).weights,
        ),
        projector=(
            *rms_norm(f"{VISUAL}.post_layernorm", hidden).weights,
            *patch_convolution_weights(f"{VISUAL}.downsample", out, hidden, (merge, merge), bias=True),
            *_merger_weights(out, config.count("intermediate_size", default=13696)),
        ),
    )


def _vision_block(config: Fields, hidden: int, out: int) -> Block:
    """Its feed-forward layer is as wide as the merger's output."""
    heads = even_heads(config, hidden, "num_heads", "num_attention_heads", default=12)
    mixer = fused_attention(
        "attn",
        hidden,
        heads,
        heads,
        hidden // heads,
        qkv_bias=config.flag("attention_bias", default=False),
        out_bias=False,
        names=("qkv", "proj"),
        rotary_dim=hidden // heads,
    )
    mlp = gated_mlp("mlp", hidden, out, config.text("hidden_act", default="silu"), bias=False)
    return Block(
        kind="glm4v_vision",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(replace(mixer, causal=False),),
        feed_forward=mlp,
        norms=(rms_norm("norm1", hidden), rms_norm("norm2", hidden)),
    )


def _merger_weights(out: int, inner: int) -> tuple[Weight, ...]:
    """A linear layer, a norm, and a gated feed-forward layer."""
    path = f"{VISUAL}.merger"
    return (
        *linear_weights(f"{path}.proj", out, out, bias=False, cut="out"),
        *layer_norm(f"{path}.post_projection_norm", out).weights,
        *linear_weights(f"{path}.gate_proj", inner, out, bias=False, cut="out"),
        *linear_weights(f"{path}.up_proj", inner, out, bias=False, cut="out"),
        *linear_weights(f"{path}.down_proj", out, inner, bias=False, cut="in"),
    )
