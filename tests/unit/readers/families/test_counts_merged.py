"""Parameters of models whose towers merge patches of pictures of any size: every name, shape and count as in
the real model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from memsheet import infer
from memsheet.errors import InputError
from memsheet.formulas.serving.kv_cache import bytes_per_token
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.dtypes import BF16
from memsheet.plan.model import Moe
from memsheet.readers.hf_config import read_hf_config
from oracle import assert_same_model

EXAONE, ERNIE = "Exaone4_5_ForConditionalGeneration", "Ernie4_5_VLMoeForConditionalGeneration"
DENSE = {
    "model_type": "exaone4", "hidden_size": 120, "intermediate_size": 200, "num_hidden_layers": 5, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 501,
}  # fmt: skip
GROUPED = {
    "depth": 5, "hidden_size": 96, "out_hidden_size": 120, "num_heads": 6, "num_key_value_heads": 3, "intermediate_size": 90,
    "fullatt_block_indexes": [1, 3], "temporal_patch_size": 1, "in_channels": 1,
}  # fmt: skip
ROUTED = {
    "hidden_size": 120, "intermediate_size": 200, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 128, "vocab_size": 501, "moe_intermediate_size": [48, 24], "moe_num_experts": 6, "moe_k": 2, "moe_num_shared_experts": 1,
}  # fmt: skip
MERGED = {
    "hidden_size": 160, "intermediate_size": 130, "depth": 3, "num_heads": 4, "patch_size": 8, "in_channels": 1, "spatial_merge_size": 3,
    "temporal_merge_size": 1,
}  # fmt: skip
GLM, GLM_ROUTED = "Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"
GLM_TEXT = {
    "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 501,
}  # fmt: skip
GLM_EXPERTS = {
    **GLM_TEXT, "moe_intermediate_size": 40, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "head_dim": 24,
}  # fmt: skip
GLM_TOWER = {
    "depth": 3, "hidden_size": 72, "num_heads": 6, "out_hidden_size": 96, "intermediate_size": 130, "patch_size": 8, "image_size": 64,
    "attention_bias": True, "spatial_merge_size": 3,
}  # fmt: skip
OMNI = "Qwen3OmniMoeThinkerForConditionalGeneration"
THINKER = {
    "model_type": "qwen3_omni_moe_thinker",
    "text_config": {
        "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
        "vocab_size": 501, "moe_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 2, "mlp_only_layers": [1],
    },
    "vision_config": {
        "depth": 4, "hidden_size": 72, "num_heads": 6, "out_hidden_size": 96, "intermediate_size": 130, "patch_size": 8,
        "deepstack_visual_indexes": [0, 2], "num_position_embeddings": 36,
    },
    "audio_config": {
        "d_model": 48, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 70, "num_mel_bins": 21, "output_dim": 96,
        "downsample_hidden_size": 10,
    },
}  # fmt: skip
OMNI_DENSE = "Qwen2_5OmniThinkerForConditionalGeneration"
THINKER_DENSE = {
    "model_type": "qwen2_5_omni_thinker",
    "text_config": {
        "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
        "vocab_size": 501,
    },
    "vision_config": {
        "depth": 4, "hidden_size": 72, "num_heads": 6, "out_hidden_size": 96, "intermediate_size": 130, "patch_size": 8,
        "fullatt_block_indexes": [1, 3], "window_size": 32,
    },
    "audio_config": {
        "d_model": 48, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 70, "num_mel_bins": 21, "output_dim": 96,
    },
}  # fmt: skip
SPEAKING = {"qwen3_omni_moe": THINKER, "qwen2_5_omni": THINKER_DENSE}
CHEAP: list[tuple[str, dict[str, Any]]] = [
    (EXAONE, {"model_type": "exaone4_5", "text_config": DENSE, "vision_config": GROUPED}),
    (ERNIE, {"model_type": "ernie4_5_vl_moe", "text_config": ROUTED, "vision_config": MERGED}),
    (GLM, {"model_type": "glm4v", "text_config": GLM_TEXT, "vision_config": GLM_TOWER}),
    (GLM_ROUTED, {"model_type": "glm4v_moe", "text_config": GLM_EXPERTS, "vision_config": GLM_TOWER}),
    (OMNI, THINKER),
    (OMNI_DENSE, THINKER_DENSE),
]
FULL: list[tuple[str, dict[str, Any]]] = [
    (EXAONE, {"model_type": "exaone4_5"}),
    (EXAONE, {"model_type": "exaone4_5", "text_config": {**DENSE, "model_type": "exaone4_5_text"}, "tie_word_embeddings": True}),
    (ERNIE, {"model_type": "ernie4_5_vl_moe"}),
    (OMNI, {"model_type": "qwen3_omni_moe_thinker"}),
    (OMNI_DENSE, {"model_type": "qwen2_5_omni_thinker"}),
    (OMNI_DENSE, {**THINKER_DENSE, "tie_word_embeddings": True}),
    (OMNI, {**THINKER, "text_config": {**THINKER["text_config"], "attention_bias": True, "head_dim": 24}}),
    (GLM, {"model_type": "glm4v"}),
    (GLM, {"model_type": "glm4v", "tie_word_embeddings": True, "text_config": {**GLM_TEXT, "attention_bias": False}}),
    (GLM_ROUTED, {"model_type": "glm4v_moe"}),
    (GLM_ROUTED, {"model_type": "glm4v_moe", "text_config": {**GLM_EXPERTS, "use_qk_norm": True, "attention_bias": False}}),
    (ERNIE, {
        "model_type": "ernie4_5_vl_moe", "tie_word_embeddings": False, "vision_config": MERGED,
        "text_config": {**ROUTED, "use_bias": True, "moe_num_shared_experts": 3, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]},
    }),
]  # fmt: skip


@pytest.mark.parametrize("case", CHEAP, ids=lambda case: case[0])
def test_names_counts_shapes_and_modules(case):
    assert_same_model(*case)


@pytest.mark.slow
@pytest.mark.parametrize("case", FULL, ids=lambda case: case[0])
def test_names_counts_shapes_and_modules_full(case):
    assert_same_model(*case)


def test_a_token_of_ernie_is_kept_once_for_both_kinds_of_experts():
    spec = read_hf_config(CHEAP[1][1])
    assert bytes_per_token(spec, BF16) == 4 * 2 * 2 * 128 * 2
    experts = [block.feed_forward for block in spec.blocks() if isinstance(block.feed_forward, Moe)]
    widths = {weight.shape[-1] for moe in experts for weight in moe.routed if "down_proj" in weight.path}
    assert widths == {48, 24}


@pytest.mark.parametrize(("config", "field"), [
    ({"model_type": "ernie4_5_vl_moe", "text_config": {"moe_intermediate_size": [3]}}, "text_config.moe_intermediate_size"),
    ({"model_type": "ernie4_5_vl_moe", "text_config": {"mlp_layer_types": ["dense"]}}, "text_config.mlp_layer_types"),
    ({"model_type": "ernie4_5_vl_moe", "text_config": {"moe_k": 65}}, "text_config.moe_k"),
    ({"model_type": "exaone4_5", "vision_config": {"num_key_value_heads": 3}}, "vision_config.num_heads"),
])  # fmt: skip
def test_refusals_name_the_field(config, field):
    with pytest.raises(InputError) as refusal:
        read_hf_config(config)
    assert any(problem.field == field for problem in refusal.value.problems), str(refusal.value)


@pytest.mark.parametrize("kind", sorted(SPEAKING))
def test_of_a_model_that_speaks_the_thinker_is_read_and_that_is_said(kind):
    whole = read_hf_config({"model_type": kind, "thinker_config": SPEAKING[kind]})
    alone = read_hf_config(SPEAKING[kind])
    assert parameter_count(whole) == parameter_count(alone)
    assert bytes_per_token(whole, BF16) == bytes_per_token(alone, BF16) == 3 * 2 * 2 * 16 * 2
    assert any("thinker" in note for note in whole.source.notes)
    with pytest.raises(InputError, match="the thinker alone is read"):
        infer({"model_type": kind, "thinker_config": SPEAKING[kind]}, engine="transformers", max_model_len=64)


@pytest.mark.parametrize("case", [(GLM, GLM_TEXT, "glm4v"), (GLM_ROUTED, GLM_EXPERTS, "glm4v_moe")], ids=str)
def test_a_token_of_glm_beside_a_tower_is_kept_in_heads(case):
    _, text, kind = case
    spec = read_hf_config({"model_type": kind, "text_config": text, "vision_config": GLM_TOWER})
    width = text.get("head_dim", text["hidden_size"] // text["num_attention_heads"])
    assert bytes_per_token(spec, BF16) == 3 * 2 * 2 * width * 2
