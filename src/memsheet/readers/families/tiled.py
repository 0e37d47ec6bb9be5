"""Language models that see pictures cut into tiles: LLaVA-NeXT and LLaVA-OneVision, Idefics3 and SmolVLM,
InternVL and LFM2-VL; and PaliGemma, which sees one.
"""

from __future__ import annotations

from typing import Any

from memsheet.plan.model import ModelSpec, Picture, Role, Weight
from memsheet.readers.families.multimodal import (
    PROJECTOR,
    TOWER,
    combine_text_and_vision,
    feature_layer_count,
    image_token_counts,
    reread_vision_config,
    two_layer_projector,
)
from memsheet.readers.fields import Fields
from memsheet.readers.nested import bare_parameter, height_and_width, model_class_name, text_model
from memsheet.readers.parts import layer_norm, linear_weights
from memsheet.readers.vision import Vision, vision_model

# What the family's configuration class passes where a nested config is missing as a whole.
_CLIP = {
    "model_type": "clip_vision_model", "intermediate_size": 4096, "hidden_size": 1024, "patch_size": 14, "image_size": 336,
    "num_hidden_layers": 24, "num_attention_heads": 16,
}  # fmt: skip
_ONEVISION = {
    "model_type": "siglip_vision_model", "intermediate_size": 4304, "hidden_size": 1152, "patch_size": 14, "image_size": 384,
    "num_hidden_layers": 26, "num_attention_heads": 16, "vision_use_head": False,
}  # fmt: skip
_PALIGEMMA_TEXT: dict[str, Any] = {
    "model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "intermediate_size": 16384, "num_attention_heads": 8,
    "num_key_value_heads": 1, "vocab_size": 257152,
}  # fmt: skip
_PALIGEMMA_VISION = {
    "model_type": "siglip_vision_model", "intermediate_size": 4096, "hidden_size": 1152, "patch_size": 14, "image_size": 224,
    "num_hidden_layers": 27, "num_attention_heads": 16, "vision_use_head": False,
}  # fmt: skip
_PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
"""Sizes that LLaVA-NeXT fits a picture to, where its config says no others (configuration_llava_next.py)."""
MAX_PINPOINTS = 256
_CLASSES = {
    "idefics3": "Idefics3ForConditionalGeneration", "smolvlm": "SmolVLMForConditionalGeneration", "internvl": "InternVLForConditionalGeneration",
    "paligemma": "PaliGemmaForConditionalGeneration", "llava_next": "LlavaNextForConditionalGeneration",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration", "lfm2_vl": "Lfm2VlForConditionalGeneration",
}  # fmt: skip


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="llava_next", choices=tuple(_CLASSES))
    model_class_name(config, (_CLASSES[kind],), _CLASSES[kind])
    match kind:
        case "idefics3" | "smolvlm":
            return _idefics3_spec(config, kind)
        case "internvl":
            return _internvl_spec(config)
        case "paligemma":
            return _paligemma_spec(config)
        case "lfm2_vl":
            return _lfm2_vl_spec(config)
        case "llava_onevision":
            return _llava_onevision_spec(config)
        case _:
            return _llava_next_spec(config)


def _idefics3_spec(config: Fields, kind: str) -> ModelSpec:
    """Squares of neighbouring patches become one token; how many tiles a picture is cut into, its processor's
    file says.
    """
    path = "model.vision_model"
    text = text_model(config.sub("text_config"), "llama")
    vision = vision_model(config, path, f"{kind}_vision")
    scale = config.count("scale_factor", default=2)
    projector = linear_weights(
        "model.connector.modality_projection.proj", text.hidden, vision.hidden * scale**2
    )
    return combine_text_and_vision(
        config,
        text,
        vision,
        projector,
        picture=None,
        tile=_merged_token_count(vision, scale),
        tied=config.flag("tie_word_embeddings", default=False),
        names=("model.text_model", path),
    )


def _merged_token_count(vision: Vision, scale: int) -> int:
    return max((vision.patches or 1) // scale**2, 1)


def _internvl_spec(config: Fields) -> ModelSpec:
    """``downsample_ratio``: of a side; its inverse is a whole number of patches."""
    text = text_model(config.sub("text_config"), "qwen2")
    vision = vision_model(config, TOWER, "internvl_vision")
    ratio = config.number("downsample_ratio", default=0.5)
    if not 0 < ratio <= 1:
        config.wrong("downsample_ratio", ratio, "is not a share of a side between 0 and 1")
    scale = int(1 / ratio) if 0 < ratio <= 1 else 1
    wide = vision.hidden * scale**2
    projector = (
        *layer_norm(f"{PROJECTOR}.layer_norm", wide).weights,
        *linear_weights(f"{PROJECTOR}.linear_1", text.hidden, wide, bias=True, cut="out"),
        *linear_weights(f"{PROJECTOR}.linear_2", text.hidden, text.hidden, bias=True, cut="in"),
    )
    return combine_text_and_vision(
        config,
        text,
        vision,
        projector,
        picture=None,
        tile=_merged_token_count(vision, scale),
        tied=config.flag("tie_word_embeddings", default=True),
    )


def _paligemma_spec(config: Fields) -> ModelSpec:
    """One linear layer between the two; every patch is a token."""
    text = text_model(config.sub("text_config", _PALIGEMMA_TEXT), "gemma")
    vision = vision_model(config, TOWER, "siglip_vision_model", _PALIGEMMA_VISION)
    width = config.count("projection_dim", default=2048)
    projector = linear_weights(f"{PROJECTOR}.linear", width, vision.hidden, bias=True)
    if width != text.hidden:
        config.wrong("projection_dim", width, f"is not the text model's hidden_size {text.hidden}")
    tokens = vision.patches
    return combine_text_and_vision(
        config,
        text,
        vision,
        projector,
        picture=image_token_counts(config, tokens, image=224, absent=_PALIGEMMA_VISION) if tokens else None,
        tied=config.flag("tie_word_embeddings", default=True),
    )


def _lfm2_vl_spec(config: Fields) -> ModelSpec:
    """Squares of patches of pictures of any shape become one token. ``tie_embedding``: as the first releases
    have it.
    """
    text = text_model(config.sub("text_config"), "lfm2")
    vision = vision_model(config, TOWER, "siglip2_vision_model")
    wide = vision.hidden * config.count("downsample_factor", default=2) ** 2
    inner, bias = (
        config.count("projector_hidden_size", default=2560),
        config.flag("projector_bias", default=True),
    )
    normed = config.flag("projector_use_layernorm", default=True)
    projector = (
        *(layer_norm(f"{PROJECTOR}.layer_norm", wide).weights if normed else ()),
        *linear_weights(f"{PROJECTOR}.linear_1", inner, wide, bias=bias, cut="out"),
        *linear_weights(f"{PROJECTOR}.linear_2", text.hidden, inner, bias=bias, cut="in"),
    )
    return combine_text_and_vision(
        config,
        text,
        vision,
        projector,
        picture=None,
        tied=config.flag("tie_embedding", "tie_word_embeddings", default=True),
    )


def _newline_weight(hidden: int) -> Weight:
    """What ends each row of a picture in the text."""
    return bare_parameter("model.image_newline", hidden, role=Role.OTHER)


def _llava_next_spec(config: Fields) -> ModelSpec:
    text = text_model(config.sub("text_config"), "llama")
    vision = vision_model(config, TOWER, "clip_vision_model", _CLIP)
    projector = (
        _newline_weight(text.hidden),
        *two_layer_projector(config, text.hidden, vision.hidden * feature_layer_count(config), bias=True),
    )
    return combine_text_and_vision(
        config,
        text,
        vision,
        projector,
        picture=_llava_next_picture(config, vision),
        fixed=False,
        tile=vision.patches,
        tied=config.flag("tie_word_embeddings", default=False),
    )


def _llava_onevision_spec(config: Fields) -> ModelSpec:
    """Its videos may take more places than any picture, so that its largest is not known from here."""
    text = text_model(config.sub("text_config"), "qwen2")
    vision = vision_model(config, TOWER, "siglip_vision_model", _ONEVISION)
    projector = (
        _newline_weight(text.hidden),
        *two_layer_projector(config, text.hidden, vision.hidden * feature_layer_count(config), bias=True),
    )
    return combine_text_and_vision(
        config,
        text,
        vision,
        projector,
        picture=None,
        tile=vision.patches,
        tied=config.flag("tie_word_embeddings", default=False) or text.head.tied,
    )


def _llava_next_picture(config: Fields, vision: Vision) -> Picture | None:
    """The picture that takes most places: as large as one of the sizes that pictures are fitted to, in tiles,
    each row ended by a mark, after all of it as one tile (LlavaNextProcessor._get_number_of_features).
    """
    strategy = config.text("vision_feature_select_strategy", default="default", choices=("default", "full"))
    absent = reread_vision_config(config, _CLIP)
    height, width = height_and_width(absent, "image_size", 224)
    patch, _ = height_and_width(absent, "patch_size", 32)
    if vision.patches is None or not min(height, width, patch):
        return None
    rows, columns = height // patch, width // patch
    whole = vision.patches + (1 if strategy == "full" and vision.class_token else 0)
    found = []
    for tall, wide in _pinpoint_sizes(config):
        down, across = max(tall // height, 1), max(wide // width, 1)
        tokens = rows * down * (columns * across + 1)
        found.append((whole + tokens, (1 + down * across) * height * width))
    tokens, pixels = max(found)
    return Picture(embeddings=tokens, places=tokens, pixels=absent.count("num_channels", default=3) * pixels)


def _pinpoint_sizes(config: Fields) -> tuple[tuple[int, int], ...]:
    given = config.raw("image_grid_pinpoints")
    if given is None:
        return _PINPOINTS
    whole = isinstance(given, list) and 0 < len(given) <= MAX_PINPOINTS
    if not whole or not all(
        isinstance(pair, list)
        and len(pair) == 2
        and all(type(side) is int and 0 < side < 2**16 for side in pair)
        for pair in given
    ):
        config.wrong("image_grid_pinpoints", given, "is not a list of heights and widths in pixels")
        return _PINPOINTS
    return tuple((pair[0], pair[1]) for pair in given)
