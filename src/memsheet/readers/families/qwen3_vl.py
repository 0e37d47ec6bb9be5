"""Qwen3-VL, dense and routed: a Qwen3 decoder beside a vision tower that hands the outputs of a few of its
layers to the decoder's first layers too (deepstack), each through a merger of its own.

Defaults are those of the configuration classes of transformers 5.23 (configuration_qwen3_vl.py,
configuration_qwen3_vl_moe.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsheet.frozen import dataclass, replace
from memsheet.plan.model import (
    Arrangement,
    Block,
    ModelSpec,
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
)
from memsheet.readers.parts import embedding_table, fused_attention, layer_norm, linear_weights, plain_mlp
from memsheet.readers.vision import even_heads, patch_convolution_weights

VISUAL = "model.visual"
# Qwen3VLTextConfig and Qwen3VLMoeTextConfig, where they differ from Qwen3Config and Qwen3MoeConfig
_TEXT: dict[str, Any] = {"max_position_embeddings": 128000}
_ROUTED_TEXT: dict[str, Any] = {
    "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 128000,
    "moe_intermediate_size": 1408, "num_experts_per_tok": 4, "num_experts": 60,
}  # fmt: skip
_UNREAD = ("model_type", "sliding_window", "use_sliding_window", "layer_types")
"""Keys of Qwen3's that this text model's code reads nothing of: every layer sees every token."""
_DEEPSTACK = (8, 16, 24)


def read(config: Fields) -> ModelSpec:
    routed = config.text("model_type", default="qwen3_vl") == "qwen3_vl_moe"
    nested = config.sub("text_config")
    defaults = _ROUTED_TEXT if routed else _TEXT
    given = {key: value for key, value in nested.data.items() if key not in _UNREAD}
    code = "qwen3_moe" if routed else "qwen3"
    fields = Fields({**defaults, **given, "model_type": code}, nested.where, config.problems)
    vision = config.sub("vision_config")
    tower = qwen3_vision_tower(vision, vision.counts("deepstack_visual_indexes", _DEEPSTACK))
    text = of_kind(text_model(fields, code), "qwen3_vl_moe" if routed else "qwen3_vl")
    return seeing_qwen(config, text, tower)


def seeing_qwen(config: Fields, text: ModelSpec, tower: Tower) -> ModelSpec:
    """A text model beside a tower; the output is tied as the whole model's config says."""
    model_type = config.text("model_type", default="qwen3_vl")
    name = f"{_CLASSES[model_type]}ForConditionalGeneration"
    model_class_name(config, (name,), name)
    tied = config.flag("tie_word_embeddings", default=False)
    return replace(
        rename_path_roots(text, {"model": "model.language_model"}),
        model_type=model_type,
        head=causal_head(text.vocab, text.hidden, tied=tied),
        towers=(tower,),
    )


_CLASSES = {
    "qwen3_vl": "Qwen3VL",
    "qwen3_vl_moe": "Qwen3VLMoe",
    "qwen3_5": "Qwen3_5",
    "qwen3_5_moe": "Qwen3_5Moe",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Merger:
    """Names of what joins patches: the list of further ones, and the modules of each."""

    more: str = "deepstack_merger_list"
    norm: str = "norm"
    first: str = "linear_fc1"
    second: str = "linear_fc2"


QWEN3_VL = Merger()


def qwen3_vision_tower(
    config: Fields,
    deepstack: Sequence[int] = (),
    path: str = VISUAL,
    kind: str = "qwen3_vl_vision",
    merger: Merger = QWEN3_VL,
) -> Tower:
    """Patches in, merged tokens of the text model's width out, once more for each layer of ``deepstack``."""
    hidden = config.count("hidden_size", default=1152)
    block = _vision_block(config, kind, hidden)
    out = config.count("out_hidden_size", default=3584)
    merge = config.count("spatial_merge_size", default=2) ** 2
    kernel = (
        height_and_width(config, "temporal_patch_size", 2)[0],
        *height_and_width(config, "patch_size", 16),
    )
    mergers = [_merger_weights(merger, f"{path}.merger", hidden, hidden, merge, out)]
    for place in range(len(deepstack)):
        at = f"{path}.{merger.more}.{place}"
        mergers.append(_merger_weights(merger, at, hidden, hidden * merge, merge, out))
    return Tower(
        path=path,
        stack=Stack(
            path=f"{path}.blocks",
            hidden=hidden,
            runs=(Run(pattern=(block,), count=config.layers("depth", "num_hidden_layers", default=27)),),
            role="vision",
        ),
        projector=tuple(weight for one in mergers for weight in one),
        deepstack=len(deepstack),
        embeddings=(
            *patch_convolution_weights(
                f"{path}.patch_embed.proj",
                hidden,
                config.count("in_channels", default=3),
                kernel,
                bias=True,
            ),
            embedding_table(
                f"{path}.pos_embed", config.count("num_position_embeddings", default=2304), hidden
            ),
        ),
    )


def _vision_block(config: Fields, kind: str, hidden: int) -> Block:
    heads = even_heads(config, hidden, "num_heads", "num_attention_heads", default=16)
    mixer = fused_attention(
        "attn",
        hidden,
        heads,
        heads,
        hidden // heads,
        qkv_bias=True,
        out_bias=True,
        names=("qkv", "proj"),
        rotary_dim=hidden // heads,
    )
    mlp = plain_mlp(
        "mlp",
        hidden,
        config.count("intermediate_size", default=4304),
        config.text("hidden_act", default="gelu_pytorch_tanh"),
        bias=True,
        names=("linear_fc1", "linear_fc2"),
    )
    return Block(
        kind=kind,
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(replace(mixer, causal=False),),
        feed_forward=mlp,
        norms=(layer_norm("norm1", hidden), layer_norm("norm2", hidden)),
    )


def _merger_weights(
    names: Merger, path: str, hidden: int, normed: int, merge: int, out: int
) -> tuple[Weight, ...]:
    """A norm over ``normed`` elements (before patches are joined, or after), and two linear layers."""
    wide = hidden * merge
    return (
        *layer_norm(f"{path}.{names.norm}", normed).weights,
        *linear_weights(f"{path}.{names.first}", wide, wide, bias=True, cut="out"),
        *linear_weights(f"{path}.{names.second}", out, wide, bias=True, cut="in"),
    )
