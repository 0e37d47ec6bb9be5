"""A copy whose name leaves open which layers are quantized has a range with both ends of what may be."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

import memsheet
from memsheet.formulas.states.params import parameter_count, parameter_tensors
from memsheet.plan.model import Role
from memsheet.questions.question_parts import read_named_model
from memsheet.sheet import OUTSIDE_TENSORS, Component

OPEN = ("Qwen/Qwen3-8B-NVFP4", "unsloth/Qwen3-8B-MXFP4", "unsloth/Qwen3-8B-unsloth-bnb-4bit")
SURE = ("Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3-8B-GPTQ-Int4", "unsloth/Qwen3-8B-bnb-4bit", "Qwen/Qwen3-8B-BF16")
SERVED: list[dict[str, Any]] = [
    {"gpus": "1xH100-80GB", "engine": "vllm", "max_model_len": 4096},
    {"gpus": "2xH100-80GB", "engine": "vllm", "max_model_len": 4096},
    {"gpus": "1xH100-80GB", "engine": "sglang", "max_model_len": 4096},
    {"gpus": "1xH100-80GB", "engine": "transformers", "max_model_len": 4096},
]
FOUR_BITS_SCALED = 0.6
"""Bytes of a weight in nvfp4, no less than its own four bits and its share of a scale for sixteen."""


@pytest.mark.parametrize("name", OPEN[:2])
@pytest.mark.parametrize("how", SERVED, ids=lambda how: f"{how['engine']}-{how['gpus']}")
def test_a_served_copys_range_holds_attention_quantized_and_whole(name: str, how: dict[str, Any]) -> None:
    answer = memsheet.infer(name, **how)
    form = answer.plan.quantization.weights.name
    documents = ({"weights": form, "skip": skip} for skip in (["lm_head"], ["lm_head", "self_attn"]))
    ends = [memsheet.infer("qwen3-8b", **how, plan={"quantization": document}) for document in documents]
    held = [end.sheets[0].of(Component.PARAMETERS) for end in ends]
    found = answer.sheets[0].of(Component.PARAMETERS)
    assert found.low <= held[0].value < held[1].value <= found.high
    device = answer.sheets[0].device
    assert device.low <= min(end.sheets[0].device.value for end in ends)
    assert device.high >= max(end.sheets[0].device.value for end in ends)
    if "kv_tokens_low" in (answer.serving or {}):
        assert answer.serving["kv_tokens_low"] <= min(end.serving["kv_tokens"] for end in ends)
        assert answer.serving["kv_tokens_high"] >= max(end.serving["kv_tokens"] for end in ends)


@pytest.mark.parametrize("name", OPEN[2:])
def test_a_trained_copys_range_is_of_one_job_at_each_end(name: str) -> None:
    how: dict[str, Any] = {"gpus": "1xRTX4090", "lora_rank": 16, "seq_len": 1024}
    answer = memsheet.train(name, **how)
    plain = memsheet.train("unsloth/Qwen3-8B-bnb-4bit", **how)
    more = answer.sheets[0].of(Component.PARAMETERS).high - plain.sheets[0].of(Component.PARAMETERS).high
    assert more > 0
    tensors = [each for each in Component if each not in OUTSIDE_TENSORS]
    assert answer.sheets[0].of(*tensors).high - plain.sheets[0].of(*tensors).high == more
    assert answer.sheets[0].allocated.high > plain.sheets[0].allocated.high
    assert answer.sheets[0].allocated.value == plain.sheets[0].allocated.value


@pytest.mark.parametrize("name", SURE)
def test_a_copy_of_which_nothing_is_open_has_no_wider_range(name: str) -> None:
    answer = memsheet.infer(name, gpus="1xH100-80GB", engine="transformers", max_model_len=4096)
    found = answer.sheets[0].of(Component.PARAMETERS)
    assert found.low == found.value == found.high


@pytest.mark.parametrize(
    "name",
    [
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4",
        "nvidia/Qwen3-235B-A22B-NVFP4",
        "nvidia/DeepSeek-R1-NVFP4",
        "RedHatAI/Qwen3-Next-80B-A3B-Instruct-NVFP4",
    ],
)
def test_experts_are_quantized_at_both_ends(name: str) -> None:
    """Of experts nothing is open, whatever the module that mixes is called: the high end lies below that of
    attention and experts whole, by the experts' own bytes.
    """
    spec = read_named_model(name, "infer")
    sheet = memsheet.infer(name, gpus="1xB200", engine="vllm", max_model_len=4096, fix=False).sheets[0]
    experts = sum(
        times * prod(weight.shape)
        for _, weight, times in parameter_tensors(spec)
        if weight.role is Role.EXPERT
    )
    found = sheet.of(Component.PARAMETERS)
    assert found.value < found.high < 2 * (parameter_count(spec) - experts) + FOUR_BITS_SCALED * experts
