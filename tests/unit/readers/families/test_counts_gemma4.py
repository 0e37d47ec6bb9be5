"""Parameters of Gemma 4 in all its shapes, each name and count as in the real model on the meta device;
and what engines keep of a token.
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
from memsheet.plan.model import Attention
from memsheet.readers.hf_config import read_hf_config
from memsheet.sheet import Component, Instant
from oracle import assert_same_tensors

TEXT: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 250, "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 20,
    "global_head_dim": 28, "vocab_size": 777, "vocab_size_per_layer_input": 333, "hidden_size_per_layer_input": 12,
}  # fmt: skip
ROUTED = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 40}
TURNS = ["sliding_attention", "full_attention"] * 4
SHARED = {"num_kv_shared_layers": 3, "layer_types": TURNS, "use_double_wide_mlp": True}
VISION: dict[str, Any] = {
    "hidden_size": 80, "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 16, "intermediate_size": 90,
    "patch_size": 4, "position_embedding_size": 50,
}  # fmt: skip
AUDIO: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "subsampling_conv_channels": [16, 8], "conv_kernel_size": 3,
    "output_proj_dims": 70,
}  # fmt: skip
SEEING, UNIFIED, ALONE = "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration", "AutoModelForCausalLM"  # fmt: skip

PERTURBED: list[tuple[str, dict[str, Any]]] = [
    (ALONE, {"model_type": "gemma4_text", **TEXT}),
    (ALONE, {"model_type": "gemma4_text", **TEXT, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
             "tie_word_embeddings": False, "attention_bias": True, "final_logit_softcapping": 30.0}),
    (ALONE, {"model_type": "gemma4_text", **TEXT, **SHARED}),
    (ALONE, {"model_type": "gemma4_text", **TEXT, **ROUTED, "num_global_key_value_heads": 1}),
    (ALONE, {"model_type": "gemma4_text", **TEXT, "layer_types": TURNS, "use_bidirectional_attention": "all",
             "per_layer_config": {str(layer): {"head_dim": 44, "num_key_value_heads": 1} for layer in (1, 3, 5, 7)}}),
    (ALONE, {"model_type": "gemma4_text", **TEXT, "per_layer_config": {f"{layer:02}": {"head_dim": 44} for layer in (5, 7)}}),
    (SEEING, {"model_type": "gemma4", "text_config": {**TEXT, **ROUTED, **SHARED, "attention_k_eq_v": True, "num_global_key_value_heads": 2},
              "vision_config": {**VISION, "standardize": True, "use_clipped_linears": True},
              "audio_config": {**AUDIO, "use_clipped_linears": False}, "tie_word_embeddings": False}),
    (SEEING, {"model_type": "gemma4", "text_config": TEXT, "audio_config": AUDIO}),
    (UNIFIED, {"model_type": "gemma4_unified", "text_config": {**TEXT, **SHARED}, "audio_config": {"audio_embed_dim": 33},
               "vision_config": {"patch_size": 4, "mm_embed_dim": 50, "mm_posemb_size": 9, "output_proj_dims": 50}}),
]  # fmt: skip
DEFAULTS = [
    (ALONE, {"model_type": "gemma4_text"}, 5_077_177_856),
    (SEEING, {"model_type": "gemma4", "vision_config": {}, "audio_config": {}}, 5_554_675_488),
    (UNIFIED, {"model_type": "gemma4_unified", "vision_config": {}, "audio_config": {}}, 3_056_257_024),
]


@pytest.mark.parametrize(("name", "config"), PERTURBED)
def test_names_and_counts(name: str, config: dict[str, Any]) -> None:
    assert_same_tensors(config, name)


@pytest.mark.parametrize(("name", "config", "parameters"), DEFAULTS)
def test_defaults_are_those_of_the_configuration_class(
    name: str, config: dict[str, Any], parameters: int
) -> None:
    assert parameter_count(read_hf_config(config)) == parameters, name


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config", "parameters"), DEFAULTS)
def test_default_names_and_counts(name: str, config: dict[str, Any], parameters: int) -> None:
    assert_same_tensors(config, name)
    assert parameters


SHAPES: dict[str, dict[str, Any]] = {  # layers and heads of the released sizes
    "dense": {"num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16, "num_global_key_value_heads": 4,
              "attention_k_eq_v": True, "hidden_size_per_layer_input": 0},
    "sharing": {"num_hidden_layers": 35, "num_key_value_heads": 1, "num_kv_shared_layers": 20,
                "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7},
}  # fmt: skip


def test_a_token_takes_room_in_layers_that_keep_keys_of_their_own() -> None:
    """Both keys and values, also where one matrix makes both."""
    kept = {name: read_hf_config({"model_type": "gemma4_text", **shape}) for name, shape in SHAPES.items()}
    assert bytes_per_token(kept["dense"], BF16) == 2 * 2 * (50 * 16 * 256 + 10 * 4 * 512)
    assert bytes_per_token(kept["sharing"], BF16) == 2 * 2 * (12 * 256 + 3 * 512)


@pytest.mark.parametrize(("engine", "layers"), [("transformers", 15), ("vllm", 15), ("sglang", 35)])
def test_engines_keep_what_their_own_code_keeps_of_shared_layers(engine: str, layers: int) -> None:
    """SGLang has a place for every layer in its pools (configs/model_config.py get_hybrid_layer_ids)."""
    config = {"model_type": "gemma4_text", **SHAPES["sharing"]}
    asked: dict[str, Any] = {"gpus": "1xH100-80GB", "engine": engine, "max_model_len": 4096}
    answer = (
        infer(config, memory_fraction=0.85, **asked) if engine != "transformers" else infer(config, **asked)
    )
    assert answer.serving is not None
    wide = layers // 5
    assert answer.serving["kv_bytes_per_token"] == 2 * 2 * ((layers - wide) * 256 + wide * 512)


def test_servers_load_the_keys_matrix_twice_where_values_are_keys() -> None:
    """Ten layers of 4 heads of 512 over 2,304 elements in bf16."""
    config = {"model_type": "gemma4_text", "dtype": "bfloat16", **SHAPES["dense"]}
    asked: dict[str, Any] = {"gpus": "1xH200", "max_model_len": 4096}
    held = {
        engine: infer(config, engine=engine, **asked).sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD)
        for engine in ("transformers", "vllm")
    }
    assert held["vllm"].value - held["transformers"].value == 10 * 4 * 512 * 2304 * 2


def test_layers_that_share_have_no_keys_of_their_own() -> None:
    model = read_hf_config({"model_type": "gemma4_text", **TEXT, **SHARED})
    mixers = [m for run in model.stacks[0].runs for block in run.pattern * run.count for m in block.mixers]
    assert [m.shares_kv for m in mixers if isinstance(m, Attention)] == [False] * 5 + [True] * 3


@pytest.mark.parametrize(("config", "field"), [
    ({"num_kv_shared_layers": 8}, "num_kv_shared_layers"),
    ({"enable_moe_block": True}, "num_experts"),
    ({"per_layer_config": [1]}, "per_layer_config"),
])  # fmt: skip
def test_refusals_name_the_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refusal:
        read_hf_config({"model_type": "gemma4_text", **TEXT, **config})
    assert any(problem.field == field for problem in refusal.value.problems), str(refusal.value)


def test_llama_cpp_refuses_it_by_name_where_it_was_not_known() -> None:
    with pytest.raises(InputError, match="gemma4_text in that version"):
        infer(
            {"model_type": "gemma4_text", **SHAPES["dense"]},
            gpus="1xH200",
            engine="llama.cpp",
            engine_version="b7342",
        )
