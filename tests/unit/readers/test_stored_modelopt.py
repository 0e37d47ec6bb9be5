"""Checkpoints of ModelOpt and FBGEMM, what they and compressed-tensors name for the cache, and who heeds
it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.readers.hf_config import read_hf_config

CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
SCHEME = {"num_bits": 8, "type": "float", "dynamic": False, "symmetric": True, "strategy": "tensor"}
COMPRESSED = {
    "quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME,
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
}  # fmt: skip
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"], "kv_cache_scheme": SCHEME}


def read(stored: dict[str, Any]) -> Any:
    return read_hf_config({**CONFIG, "quantization_config": stored}).quantization


def served(stored: dict[str, Any], **options: Any) -> Any:
    return memsheet.infer(
        {**CONFIG, "quantization_config": stored},
        gpus="1xH100-80GB",
        max_model_len=8192,
        **{"engine": "vllm", **options},
    )


@pytest.mark.parametrize(
    ("stored", "weights", "group"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", None),
        ({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}, "fp8-block", 128),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "group_size": 16}, "nvfp4", 16),
        (
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}},
            "nvfp4",
            16,
        ),
        (
            {
                "quant_method": "fbgemm_fp8",
                "activation_scale_ub": 1200.0,
                "modules_to_not_convert": ["lm_head"],
            },
            "fp8",
            None,
        ),
    ],
)
def test_each_is_read_as_its_format(stored: dict[str, Any], weights: str, group: int | None) -> None:
    found = read(stored)
    assert (found.weights, found.group_size, found.skip) == (weights, group, ("lm_head",))


def test_what_is_left_alone_layer_by_layer_is_left_alone_in_all() -> None:
    every = [f"model.layers.{layer}.self_attn*" for layer in range(32)]
    assert read({**MODELOPT, "ignore": ["lm_head", *every, "model.layers.32*"]}).skip == (
        "lm_head",
        "model.layers.*.self_attn",
    )
    with pytest.raises(InputError, match="leaves 1 of 32 layers"):
        read({**MODELOPT, "ignore": ["model.layers.0*"]})


def test_the_file_beside_a_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    plain = memsheet.infer(str(tmp_path), gpus="1xH100-80GB", engine="vllm", max_model_len=8192)
    told = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(told))
    stored = memsheet.infer(str(tmp_path), gpus="1xH100-80GB", engine="vllm", max_model_len=8192)
    assert plain.plan.quantization is None
    assert stored.plan.quantization is not None
    assert stored.plan.quantization.weights.name == stored.plan.cache.kv_dtype.name == "fp8"


@pytest.mark.parametrize("method", ["hqq", "exl2", "nobody"])
def test_what_has_no_sizes_is_refused_with_what_comes_near(method: str) -> None:
    with pytest.raises(InputError) as refused:
        read({"quant_method": method})
    assert "--quantize" in refused.value.problems[0].hint
    assert "quantization_config" in refused.value.problems[0].hint


def test_mixed_layers_are_refused() -> None:
    with pytest.raises(InputError, match="formats of its own in each layer"):
        read({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})


@pytest.mark.parametrize(
    ("engine", "version", "stored", "dtype"),
    [
        ("vllm", "0.33.0", COMPRESSED, "fp8"), ("vllm", "0.15.0", COMPRESSED, "fp8"), ("vllm", "0.14.0", COMPRESSED, "bf16"),
        ("vllm", "0.14.0", MODELOPT, "fp8"), ("vllm", "0.11.0", MODELOPT, "bf16"), ("sglang", "0.5.23", COMPRESSED, "fp8"),
        ("sglang", "0.5.8", COMPRESSED, "bf16"), ("sglang", "0.5.8", MODELOPT, "fp8"), ("sglang", "0.4.6", MODELOPT, "bf16"),
    ],
)  # fmt: skip
def test_the_cache_is_as_the_checkpoint_names_it_from_some_release_on(
    engine: str, version: str, stored: dict[str, Any], dtype: str
) -> None:
    answer = served(stored, engine=engine, engine_version=version)
    assert answer.plan.cache.kv_dtype.name == dtype
    said = next(words for words in answer.assumed if words.startswith("serving.kv_dtype"))
    assert f"= {dtype} " in said
    assert "checkpoint names" in said


def test_the_plan_has_the_last_word() -> None:
    assert served(COMPRESSED, kv_dtype="bf16").plan.cache.kv_dtype.name == "bf16"
    assert served({**COMPRESSED, "kv_cache_scheme": None}).plan.cache.kv_dtype.name == "bf16"
    with pytest.raises(InputError, match="is not heeded by that release"):
        served(COMPRESSED, kv_dtype="bf16", engine_version="0.21.0")


def test_a_token_takes_half() -> None:
    named, not_ = served(COMPRESSED), served({**COMPRESSED, "kv_cache_scheme": None})
    assert named.serving["kv_bytes_per_token"] * 2 == not_.serving["kv_bytes_per_token"]


def test_dynamic_scales_are_not_sglangs() -> None:
    dynamic = {**COMPRESSED, "kv_cache_scheme": {**SCHEME, "dynamic": True}}
    assert served(dynamic, engine="sglang").plan.cache.kv_dtype.name == "bf16"
    assert served(dynamic, engine="vllm").plan.cache.kv_dtype.name == "fp8"


def test_the_library_has_no_code_for_it() -> None:
    with pytest.raises(InputError, match="is not read by transformers") as refused:
        served(MODELOPT, engine="transformers")
    assert "--engine vllm" in refused.value.problems[0].hint
    assert served(MODELOPT, engine="transformers", quantize="fp8").plan.quantization is not None
