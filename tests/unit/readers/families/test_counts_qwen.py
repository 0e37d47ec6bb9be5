"""Parameters of Qwen3-VL and Qwen3.5 as they see, and what servers keep of them: every name and every count
as in the real model on the meta device.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from memsheet import infer
from memsheet.formulas.serving.sparse_index import served_bytes_per_token
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.dtypes import BF16
from memsheet.readers.hf_config import read_hf_config
from memsheet.sheet import Component, Instant
from oracle import assert_same_tensors

TEXT: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 250, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 3,
    "head_dim": 20, "vocab_size": 777,
}  # fmt: skip
ROUTED = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 44,
}
VISION: dict[str, Any] = {
    "depth": 3, "hidden_size": 80, "num_heads": 5, "intermediate_size": 90, "out_hidden_size": 96, "patch_size": 12, "spatial_merge_size": 3,
    "temporal_patch_size": 1, "in_channels": 1, "num_position_embeddings": 49,
}  # fmt: skip
CLASSES = {
    "qwen3_5": "Qwen3_5",
    "qwen3_5_moe": "Qwen3_5Moe",
    "qwen3_vl": "Qwen3VL",
    "qwen3_vl_moe": "Qwen3VLMoe",
}
DEFAULT_PARAMETERS = {
    "qwen3_5": 9_407_453_936, "qwen3_5_moe": 35_114_261_360, "qwen3_vl": 12_616_410_352, "qwen3_vl_moe": 14_052_070_640,
}  # fmt: skip
QWEN3_5_27B: dict[str, Any] = {  # what Qwen/Qwen3.5-27B's config.json holds
    "model_type": "qwen3_5", "tie_word_embeddings": False, "dtype": "bfloat16",
    "text_config": {
        "full_attention_interval": 4, "head_dim": 256, "hidden_size": 5120, "intermediate_size": 17408, "linear_num_value_heads": 48,
        "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1, "num_attention_heads": 24, "num_hidden_layers": 64,
        "num_key_value_heads": 4, "vocab_size": 248320, "mamba_ssm_dtype": "float32",
    },
    "vision_config": {"out_hidden_size": 5120, "deepstack_visual_indexes": []},
}  # fmt: skip


def _tiny(kind: str, text: dict[str, Any], vision: dict[str, Any], **top: Any) -> dict[str, Any]:
    routed = ROUTED if kind.endswith("_moe") else {}
    return {
        "model_type": kind,
        "text_config": {**TEXT, **routed, **text},
        "vision_config": {**VISION, **vision},
        **top,
    }


PERTURBED = [
    ({}, {}, {}),
    ({"attention_bias": True}, {"deepstack_visual_indexes": [0, 2]}, {"tie_word_embeddings": True}),
    (
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "decoder_sparse_step": 2,
            "layer_types": ["full_attention", "linear_attention"] * 3,
        },
        {"patch_size": 8, "hidden_act": "gelu"},
        {},
    ),
]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(("text", "vision", "top"), PERTURBED)
def test_names_and_counts(
    kind: str, text: dict[str, Any], vision: dict[str, Any], top: dict[str, Any]
) -> None:
    assert_same_tensors(_tiny(kind, text, vision, **top), f"{CLASSES[kind]}ForConditionalGeneration")


@pytest.mark.parametrize("kind", CLASSES)
def test_defaults_are_those_of_the_configuration_class(kind: str) -> None:
    assert parameter_count(read_hf_config({"model_type": kind})) == DEFAULT_PARAMETERS[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES)
def test_default_names_and_counts(kind: str) -> None:
    assert_same_tensors({"model_type": kind}, f"{CLASSES[kind]}ForConditionalGeneration")


def test_a_token_of_qwen3_5_takes_room_in_every_fourth_layer() -> None:
    model = read_hf_config(QWEN3_5_27B)
    assert served_bytes_per_token(model, BF16) == 16 * 2 * 4 * 256 * 2
    assert model.ahead == 1


def test_vllm_sizes_pages_of_qwen3_5_by_a_state_in_the_dtype_that_the_config_names() -> None:
    """48 value heads of 128 x 128, and three inputs of a convolution over 10,240 channels in bf16; a block is
    a multiple of 64 tokens, after which its kernels hand states out.
    """
    pages = {}
    for name, width in (("float32", 4), ("bfloat16", 2)):
        text = {**QWEN3_5_27B["text_config"], "mamba_ssm_dtype": name}
        answer = infer({**QWEN3_5_27B, "text_config": text}, gpus="1xH200", engine="vllm", max_model_len=8192)
        assert answer.serving is not None
        pages[name] = answer.serving["page_tokens"]
        state = 48 * 128 * 128 * width + 3 * 10240 * 2
        assert pages[name] == -(-state // 4096 // 64) * 64
    assert pages["float32"] > pages["bfloat16"]


def test_vllm_loads_the_layer_for_further_tokens_where_it_drafts_and_not_else() -> None:
    """A layer of gated attention, a matrix of two widths, three norms."""
    asked: dict[str, Any] = {"gpus": "1xH200", "engine": "vllm", "max_model_len": 8192}
    plain = infer(QWEN3_5_27B, **asked).sheets[0]
    drafting = infer(QWEN3_5_27B, speculative="mtp", **asked).sheets[0]
    attention = 5120 * (2 * 24 + 2 * 4 + 24) * 256 + 2 * 256
    layer = attention + 3 * 5120 * 17408 + 2 * 5120
    more = drafting.of(Component.PARAMETERS, instant=Instant.LOAD).value
    more -= plain.of(Component.PARAMETERS, instant=Instant.LOAD).value
    assert more == 2 * (layer + 2 * 5120 * 5120 + 3 * 5120)


def test_vllm_holds_a_buffer_for_each_layer_of_the_tower_that_hands_over() -> None:
    config = {"model_type": "qwen3_vl", "dtype": "bfloat16"}
    asked: dict[str, Any] = {"gpus": "1xH200", "engine": "vllm", "max_model_len": 8192}
    answer = infer(config, max_batched_tokens=4096, **asked)
    (item,) = (item for item in answer.sheets[0].items if item.path == "deepstack_input_embeds")
    assert item.at[Instant.LOAD].value == 3 * 4096 * 4096 * 2
