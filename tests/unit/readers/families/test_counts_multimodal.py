"""Parameters of multimodal, encoder and encoder-decoder models: every name and every count as in the real
model on the meta device.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.readers.hf_config import read_hf_config
from oracle import assert_same_model

SIGLIP = {
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "image_size": 56,
    "patch_size": 14,
}
CLIP = {**SIGLIP, "model_type": "clip_vision_model", "projection_dim": 64}
PIXTRAL = {**SIGLIP, "model_type": "pixtral", "num_channels": 1}
LLAMA = {
    "model_type": "llama", "hidden_size": 120, "intermediate_size": 312, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 1003,
}  # fmt: skip
GEMMA_27B = {  # what google/gemma-3-27b-it's config.json holds, with fewer layers
    "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 16,
    "head_dim": 128, "query_pre_attn_scalar": 168, "sliding_window": 1024, "model_type": "gemma3_text",
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}  # fmt: skip
GEMMA_27B_VISION = {
    "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model", "num_attention_heads": 16,
    "num_hidden_layers": 2, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
QWEN_TEXT = {
    "hidden_size": 96, "intermediate_size": 250, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3,
    "vocab_size": 777,
}  # fmt: skip
QWEN2_5_7B = {  # the flat form of the released files, with fewer layers
    "model_type": "qwen2_5_vl", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 2, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": 32768,
    "max_window_layers": 28, "vision_config": {
        "depth": 9, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "in_chans": 3,
        "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip
MLLAMA_TEXT = {
    "hidden_size": 128, "intermediate_size": 300, "num_hidden_layers": 7, "num_attention_heads": 8, "num_key_value_heads": 2,
    "vocab_size": 501, "pad_token_id": 0, "cross_attention_layers": [1, 4, 6],
}  # fmt: skip
MLLAMA_VISION = {
    "hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 4, "num_global_layers": 2, "attention_heads": 4, "image_size": 56,
    "intermediate_layers_indices": [0, 2], "vision_output_dim": 192, "max_num_tiles": 2, "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
}  # fmt: skip
LLAMA4_TEXT = {
    "hidden_size": 96, "intermediate_size": 120, "intermediate_size_mlp": 260, "num_hidden_layers": 7, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 24, "num_local_experts": 5, "interleave_moe_layer_step": 2, "vocab_size": 499,
}  # fmt: skip
LLAMA4_VISION = {
    "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 56, "patch_size": 14,
    "projector_input_dim": 48, "projector_output_dim": 80, "vision_output_dim": 80, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}  # fmt: skip
BERT = {
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 130,
    "vocab_size": 401,
    "max_position_embeddings": 70,
}
T5 = {"d_model": 72, "d_kv": 20, "d_ff": 100, "num_layers": 3, "num_heads": 5, "vocab_size": 333}
VIT = {"hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 5, "intermediate_size": 100}
FOUR_LABELS = {"id2label": {"0": "a", "1": "b", "2": "c", "3": "d"}}

# model class, config; what a config leaves out is the default of the family's configuration class
CHEAP: list[tuple[str, dict[str, Any]]] = [
    ("Gemma3ForConditionalGeneration", {"model_type": "gemma3", "text_config": GEMMA_27B, "vision_config": GEMMA_27B_VISION}),
    ("LlavaForConditionalGeneration", {"model_type": "llava", "text_config": LLAMA, "vision_config": CLIP}),
    ("MllamaForConditionalGeneration", {"model_type": "mllama", "text_config": MLLAMA_TEXT, "vision_config": MLLAMA_VISION}),
    ("Qwen2_5_VLForConditionalGeneration", QWEN2_5_7B),
    ("Llama4ForConditionalGeneration", {"model_type": "llama4", "text_config": LLAMA4_TEXT, "vision_config": LLAMA4_VISION}),
    ("BertForMaskedLM", {"model_type": "bert", "num_hidden_layers": 2}),
    ("T5ForConditionalGeneration", {"model_type": "t5", **T5}),
    ("ViTForImageClassification", {"model_type": "vit", **VIT, **FOUR_LABELS}),
]  # fmt: skip

FULL: list[tuple[str, dict[str, Any]]] = [
    ("Gemma3ForConditionalGeneration", {"model_type": "gemma3", "text_config": {"num_hidden_layers": 2}}),
    ("Gemma3ForConditionalGeneration", {"model_type": "gemma3"}),
    ("Gemma3ForConditionalGeneration", {
        "model_type": "gemma3", "tie_word_embeddings": False, "vision_config": SIGLIP, "mm_tokens_per_image": 16,
        "text_config": {"hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 3,
                        "head_dim": 40, "vocab_size": 777, "attention_bias": True, "sliding_window_pattern": 3},
    }),
    ("Gemma3ForConditionalGeneration", {"model_type": "gemma3", "tie_word_embeddings": None, "vision_config": SIGLIP}),
    ("LlavaForConditionalGeneration", {"model_type": "llava"}),
    ("LlavaForConditionalGeneration", {  # what llava-hf/llava-1.5-7b-hf's config.json holds
        "model_type": "llava", "ignore_index": -100, "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
        "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "vocab_size": 32064},
        "vision_config": {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
                          "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768, "vocab_size": 32000},
    }),
    ("LlavaForConditionalGeneration", {
        "model_type": "llava", "text_config": {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}, "vision_config": PIXTRAL,
        "multimodal_projector_bias": False,
    }),
    ("LlavaForConditionalGeneration", {
        "model_type": "llava", "text_config": {**LLAMA, "model_type": "mistral"}, "vision_feature_layer": [-2, -1], "tie_word_embeddings": True,
        "vision_config": {**SIGLIP, "model_type": "siglip_vision_model"},
    }),
    ("LlavaForConditionalGeneration", {"model_type": "llava", "text_config": {**LLAMA, "model_type": "mixtral", "num_local_experts": 3}, "vision_config": {"model_type": "clip_vision_model"}}),
    ("LlavaForConditionalGeneration", {"model_type": "llava", "vision_config": CLIP, "text_config": {
        "model_type": "gemma2", "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 500}}),
    ("Mistral3ForConditionalGeneration", {"model_type": "mistral3"}),
    ("Mistral3ForConditionalGeneration", {"model_type": "mistral3", "text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 2}}),
    ("Mistral3ForConditionalGeneration", {
        "model_type": "mistral3", "text_config": {**LLAMA, "model_type": "mistral", "head_dim": 24}, "vision_config": PIXTRAL, "spatial_merge_size": 3,
        "tie_word_embeddings": False, "multimodal_projector_bias": True, "vision_feature_layer": [-1, -2, -3],
    }),
    ("MllamaForConditionalGeneration", {"model_type": "mllama"}),
    ("MllamaForConditionalGeneration", {"model_type": "mllama", "text_config": {"num_hidden_layers": 4, "tie_word_embeddings": True}, "vision_config": {"image_size": 560, "num_hidden_layers": 3, "intermediate_layers_indices": [1]}}),
    ("Qwen2VLForConditionalGeneration", {"model_type": "qwen2_vl"}),
    ("Qwen2VLForConditionalGeneration", {  # flat, as Qwen/Qwen2-VL-2B-Instruct
        "model_type": "qwen2_vl", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
        "vision_config": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3, "hidden_size": 1536, "patch_size": 14},
    }),
    ("Qwen2VLForConditionalGeneration", {
        "model_type": "qwen2_vl", "text_config": {**QWEN_TEXT, "tie_word_embeddings": True},
        "vision_config": {"depth": 3, "embed_dim": 80, "hidden_size": 96, "num_heads": 5, "mlp_ratio": 3, "patch_size": 12, "spatial_merge_size": 3},
    }),
    ("Qwen2_5_VLForConditionalGeneration", {"model_type": "qwen2_5_vl", "text_config": {"num_hidden_layers": 2}, "vision_config": {"depth": 2}}),
    ("Qwen2_5_VLForConditionalGeneration", {
        "model_type": "qwen2_5_vl", "text_config": {**QWEN_TEXT, "head_dim": 48, "use_sliding_window": True, "max_window_layers": 1},
        "tie_word_embeddings": True, "vision_config": {"depth": 5, "hidden_size": 80, "out_hidden_size": 96, "num_heads": 5, "intermediate_size": 90,
                                                       "fullatt_block_indexes": [1, 3], "temporal_patch_size": 1, "in_channels": 1},
    }),
    ("Llama4ForConditionalGeneration", {"model_type": "llama4"}),
    ("Llama4ForConditionalGeneration", {"model_type": "llama4", "text_config": {**LLAMA4_TEXT, "tie_word_embeddings": True, "attention_bias": True}, "vision_config": LLAMA4_VISION}),
    ("Llama4ForCausalLM", {"model_type": "llama4_text", "num_hidden_layers": 5, "interleave_moe_layer_step": 2}),
    ("Llama4ForCausalLM", {"model_type": "llama4_text", **LLAMA4_TEXT, "moe_layers": [0, 5], "no_rope_layers": [1, 0, 1, 1, 0, 1, 1], "use_qk_norm": False}),
    *((name, {"model_type": "bert", **BERT, **FOUR_LABELS, "architectures": [name]}) for name in (
        "BertModel", "BertForMaskedLM", "BertForPreTraining", "BertLMHeadModel", "BertForNextSentencePrediction",
        "BertForSequenceClassification", "BertForMultipleChoice", "BertForTokenClassification", "BertForQuestionAnswering",
    )),
    ("BertForMaskedLM", {"model_type": "bert", **BERT, "tie_word_embeddings": False, "type_vocab_size": 3}),
    ("BertLMHeadModel", {"model_type": "bert", **BERT, "is_decoder": True, "add_cross_attention": True, "architectures": ["BertLMHeadModel"]}),
    ("BertForSequenceClassification", {"model_type": "bert", "num_labels": 7, "architectures": ["BertForSequenceClassification"]}),
    ("RobertaForMaskedLM", {"model_type": "roberta", "max_position_embeddings": 514, "type_vocab_size": 1}),
    *((name, {"model_type": "roberta", **BERT, **FOUR_LABELS, "architectures": [name]}) for name in (
        "RobertaModel", "RobertaForMaskedLM", "RobertaForCausalLM", "RobertaForSequenceClassification", "RobertaForMultipleChoice",
        "RobertaForTokenClassification", "RobertaForQuestionAnswering",
    )),
    ("RobertaForMaskedLM", {"model_type": "roberta", **BERT, "tie_word_embeddings": False}),
    *((name, {"model_type": "xlm-roberta", **BERT, **FOUR_LABELS, "architectures": [name]}) for name in (
        "XLMRobertaModel", "XLMRobertaForSequenceClassification", "XLMRobertaForTokenClassification",
    )),
    ("XLMRobertaForMaskedLM", {"model_type": "xlm-roberta", "tie_word_embeddings": False}),
    ("T5ForConditionalGeneration", {"model_type": "t5"}),
    ("T5ForConditionalGeneration", {"model_type": "t5", **T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 5, "relative_attention_num_buckets": 20}),
    *((name, {"model_type": "t5", **T5, **FOUR_LABELS, "architectures": [name]}) for name in (
        "T5Model", "T5EncoderModel", "T5ForSequenceClassification", "T5ForTokenClassification", "T5ForQuestionAnswering",
    )),
    ("MT5ForConditionalGeneration", {"model_type": "mt5"}),
    ("MT5ForConditionalGeneration", {"model_type": "mt5", **T5, "feed_forward_proj": "relu", "tie_word_embeddings": False}),
    *((name, {"model_type": "mt5", **T5, "architectures": [name]}) for name in (
        "MT5Model", "MT5EncoderModel", "MT5ForSequenceClassification", "MT5ForTokenClassification", "MT5ForQuestionAnswering",
    )),
    ("ViTForImageClassification", {"model_type": "vit"}),
    ("ViTModel", {"model_type": "vit", **VIT, "architectures": ["ViTModel"], "pooler_output_size": 44, "image_size": [64, 48], "patch_size": [8, 16], "qkv_bias": False}),
    ("ViTForMaskedImageModeling", {"model_type": "vit", **VIT, "architectures": ["ViTForMaskedImageModeling"], "encoder_stride": 4, "num_channels": 1}),
    ("ViTForImageClassification", {"model_type": "vit", **VIT, "id2label": {}}),
]  # fmt: skip


def _label(case: tuple[str, dict[str, Any]]) -> str:
    return case[0]


@pytest.mark.parametrize("case", CHEAP, ids=_label)
def test_names_counts_shapes_and_modules(case):
    assert_same_model(*case)


@pytest.mark.slow
@pytest.mark.parametrize("case", FULL, ids=_label)
def test_names_counts_shapes_and_modules_full(case):
    assert_same_model(*case)


@pytest.mark.parametrize(("config", "parameters"), [
    ({"model_type": "bert"}, 109_514_298),  # google-bert/bert-base-uncased, masked LM
    ({"model_type": "t5"}, 60_506_624),  # google-t5/t5-small
    ({"model_type": "vit", "num_labels": 1000}, 86_567_656),  # google/vit-base-patch16-224
    ({"model_type": "mllama", "vision_config": {"image_size": 560}}, 10_670_220_835),  # meta-llama/Llama-3.2-11B-Vision
    ({**QWEN2_5_7B, "num_hidden_layers": 28, "vision_config": {**QWEN2_5_7B["vision_config"], "depth": 32}}, 8_292_166_656),  # Qwen2.5-VL-7B
])  # fmt: skip
def test_released_models(config, parameters):
    assert parameter_count(read_hf_config(config)) == parameters


def test_tokens_of_one_image():
    tokens = {
        name: [tower.tokens_per_image for tower in read_hf_config(config).towers]
        for name, config in {
            "gemma3": {"model_type": "gemma3"},
            "llava": {"model_type": "llava"},
            "qwen2_vl": {"model_type": "qwen2_vl"},
            "full": {"model_type": "llava", "vision_feature_select_strategy": "full"},
            "mllama": {"model_type": "mllama", "vision_config": {"image_size": 560}},
        }.items()
    }
    assert tokens == {
        "gemma3": [256],
        "llava": [576],
        "qwen2_vl": [None],
        "full": [577],
        "mllama": [None, 4 * 1601],
    }


def test_windows_of_the_vision_tower():
    blocks = [
        block for run in read_hf_config(QWEN2_5_7B).towers[0].stack.runs for block in run.pattern * run.count
    ]
    assert [block.mixers[0].chunk for block in blocks] == [64] * 7 + [None] + [64]


def test_chunked_and_full_layers_of_llama4():
    stack = read_hf_config({"model_type": "llama4_text", "num_hidden_layers": 5}).stacks[0]
    mixers = [block.mixers[0] for run in stack.runs for block in run.pattern * run.count]
    assert [(mixer.chunk, mixer.rotary_dim, mixer.qk_norm is None) for mixer in mixers] == [
        *[(8192, 128, False)] * 3,
        (None, 0, True),
        (8192, 128, False),
    ]


@pytest.mark.parametrize(("config", "field"), [
    ({"model_type": "bert", "architectures": ["BertForPoetry"]}, "architectures"),
    ({"model_type": "bert", "num_attention_heads": 7}, "hidden_size"),
    ({"model_type": "vit", "id2label": ["a"]}, "id2label"),
    ({"model_type": "vit", "image_size": [1, 2, 3]}, "image_size"),
    ({"model_type": "vit", "patch_size": 1000}, "patch_size"),
    ({"model_type": "t5", "feed_forward_proj": "open-gelu"}, "feed_forward_proj"),
    ({"model_type": "llava", "text_config": {"model_type": "llava"}}, "text_config.model_type"),
    ({"model_type": "llava", "text_config": {"model_type": "gpt2"}}, "text_config.model_type"),
    ({"model_type": "llava", "text_config": {"hidden_size": True}}, "text_config.hidden_size"),
    ({"model_type": "llava", "text_config": 3}, "text_config"),
    ({"model_type": "llava", "vision_config": {"model_type": "sam"}}, "vision_config.model_type"),
    ({"model_type": "llava", "vision_feature_layer": "last"}, "vision_feature_layer"),
    ({"model_type": "mllama", "vision_config": {"supported_aspect_ratios": 3}}, "vision_config.supported_aspect_ratios"),
    ({"model_type": "llama4_text", "no_rope_layers": [1, 0]}, "no_rope_layers"),
    ({"model_type": "gemma3", "vision_config": {"num_attention_heads": 5}}, "vision_config.hidden_size"),
])  # fmt: skip
def test_refusals_name_the_field(config, field):
    with pytest.raises(InputError) as refusal:
        read_hf_config(config)
    assert any(problem.field == field for problem in refusal.value.problems), str(refusal.value)
