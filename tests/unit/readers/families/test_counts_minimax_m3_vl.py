"""MiniMax-M3 with its tower: names and shapes as in the real model, and the cache and weights that servers'
own code holds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from memsheet import infer
from memsheet.formulas.states.params import parameter_count
from memsheet.readers.hf_config import read_hf_config
from memsheet.sheet import Component, Instant
from oracle import assert_same_model

WHOLE = "MiniMaxM3SparseForConditionalGeneration"
TEXT: dict[str, Any] = {
    "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 1000, "head_dim": 20,
    "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 14, "rotary_dim": 10, "shared_intermediate_size": 18,
    "dense_intermediate_size": 40, "moe_layer_freq": [0, 1, 1],
    "sparse_attention_config": {"sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_attention_freq": [0, 1, 1]},
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 60, "intermediate_size": 70, "num_hidden_layers": 3, "num_attention_heads": 5, "patch_size": 4, "temporal_patch_size": 3,
    "spatial_merge_size": 3, "num_channels": 2,
}  # fmt: skip


@pytest.mark.parametrize("more", [{"projector_hidden_size": 50}, {"tie_word_embeddings": True}])
def test_names_and_shapes(more: dict[str, Any]) -> None:
    assert_same_model(
        WHOLE, {"model_type": "minimax_m3_vl", "text_config": TEXT, "vision_config": VISION, **more}
    )


@pytest.mark.parametrize("here", [True, False])
def test_the_words_are_tied_where_either_config_says_so(here: bool) -> None:
    config = {"model_type": "minimax_m3_vl", "vision_config": VISION, "tie_word_embeddings": here}
    assert_same_model(WHOLE, {**config, "text_config": {**TEXT, "tie_word_embeddings": not here}})


@pytest.mark.slow
def test_default_names_and_shapes() -> None:
    assert_same_model(WHOLE, {"model_type": "minimax_m3_vl", "text_config": {"num_hidden_layers": 2}})


def test_defaults_are_those_of_the_configuration_class() -> None:
    small = {"model_type": "minimax_m3_vl", "text_config": {"num_hidden_layers": 2}}
    assert parameter_count(read_hf_config(small)) == 18_148_228_096


def test_the_tower_adds_weights_and_nothing_to_the_cache() -> None:
    """vLLM cuts heads, feed-forward and projectors (vision_tower.py:101-213, 543-599), no norms."""
    text = {"num_hidden_layers": 2, "dtype": "bfloat16"}
    asked: dict[str, Any] = {"gpus": "4xH200", "tp": 4, "engine": "vllm", "max_model_len": 4096}
    whole = infer({"model_type": "minimax_m3_vl", "text_config": text, "dtype": "bfloat16"}, **asked)
    alone = infer({"model_type": "minimax_m3_vl_text", **text}, **asked)
    assert whole.serving is not None
    assert alone.serving is not None
    assert whole.serving["kv_bytes_per_token"] == alone.serving["kv_bytes_per_token"]
    sizes = [one.sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD).value for one in (whole, alone)]
    own, wide, hidden = 1280, 5120, 6144
    layer = (4 * own * own + 2 * own * wide) // 4 + (3 * own + wide) // 4 + 2 * own + 4 * own
    joined = (own + hidden + 4 * hidden + hidden) * hidden // 4 + 2 * hidden // 4 + 2 * hidden
    assert sizes[0] - sizes[1] == 2 * (32 * layer + own * 3 * 2 * 14 * 14 + 2 * own + joined)
