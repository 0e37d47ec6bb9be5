"""Models with a vision tower, trained on text alone: against the library's real code, traced once
(transformers 5.23, torch 2.13, fake CUDA tensors), and what a batch with pictures would add.
"""

from typing import Any

import pytest

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count, tower_tensors
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

TEXT: dict[str, Any] = {
    "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4000,
    "intermediate_size": 1408, "max_position_embeddings": 4096,
}  # fmt: skip
TOWER: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": 112, "patch_size": 14,
}  # fmt: skip
QWEN3_TEXT: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 64, "vocab_size": 4096,
}  # fmt: skip
QWEN3_ROUTED = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
QWEN3_TOWER: dict[str, Any] = {
    "depth": 2, "hidden_size": 128, "num_heads": 4, "intermediate_size": 256, "out_hidden_size": 512, "num_position_embeddings": 64,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llava": {"text_config": {**TEXT, "model_type": "llama"}, "vision_config": {**TOWER, "model_type": "clip_vision_model"}},
    "gemma3": {
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4000, "sliding_window": 1024,
        },
        "vision_config": {**TOWER, "model_type": "siglip_vision_model"}, "mm_tokens_per_image": 16,
    },
    "mistral3": {
        "text_config": {**TEXT, "model_type": "mistral", "head_dim": 64, "sliding_window": None},
        "vision_config": {**TOWER, "model_type": "pixtral"},
    },
    "qwen2_5_vl": {
        "text_config": {**TEXT, "model_type": "qwen2_5_vl_text", "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}},
        "vision_config": {
            "hidden_size": 256, "depth": 4, "num_heads": 4, "intermediate_size": 704, "out_hidden_size": 512, "fullatt_block_indexes": [1, 3],
        },
    },
    "qwen3_vl": {"text_config": QWEN3_TEXT, "vision_config": {**QWEN3_TOWER, "deepstack_visual_indexes": [0, 1]}},
    "qwen3_vl_moe": {"text_config": {**QWEN3_TEXT, **QWEN3_ROUTED}, "vision_config": {**QWEN3_TOWER, "deepstack_visual_indexes": [0, 1]}},
    "qwen3_5": {"text_config": {**QWEN3_TEXT, **DELTA}, "vision_config": QWEN3_TOWER},
    "qwen3_5_moe": {"text_config": {**QWEN3_TEXT, **DELTA, **QWEN3_ROUTED, "shared_expert_intermediate_size": 128}, "vision_config": QWEN3_TOWER},
}  # fmt: skip
CLOSE = 1e-4
OPEN = dict.fromkeys(("qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), 5e-4)
"""What routed and linear layers leave open anywhere (``test_families.py``)."""
Request = dict[str, Any]
PURE: Request = {"engine": "transformers", "attention": "sdpa", "precision.name": "bf16-pure"}
CAST: Request = {"engine": "transformers", "attention": "eager", "precision.name": "bf16-autocast"}
SHARDED: Request = {"engine": "fsdp2", "mesh.dp_shard": 2}


def sheet(name: str, asked: Request) -> Sheet:
    model = read_hf_config({"model_type": name, **CONFIGS[name]})
    request = {"seq_len": 512, "microbatch": 2, "optimizer.implementation": "fused", **asked}
    return account_rank(model, resolve_request(request, model).plan)


@pytest.mark.parametrize(
    ("name", "asked", "load", "forward", "backward"),
    [
        ("llava", PURE, 102_843_300, 200_659_972, 248_763_404), ("llava", CAST, 205_669_284, 452_907_940, 506_155_948),
        ("llava", SHARDED, 102_843_812, 213_252_612, 253_651_468), ("gemma3", PURE, 127_050_562, 374_383_570, 421_439_450),
        ("gemma3", CAST, 254_083_396, 714_080_580, 764_183_884), ("gemma3", SHARDED, 127_051_076, 390_549_974, 425_800_670),
        ("mistral3", PURE, 93_117_080, 190_933_752, 239_037_184), ("mistral3", CAST, 186_217_112, 433_455_768, 486_703_776),
        ("mistral3", SHARDED, 93_117_080, 208_444_152, 244_747_008), ("qwen2_5_vl", PURE, 105_623_628, 203_571_372, 251_674_804),
        ("qwen2_5_vl", CAST, 211_230_284, 458_739_276, 511_979_092), ("qwen2_5_vl", SHARDED, 105_623_628, 219_128_492, 259_523_252),
        ("qwen3_vl", PURE, 85_932_796, 190_368_604, 239_651_684), ("qwen3_vl", CAST, 171_848_700, 421_118_972, 475_644_932),
        ("qwen3_vl", SHARDED, 85_932_796, 203_377_756, 247_413_348), ("qwen3_vl_moe", PURE, 86_031_100, 184_679_420, 231_820_260),
        ("qwen3_vl_moe", CAST, 172_045_308, 429_192_348, 476_333_188), ("qwen3_vl_moe", SHARDED, 86_031_100, 197_704_956, 239_581_924),
        ("qwen3_5", PURE, 90_339_072, 332_697_560, 383_031_264), ("qwen3_5", CAST, 180_661_408, 492_070_240, 546_598_248),
        ("qwen3_5", SHARDED, 90_339_072, 344_649_944, 388_687_584), ("qwen3_5_moe", PURE, 95_168_320, 340_134_072, 388_327_584),
        ("qwen3_5_moe", CAST, 190_319_840, 531_110_464, 579_305_000), ("qwen3_5_moe", SHARDED, 95_180_608, 352_905_656, 393_996_192),
    ],
)  # fmt: skip
def test_a_step_on_text_alone_has_the_traced_high_water_marks(
    name: str, asked: Request, load: int, forward: int, backward: int
) -> None:
    found = sheet(name, asked)
    for instant, traced in ((Instant.LOAD, load), (Instant.FORWARD, forward), (Instant.BACKWARD, backward)):
        assert found.at(instant).value == pytest.approx(traced, rel=OPEN.get(name, CLOSE))


@pytest.mark.parametrize("name", CONFIGS)
def test_what_does_not_train_has_no_states_and_the_high_end_has_them(name: str) -> None:
    model, found = read_hf_config({"model_type": name, **CONFIGS[name]}), sheet(name, CAST)
    tower = sum(weight.elements * times for _, weight, times in tower_tensors(model))
    states = found.of(Component.OPTIMIZER_STATES, instant=Instant.LOAD)
    assert states.value == pytest.approx(8 * (parameter_count(model) - tower), rel=CLOSE)
    assert states.high - states.value == pytest.approx((8 + 4) * tower, rel=CLOSE)
    assert any("no picture" in note for note in found.notes)


def test_adapters_on_a_frozen_tower_have_nothing_to_add() -> None:
    found = sheet("qwen2_5_vl", {**PURE, "adapter.rank": 8, "adapter.targets": ["q_proj"]})
    states = found.of(Component.OPTIMIZER_STATES, instant=Instant.LOAD)
    assert states.low == states.value == states.high


def test_an_engine_whose_step_was_not_compared_is_refused() -> None:
    with pytest.raises(InputError, match="vision tower"):
        sheet("llava", {"engine": "deepspeed", "mesh.dp_shard": 2, "zero": 2})
