"""Parameters of models that see pictures in tiles: every name, shape and count as in the real model on the
meta device; and how large their largest picture is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from memsheet.errors import InputError
from memsheet.readers.hf_config import read_hf_config
from oracle import assert_same_model

VISION = {
    "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 3, "num_attention_heads": 6, "image_size": 56, "patch_size": 14,
}  # fmt: skip
TEXT = {
    "hidden_size": 120, "intermediate_size": 312, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "vocab_size": 1003, "pad_token_id": 0,
}  # fmt: skip
CLASSES = {
    "idefics3": "Idefics3ForConditionalGeneration",
    "smolvlm": "SmolVLMForConditionalGeneration",
    "internvl": "InternVLForConditionalGeneration",
    "paligemma": "PaliGemmaForConditionalGeneration",
    "llava_next": "LlavaNextForConditionalGeneration",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration",
    "lfm2_vl": "Lfm2VlForConditionalGeneration",
}
PALIGEMMA = {**TEXT, "model_type": "gemma", "head_dim": 20, "hidden_act": "gelu_pytorch_tanh"}
SMALL: dict[str, dict[str, Any]] = {
    "idefics3": {"text_config": TEXT, "vision_config": VISION, "scale_factor": 4},
    "smolvlm": {"text_config": TEXT, "vision_config": {**VISION, "image_size": 60}, "tie_word_embeddings": True},
    "internvl": {"text_config": TEXT, "vision_config": VISION},
    "paligemma": {
        "text_config": PALIGEMMA, "projection_dim": 120, "hidden_size": 120, "image_token_index": 1,
        "vision_config": {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
    },
    "llava_next": {"text_config": TEXT, "vision_config": {**VISION, "model_type": "clip_vision_model"}},
    "llava_onevision": {"text_config": TEXT, "vision_config": {**VISION, "model_type": "siglip_vision_model"}},
    "lfm2_vl": {
        "text_config": {**TEXT, "hidden_size": 128, "num_attention_heads": 8, "num_hidden_layers": 5, "full_attn_idxs": [2, 4], "conv_bias": True},
        "vision_config": {**VISION, "num_patches": 25, "patch_size": 8, "num_channels": 1, "vision_use_head": False},
    },
}  # fmt: skip
MORE: list[tuple[str, dict[str, Any]]] = [
    ("internvl", {
        "text_config": {**TEXT, "model_type": "qwen3", "head_dim": 24}, "tie_word_embeddings": False, "downsample_ratio": 0.25,
        "vision_config": {**VISION, "use_qk_norm": True, "norm_type": "rms_norm", "attention_bias": True, "use_mask_token": True,
                          "use_mean_pooling": False, "image_size": [56, 28]},
    }),
    ("internvl", {"text_config": TEXT, "vision_config": {**VISION, "use_absolute_position_embeddings": False}}),
    ("paligemma", {**SMALL["paligemma"], "text_config": {**PALIGEMMA, "model_type": "gemma2"}, "tie_word_embeddings": False}),
    ("llava_next", {
        **SMALL["llava_next"], "vision_feature_layer": [-2, -1], "multimodal_projector_bias": False, "tie_word_embeddings": True,
        "text_config": {**TEXT, "model_type": "mistral"},
    }),
    ("llava_onevision", {**SMALL["llava_onevision"], "text_config": {**TEXT, "tie_word_embeddings": True}}),
    ("lfm2_vl", {
        **SMALL["lfm2_vl"], "downsample_factor": 3, "projector_hidden_size": 77, "projector_bias": False, "projector_use_layernorm": False,
        "tie_word_embeddings": False,
    }),
    *((name, {}) for name in CLASSES),
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_names_counts_shapes_and_modules(name):
    assert_same_model(CLASSES[name], {"model_type": name, **SMALL[name]})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config"), MORE)
def test_names_counts_shapes_and_modules_full(name, config):
    assert_same_model(CLASSES[name], {"model_type": name, **config})


def test_the_largest_picture_is_what_the_processor_makes_of_it():
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

    config = {"model_type": "llava_next"}
    picture = read_hf_config(config).towers[0].largest
    own = LlavaNextProcessor.__new__(LlavaNextProcessor)
    own.patch_size, own.num_additional_image_tokens = 14, 1

    sizes = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    own.image_processor = SimpleNamespace(image_grid_pinpoints=sizes)
    real = max(own._get_number_of_features(*size, 336, 336) for size in sizes)
    assert picture.places == real - 1  # `default` leaves the class token out
    assert picture.pixels == 3 * 5 * 336 * 336  # four tiles, and all of it in one


@pytest.mark.parametrize(
    ("name", "tokens"), [("idefics3", 49 // 4), ("internvl", 256), ("paligemma", 256), ("llava_next", 576)]
)
def test_tokens_of_a_tile(name, tokens):
    assert read_hf_config({"model_type": name}).towers[0].tokens_per_image == tokens


@pytest.mark.parametrize(("config", "field"), [
    ({"model_type": "internvl", "downsample_ratio": 0}, "downsample_ratio"),
    ({"model_type": "internvl", "vision_config": {"norm_type": "batch_norm"}}, "vision_config.norm_type"),
    ({"model_type": "paligemma", "projection_dim": 3}, "projection_dim"),
    ({"model_type": "llava_next", "image_grid_pinpoints": [[336]]}, "image_grid_pinpoints"),
    ({"model_type": "idefics3", "vision_config": {"model_type": "sam"}}, "vision_config.model_type"),
])  # fmt: skip
def test_refusals_name_the_field(config, field):
    with pytest.raises(InputError) as refusal:
        read_hf_config(config)
    assert any(problem.field == field for problem in refusal.value.problems), str(refusal.value)
