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
}  # fmt: skip
CLOSE = 1e-4
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
    ],
)  # fmt: skip
def test_a_step_on_text_alone_has_the_traced_high_water_marks(
    name: str, asked: Request, load: int, forward: int, backward: int
) -> None:
    found = sheet(name, asked)
    for instant, traced in ((Instant.LOAD, load), (Instant.FORWARD, forward), (Instant.BACKWARD, backward)):
        assert found.at(instant).value == pytest.approx(traced, rel=CLOSE)


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
