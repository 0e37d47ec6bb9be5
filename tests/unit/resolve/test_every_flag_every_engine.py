"""Every key of a plan, under every engine: another sheet, something that is said, a refusal, or a reason
written here.

The keys are those of the plan's own vocabulary, so that a new one is asked of every engine without being
named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from memsheet import catalog
from memsheet.budget import Answer
from memsheet.errors import InputError
from memsheet.plan.check import RULES, flatten_document
from memsheet.plan.defaults import DESCRIPTIVE
from memsheet.plan.device import cluster_of
from memsheet.plan.document import plan_document
from memsheet.plan.engine_registry import MODELLED
from memsheet.plan.model import ModelSpec
from memsheet.questions import accounted
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import read_model

TRAIN, INFER = (
    {"task": "train", "seq_len": 1024},
    {"task": "infer", "serving.max_model_len": 256, "serving.max_sequences": 4},
)
OTHER_SIZES: dict[str, dict[str, Any]] = {"train": {"seq_len": 64}, "infer": {"serving.max_sequences": 256}}
LORA, TINY, EXPERTS, STATES = {**TRAIN, "adapter.rank": 8}, "llama-tiny", "qwen3-30b-a3b", "mamba-130m"
BASES: list[tuple[str, str, int, Mapping[str, Any]]] = [
    *[(e, TINY, 8, TRAIN) for e in ("transformers", "fsdp2", "fsdp1", "deepspeed", "torchtitan", "torchtune", "ms-swift")],
    *[(e, TINY, 1, LORA) for e in ("transformers", "fsdp2", "deepspeed", "torchtune", "ms-swift", "litgpt")],
    *[(e, EXPERTS, 8, TRAIN) for e in ("fsdp2", "deepspeed")],
    ("litgpt", TINY, 1, TRAIN), ("llm-foundry", "mpt-7b", 8, TRAIN), ("internevo", "internlm", 8, TRAIN),
    ("megatron", TINY, 8, {**TRAIN, "mesh.tp": 2, "mesh.pp": 2}), ("megatron", TINY, 8, {**TRAIN, "mesh.tp": 2, "fp8.recipe": "tensorwise"}),
    ("megatron", EXPERTS, 8, {**TRAIN, "mesh.tp": 2, "mesh.ep": 2, "sequence_parallel": True}),
    ("torchtitan", TINY, 8, {**TRAIN, "mesh.tp": 2, "mesh.pp": 2}), ("fsdp2", TINY, 8, {**TRAIN, "mesh.tp": 2}),
    *[(e, TINY, 1, INFER) for e in ("transformers", "vllm", "sglang", "llama.cpp", "litgpt", "gpt-fast")],
    *[(e, EXPERTS, 8, INFER) for e in ("transformers", "vllm", "sglang", "llama.cpp")],
    *[(e, TINY, 2, INFER) for e in ("vllm", "sglang", "gpt-fast")], *[(e, STATES, 1, INFER) for e in ("transformers", "vllm", "sglang")],
    ("autoawq", TINY, 1, {**INFER, "quantization.weights": "awq-int4"}), ("vllm", TINY, 1, {**INFER, "quantization.weights": "fp8"}),
    ("transformers", TINY, 1, {**INFER, "quantization.weights": "int4", "serving.prompt_tokens": 32}),
]  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "optimizer.name": ["sgd", "muon"], "adapter.targets": [["o_proj"]], "quantization.weights": ["nf4", "fp8"], "recompute.modules": [["mlp"], ["lm_head"]],
    "quantization.skip": [["q_proj"]], "fp8.recipe": ["other"], "fp8.param_storage": [True], "fp8.all_gather": [True], "layers_per_stage": [[3, 1]],
    "speculative.model": [TINY], "serving.fused_moe": [True], "moe.dispatch": ["allgather", "other"], "seq_len": [2048], "serving.max_model_len": [128],
    "serving.prompt_tokens": [64], "serving.shared_prefix_tokens": [64], "serving.page_tokens": [32], "serving.output_tokens": [16], "image_tokens": [16],
    "vocab_multiple": [1000], "adapter.full_modules": [["lm_head"]], "global_batch": [32], "limit_all_gathers": [False],
}  # fmt: skip
BY_KIND: dict[str, list[Any]] = {
    "count": [3], "flag": [True], "share": [0.5], "number": [0.3], "text": ["other"], "texts": [["lm_head"]], "counts": [[3, 1]],
    "dtype": ["fp32", "fp8"], "any": [2],
}  # fmt: skip
THE_SAME: dict[tuple[str, Any], tuple[tuple[str, ...], str]] = {
    ("attention", "flash"): (MODELLED, "no kernel of the three keeps a matrix of scores: sdpa, flash and cudnn save the same"),
    ("attention", "cudnn"): (("megatron",), "likewise"), ("attention", "sdpa"): (("vllm", "sglang"), "likewise"),
    ("global_batch", 32): (("megatron", "torchtitan", "internevo"), "gradients of all micro-batches are summed in place, in buffers that are there for one"),
    ("loss", "vocab_parallel"): (("megatron",), "its cross entropy is computed over a part of the words on each rank whatever it is called"),
    ("optimizer.implementation", "foreach"): (("deepspeed",), "a copy of one moment, less than the overflow check takes beside it at this stage"),
    ("optimizer.implementation", "apex"): (("megatron", "deepspeed", "internevo"), "the same kernel by the name of the library that has it"),
    ("sequence_parallel", True): (("torchtitan",), "its tensor parallelism always splits the sequence between the layers"),
    ("moe.grouped_gemm", True): (("megatron",), "that is what is accounted, and false is said to be accounted likewise"),
    ("moe.permute_fusion", True): (("megatron",), "likewise"), ("compile", True): (("vllm",), "it compiles by itself"),
    ("loss", "plain"): (MODELLED, "no loss is computed in inference"), ("serving.dispatch", "gather"): (MODELLED, "what is done where nobody says"),
    ("serving.attention_kernels", "flash"): (("vllm", "sglang"), "what both take on that card where nobody says"),
    ("serving.prompt_tokens", 64): (("llama.cpp",), "cells of the whole length are there from the start, and prompts are read in pieces of one size"),
    ("serving.split_mode", "layer"): (("llama.cpp",), "what it does where nobody says"), ("serving.split_mode", "none"): (("llama.cpp",), "on one card there is nothing to deal"),
    ("limit_all_gathers", False): (("fsdp1",), "the segments of so small a model have room for every unit; engines/fsdp1 has a larger one"),
    ("backward_prefetch", "pre"): (("fsdp1",), "what torch does where nobody says"),
    ("serving.swa_full", True): (("llama.cpp", "vllm"), "no layer of these models has a window; Gemma's are in engines/llama_cpp and engines/vllm"),
    ("allocator.expandable_segments", True): (("fsdp2", "torchtitan"), "replayed: the segments of so small a model leave as little between them"),
}  # fmt: skip
"""Values that are honoured and cost nothing, or say what is done anyway, and why."""


@cache
def model(name: str) -> ModelSpec:
    if name == "internlm":
        sizes = {
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_attention_heads": 8,
            "num_hidden_layers": 4,
            "vocab_size": 4100,
        }
        return read_hf_config(
            {"model_type": "llama", "attention_bias": True, "tie_word_embeddings": False, **sizes},
            name="internlm",
        )
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def answer(request: Mapping[str, Any], name: str, gpus: int) -> Answer:
    return accounted.answer_for_model(
        model(name), request, cluster_of(catalog.find_device("H100-80GB"), gpus), fix=False
    )


@cache
def usual_answer(engine: str, name: str, gpus: int, request: tuple[tuple[str, Any], ...]) -> Answer:
    return answer({**dict(request), "engine": engine}, name, gpus)


def seen(one: Answer) -> Any:
    """What a person sees besides the plan: bytes, facts, notes."""
    sheets = [(sheet.items, sheet.host_bytes, sheet.notes) for sheet in one.sheets]
    return sheets, one.serving, one.notes


def values(key: str) -> list[Any]:
    rule = RULES[key]
    return VALUES.get(key) or list(rule.choices) or BY_KIND[rule.kind]


def ignored(engine: str, name: str, gpus: int, base: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether an option is taken and nothing comes of it. A change that a larger item hides at one length, or
    that few sequences bound, shows at the other.
    """
    other_size = OTHER_SIZES[base["task"]]
    lengths: list[dict[str, Any]] = [{}, other_size] if key not in other_size else [{}]
    for length in lengths:
        usual = usual_answer(engine, name, gpus, tuple({**base, **length}.items()))
        if flatten_document(plan_document(usual.plan)).get(key, base.get(key)) == value:
            return False  # what is done anyway, and shown
        try:
            other = answer({**base, **length, "engine": engine, key: value}, name, gpus)
            if seen(other) != seen(usual) or any(
                f"{key} = " in line for line in set(other.assumed) - set(usual.assumed)
            ):
                return False
        except InputError:
            return False
    return True


@pytest.mark.parametrize(
    ("engine", "name", "gpus", "base"),
    BASES,
    ids=lambda part: str(part) if not isinstance(part, dict) else None,
)
def test_no_engine_ignores_an_option(engine: str, name: str, gpus: int, base: Mapping[str, Any]) -> None:
    keys = sorted(set(RULES) - set(DESCRIPTIVE) - {"model", "gpus", "task", "engine", "precision.name"})
    pairs = [(key, value) for key in keys for value in values(key)]
    left = [
        (key, value) for key, value in pairs if engine not in THE_SAME.get((key, _hashed(value)), ((), ""))[0]
    ]
    assert [pair for pair in left if ignored(engine, name, gpus, base, *pair)] == []


def _hashed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def test_every_engine_is_asked() -> None:
    assert {engine for engine, *_ in BASES} == set(MODELLED)


def test_a_cache_in_a_format_that_the_engine_lacks_is_refused() -> None:
    for engine in ("litgpt", "gpt-fast", "autoawq", "deepspeed"):
        with pytest.raises(InputError, match="keeps keys and values in"):
            answer({**INFER, "engine": engine, "serving.kv_dtype": "fp8"}, TINY, 1)
