"""quantization_config of released checkpoints → how their weights are stored."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.errors import InputError
from memsheet.formulas.states.held import held_tensors
from memsheet.plan.document import plan_document
from memsheet.plan.dtypes import dtype_named
from memsheet.plan.model import Role
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_document, resolve_request

GPT_OSS_SKIP = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


def compressed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        **more,
    }


CASES: list[tuple[dict[str, Any], tuple[str, str, int | None]]] = [
    ({"quant_method": "mxfp4", "modules_to_not_convert": GPT_OSS_SKIP}, ("mxfp4", "mxfp4", 32)),
    ({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, ("fp8", "fp8-block", 128)),
    ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, ("fp8", "fp8", None)),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, ("gptq", "gptq-int4", 128)),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, ("gptq", "gptq-int8", None)),
    ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, ("awq", "awq-int4", 64)),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, ("awq", "awq-int4", 128)),
    ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, ("bitsandbytes", "nf4", 64)),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, ("bitsandbytes", "nf4-single", 64)),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("bitsandbytes", "fp4", 64)),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, ("bitsandbytes", "fp4-double", 64)),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ("bitsandbytes", "int8", None)),
    (compressed({"num_bits": 8, "type": "float", "strategy": "channel"}), ("compressed-tensors", "fp8", None)),
    (compressed({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}), ("compressed-tensors", "fp8-block", 128)),
    (compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}), ("compressed-tensors", "int4", 128)),
    (compressed({"num_bits": 4, "type": "int", "group_size": 32, "symmetric": False}), ("compressed-tensors", "gptq-int4", 32)),
    (compressed({"num_bits": 8, "type": "int", "strategy": "channel"}), ("compressed-tensors", "int8", None)),
    (compressed({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}), ("compressed-tensors", "nvfp4", 16)),
]  # fmt: skip


def read(stored: dict[str, Any]) -> Any:
    return read_hf_config({"model_type": "llama", "quantization_config": stored}).quantization


@pytest.mark.parametrize(("stored", "expected"), CASES)
def test_each_method_names_a_known_format(stored, expected):
    found = read(stored)
    assert (found.method, found.weights, found.group_size) == expected
    assert dtype_named(found.weights) is not None


def test_modules_kept_in_the_models_dtype():
    assert read(CASES[0][0]).skip == tuple(GPT_OSS_SKIP)
    assert read({"quant_method": "awq"}).skip == ("lm_head",)
    assert read({"quant_method": "gptq", "lm_head": True}).skip == ()
    assert read(compressed({"num_bits": 8, "type": "float"}, ignore=["lm_head", "re:.*gate$"])).skip == (
        "lm_head",
        "re:.*gate$",
    )


def test_no_quantization_config_means_none():
    assert read_hf_config({"model_type": "llama"}).quantization is None


@pytest.mark.parametrize(
    ("stored", "field"),
    [
        ({"quant_method": "aqlm"}, "quantization_config.quant_method"),
        ({}, "quantization_config.quant_method"),
        ({"quant_method": "gptq", "bits": 3}, "quantization_config.bits"),
        ({"quant_method": "gptq", "group_size": 0}, "quantization_config.group_size"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "quantization_config.weight_block_size"),
        ({"quant_method": "bitsandbytes"}, "quantization_config.load_in_4bit"),
        (
            compressed({"num_bits": 5, "type": "int"}),
            "quantization_config.config_groups.group_0.weights.num_bits",
        ),
        ({"quant_method": "compressed-tensors"}, "quantization_config.config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, "quantization_config.config_groups"),
    ],
)
def test_what_cannot_be_sized_is_refused(stored, field):
    with pytest.raises(InputError) as error:
        read(stored)
    assert field in [problem.field for problem in error.value.problems]


TEXT = {
    "model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 3, "n_routed_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "intermediate_size": 96, "vocab_size": 128, "first_k_dense_replace": 1,
}  # fmt: skip
LEFT = [
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    "re:model.layers.1.*",
]


def stored_dtypes(config: dict[str, Any]) -> tuple[dict[str, str], Any]:
    model = read_hf_config(config)
    plan = resolve_request({"task": "infer", "engine": "vllm", "serving.max_model_len": 64}, model).plan
    held = held_tensors(model, plan)
    return {one.path: one.dtype.name for one in held if one.role in (Role.LINEAR, Role.EXPERT)}, plan


@pytest.mark.parametrize("group", [32, 128])
def test_patterns_leave_modules_whole_and_groups_have_their_own_scales(group):
    """As compressed-tensors writes them; a pattern of one layer is of no other."""
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group}
    found, plan = stored_dtypes({**TEXT, "quantization_config": compressed(weights, ignore=LEFT)})
    packed = {path for path, name in found.items() if name == "int4"}
    assert packed == {path for path in found if ".mlp.experts." in path}
    assert plan.quantization.weights.nbytes(10 * group) == 10 * (group // 2 + 2)
    assert (
        resolve_document(
            plan_document(plan),
            read_hf_config({**TEXT, "quantization_config": compressed(weights, ignore=LEFT)}),
        )
        == plan
    )


def test_a_format_inside_the_text_models_part_is_of_the_text_model_alone():
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    nested = {**TEXT, "quantization_config": compressed(weights, ignore=["lm_head"])}
    found, _ = stored_dtypes({"model_type": "kimi_k25", "text_config": nested})
    whole = {path for path, name in found.items() if name != "int4"}
    assert whole
    assert all(path.startswith(("model.vision_tower", "model.mm_projector")) for path in whole)
    assert all(not path.startswith("model.language_model") for path in whole)


@pytest.mark.parametrize("pattern", ["re:(a+)+b", "re:[", "re:" + "x" * 500])
def test_a_pattern_that_might_never_end_leaves_everything_whole(pattern):
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    found, _ = stored_dtypes({**TEXT, "quantization_config": compressed(weights, ignore=[pattern])})
    assert "int4" not in found.values()
