"""Parameters of models whose towers merge patches of pictures of any size: every name, shape and count as in
the real model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from memsheet.errors import InputError
from memsheet.formulas.serving.kv_cache import bytes_per_token
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
CHEAP: list[tuple[str, dict[str, Any]]] = [
    (EXAONE, {"model_type": "exaone4_5", "text_config": DENSE, "vision_config": GROUPED}),
    (ERNIE, {"model_type": "ernie4_5_vl_moe", "text_config": ROUTED, "vision_config": MERGED}),
]
FULL: list[tuple[str, dict[str, Any]]] = [
    (EXAONE, {"model_type": "exaone4_5"}),
    (EXAONE, {"model_type": "exaone4_5", "text_config": {**DENSE, "model_type": "exaone4_5_text"}, "tie_word_embeddings": True}),
    (ERNIE, {"model_type": "ernie4_5_vl_moe"}),
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
