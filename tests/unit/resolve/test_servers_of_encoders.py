"""Models that make no tokens: no server of tokens serves them, and nothing keeps a cache for them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import memsheet
from bundled import written_names
from memsheet import catalog
from memsheet.errors import InputError
from memsheet.readers.model import read_model
from memsheet.sheet import Component

SERVERS = ("vllm", "sglang", "llama.cpp", "litgpt", "gpt-fast", "autoawq")


def without_tokens() -> list[str]:
    specs = {
        name: read_model(name, catalog=catalog.find_model, names=catalog.model_names())
        for name in written_names()
    }
    return [name for name, spec in specs.items() if not any(stack.role == "decoder" for stack in spec.stacks)]


EMBEDS = "vllm"
"""The server that has pooling for some encoders."""
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"lora_rank": 8, "max_loras": 4}, {"max_model_len": 128})


@pytest.mark.parametrize("engine", [engine for engine in SERVERS if engine != EMBEDS])
def test_a_server_of_tokens_refuses_a_model_that_makes_none(engine: str) -> None:
    for name, more in itertools.product(without_tokens(), OPTIONS):
        with pytest.raises(InputError):
            memsheet.infer(name, gpus="1xL4", engine=engine, **more)


def test_a_server_that_embeds_keeps_nothing_for_a_next_token() -> None:
    answered = set()
    for name in without_tokens():
        try:
            sheet = memsheet.infer(name, gpus="1xL4", engine=EMBEDS, max_model_len=128).sheets[0]
        except InputError:
            continue
        answered.add(name)
        assert not any(item.component is Component.KV_CACHE for item in sheet.items), name
    assert "bge-m3" in answered
    assert "vit-base" not in answered


def test_transformers_runs_it_and_keeps_nothing_for_a_next_token() -> None:
    assert {"vit-base", "bert-base"} <= set(without_tokens())
    for name in without_tokens():
        length = memsheet.infer(name, max_model_len=64, engine="transformers").model.max_positions or 64
        answer = memsheet.infer(name, gpus="1xL4", max_model_len=length, engine="transformers")
        assert answer.sheets[0].of(Component.KV_CACHE).high == 0
        assert answer.serving is not None
        assert answer.serving["max_sequences"] == {}


@pytest.mark.parametrize(("asked", "printed"), [("fp8", "float8_e4m3fn"), ("fp8_e4m3", "float8_e4m3fn"), ("fp8_e5m2", "float8_e5m2"), (None, "bfloat16")])  # fmt: skip
def test_a_start_up_line_names_the_format_that_was_asked_for(asked: str | None, printed: str) -> None:
    answer = memsheet.infer(
        "llama-3.1-8b", gpus="1xH100-80GB", engine="sglang", max_model_len=8192, kv_dtype=asked
    )
    line = next(line for line in (answer.serving or {})["start_up"] if line.startswith("KV Cache"))
    assert f"torch.{printed}," in line


def test_a_cache_in_e5m2_is_exported_as_asked_and_refused_beside_weights_in_fp8() -> None:
    with pytest.raises(InputError, match="refused by vllm"):
        memsheet.infer(
            "llama-3.1-8b",
            gpus="1xH100-80GB",
            engine="vllm",
            max_model_len=8192,
            quantize="fp8",
            kv_dtype="fp8_e5m2",
        )
    assert (
        memsheet.infer(
            "llama-3.1-8b", engine="vllm", max_model_len=8192, kv_dtype="fp8_e5m2"
        ).plan.cache.kv_dtype.name
        == "fp8_e5m2"
    )  # type: ignore[union-attr]
