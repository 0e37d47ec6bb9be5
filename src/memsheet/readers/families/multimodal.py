"""Language models that see: a text model of another family, a vision tower, and the projector between them.

The tower and the text model read their own nested configs; a key missing there takes the default of that
config's class.
"""

from __future__ import annotations

from typing import Any

from memsheet.arith import ceil_div
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec, NormKind, Picture, Role, Tower, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.nested import (
    bare_parameter,
    causal_head,
    height_and_width,
    model_class_name,
    rename_path_roots,
    text_model,
)
from memsheet.readers.parts import linear_weights, rms_norm
from memsheet.readers.vision import Vision, vision_model

PROJECTOR = "model.multi_modal_projector"
TOWER = "model.vision_tower"
AROUND_GEMMA3 = 4
"""Tokens around a picture: an empty line and a mark before it and after it (transformers
processing_gemma3.py, full_image_sequence).
"""

# What the family's configuration class passes where a nested config is missing as a whole
# (configuration_llava.py, configuration_mistral3.py).
_LLAVA_VISION = {
    "model_type": "clip_vision_model", "intermediate_size": 4096, "hidden_size": 1024, "patch_size": 14, "image_size": 336,
    "num_hidden_layers": 24, "num_attention_heads": 16,
}  # fmt: skip
_MISTRAL3_TEXT: dict[str, Any] = {
    "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768, "max_position_embeddings": 131072,
    "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "vocab_size": 131072, "sliding_window": None,
}  # fmt: skip
_MISTRAL3_VISION = {
    "model_type": "pixtral", "intermediate_size": 4096, "hidden_size": 1024, "patch_size": 14, "image_size": 1540,
    "num_hidden_layers": 24, "num_attention_heads": 16,
}  # fmt: skip


def read(config: Fields) -> ModelSpec:
    match config.text("model_type", default="llava"):
        case "gemma3":
            return _gemma3_spec(config)
        case "mistral3":
            return _mistral3_spec(config)
        case _:
            return _llava_spec(config)


def combine_text_and_vision(
    config: Fields,
    text: ModelSpec,
    vision: Vision,
    projector: tuple[Weight, ...],
    *,
    tied: bool,
    picture: Picture | None,
    fixed: bool = True,
    tile: int | None = None,
    names: tuple[str, str] = ("model.language_model", TOWER),
) -> ModelSpec:
    """One model of both; its head has neither the text family's soft cap nor its scale. ``fixed``: every
    picture is as large as the largest; ``tile``: tokens of one of its tiles; ``names``: of the two in it.
    """
    tower = Tower(
        path=names[1],
        stack=vision.stack,
        embeddings=vision.embeddings,
        projector=projector,
        largest=picture,
        tokens_per_image=picture.embeddings if fixed and picture else tile,
    )
    return replace(
        rename_path_roots(text, {"model": names[0]}),
        model_type=config.text("model_type", default=""),
        head=causal_head(text.vocab, text.hidden, tied=tied),
        towers=(tower,),
        extras=vision.extras,
    )


def _gemma3_spec(config: Fields) -> ModelSpec:
    model_class_name(config, ("Gemma3ForConditionalGeneration",), "Gemma3ForConditionalGeneration")
    text = text_model(config.sub("text_config"), "gemma3_text")
    vision = vision_model(config, TOWER, "siglip_vision_model")
    projector = (
        bare_parameter(
            f"{PROJECTOR}.mm_input_projection_weight", vision.hidden, text.hidden, role=Role.LINEAR
        ),
        *rms_norm(f"{PROJECTOR}.mm_soft_emb_norm", vision.hidden, NormKind.RMS_OFFSET).weights,
    )
    tokens = config.count("mm_tokens_per_image", default=256)
    return combine_text_and_vision(
        config,
        text,
        vision,
        projector,
        picture=image_token_counts(config, tokens, AROUND_GEMMA3, image=224),
        tied=config.flag(
            "tie_word_embeddings", default="tie_word_embeddings" not in config.data
        ),  # a null unties
    )


def _llava_spec(config: Fields) -> ModelSpec:
    model_class_name(config, ("LlavaForConditionalGeneration",), "LlavaForConditionalGeneration")
    text = text_model(config.sub("text_config"), "llama")
    vision = vision_model(config, TOWER, "clip_vision_model", _LLAVA_VISION)
    projector = two_layer_projector(
        config, text.hidden, vision.hidden * feature_layer_count(config), bias=True
    )
    return combine_text_and_vision(
        config,
        text,
        vision,
        projector,
        picture=_llava_picture(config, vision),
        tied=config.flag("tie_word_embeddings", default=False) or text.head.tied,
    )


def _mistral3_spec(config: Fields) -> ModelSpec:
    model_class_name(config, ("Mistral3ForConditionalGeneration",), "Mistral3ForConditionalGeneration")
    text = text_model(config.sub("text_config", _MISTRAL3_TEXT), "mistral")
    vision = vision_model(config, TOWER, "pixtral", _MISTRAL3_VISION)
    merge = config.count("spatial_merge_size", default=2)
    projector = (
        *rms_norm(f"{PROJECTOR}.norm", vision.hidden).weights,
        *linear_weights(
            f"{PROJECTOR}.patch_merger.merging_layer", vision.hidden, vision.hidden * merge * merge
        ),
        *two_layer_projector(config, text.hidden, vision.hidden * feature_layer_count(config), bias=False),
    )
    return combine_text_and_vision(
        config,
        text,
        vision,
        projector,
        picture=_mistral3_picture(config, merge),
        fixed=False,
        tied=config.flag("tie_word_embeddings", default=True),
    )


def two_layer_projector(config: Fields, hidden: int, width: int, *, bias: bool) -> tuple[Weight, ...]:
    """The projector's two linear layers; ``bias`` is the family's default."""
    biased = config.flag("multimodal_projector_bias", default=bias)
    return (
        *linear_weights(f"{PROJECTOR}.linear_1", hidden, width, bias=biased, cut="out"),
        *linear_weights(f"{PROJECTOR}.linear_2", hidden, hidden, bias=biased, cut="in"),
    )


def feature_layer_count(config: Fields) -> int:
    """How many vision layers' outputs are joined side by side: one, or as many as a list names."""
    layers = config.raw("vision_feature_layer", default=-1)
    if isinstance(layers, list) and layers:
        return len(layers)
    if isinstance(layers, bool) or not isinstance(layers, int):
        config.wrong("vision_feature_layer", layers, "is neither a layer's number nor a list of them")
    return 1


def _llava_picture(config: Fields, vision: Vision) -> Picture | None:
    """Tokens an image takes in the text: ``default`` drops the first vision token, whatever it stands for."""
    strategy = config.text("vision_feature_select_strategy", default="default", choices=("default", "full"))
    if vision.patches is None:
        return None
    tokens = vision.patches + (1 if vision.class_token else 0) - (1 if strategy == "default" else 0)
    return image_token_counts(config, tokens, image=224, absent=_LLAVA_VISION)


def _mistral3_picture(config: Fields, merge: int) -> Picture:
    """A square of the largest size, in patches that are merged; a mark ends each row (PixtralProcessor)."""
    sizes = height_and_width(config.sub("vision_config", _MISTRAL3_VISION), "image_size", 1024)
    patches = height_and_width(reread_vision_config(config, _MISTRAL3_VISION), "patch_size", 16)
    rows, columns = (ceil_div(side, patch * merge) for side, patch in zip(sizes, patches, strict=True))
    return image_token_counts(config, rows * columns, rows, image=1024, absent=_MISTRAL3_VISION)


def image_token_counts(
    config: Fields, embeddings: int, around: int = 0, *, image: int, absent: dict[str, Any] | None = None
) -> Picture:
    """``image``: the side that the vision config's class takes where none is given; ``around``: places that
    hold no embedding.
    """
    vision = reread_vision_config(config, absent)
    height, width = height_and_width(vision, "image_size", image)
    channels = vision.count("num_channels", default=3)
    return Picture(embeddings=embeddings, places=embeddings + around, pixels=channels * height * width)


def reread_vision_config(config: Fields, absent: dict[str, Any] | None) -> Fields:
    """The vision config once more, whose problems its own reader has told."""
    return Fields(config.sub("vision_config", absent).data, "", [])
