"""Prompts that begin alike: a server that caches prefixes keeps their beginning once."""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError

LOAD: dict[str, Any] = {
    "gpus": "1xH100-80GB",
    "max_model_len": 8192,
    "prompt_tokens": 4096,
    "output_tokens": 512,
}


def facts(engine: str, **options: Any) -> dict[str, Any]:
    return dict(memsheet.infer("llama-3.1-8b", **{**LOAD, "engine": engine, **options}).serving or {})


def test_vllm_keeps_whole_blocks_of_it_once() -> None:
    """187 blocks of 16 tokens are within 3,000; a sequence of 8,192 has 512 blocks, 325 of its own (a block
    is 2 MiB).
    """
    found = facts("vllm", shared_prefix_tokens=3000)
    assert found["shared_prefix_bytes_per_rank"] == 187 * 16 * 131072
    assert found["max_sequences"]["8192"] == (found["pages"] - 187) // (512 - 187)


def test_sglang_keeps_its_tokens_once() -> None:
    found = facts("sglang", shared_prefix_tokens=3000)
    assert found["max_sequences"]["8192"] == (found["kv_tokens"] - 3000) // (8192 - 3000)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_more_of_it_never_holds_fewer_and_none_is_as_before(engine: str) -> None:
    rooms = [
        facts(engine, shared_prefix_tokens=tokens)["max_sequences"]["4608"]
        for tokens in (0, 15, 16, 1000, 4095, 4096)
    ]
    assert rooms == sorted(rooms)
    assert rooms[0] == facts(engine)["max_sequences"]["4608"] < rooms[-1]


def test_the_pool_itself_does_not_change() -> None:
    one, other = (
        memsheet.infer("llama-3.1-8b", **LOAD, engine="vllm", shared_prefix_tokens=tokens)
        for tokens in (0, 4000)
    )
    assert one.sheets == other.sheets


def test_windows_are_never_taken_for_shared() -> None:
    """Gemma 3's windows hold 1,024 tokens of each sequence, whatever the others begin with: its room grows,
    but not as that of full attention.
    """
    load = {"gpus": "1xH100-80GB", "max_model_len": 16384, "engine": "vllm"}
    rooms = [
        (memsheet.infer("gemma-3-12b", **load, shared_prefix_tokens=tokens).serving or {})["max_sequences"][
            "16384"
        ]
        for tokens in (0, 16000)
    ]
    assert rooms[0] < rooms[1] < 10 * rooms[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "vllm", "engine_version": "0.6.4"}, "prefix caching is off"),
        ({"engine": "transformers"}, "shared_prefix_tokens"),
        ({"engine": "vllm", "prompt_tokens": 2000}, "exceeds the prompt of 2000"),
    ],
)
def test_where_nothing_is_shared_it_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        memsheet.infer("llama-3.1-8b", **{**LOAD, **options, "shared_prefix_tokens": 3000})


def test_beside_states_it_is_refused() -> None:
    with pytest.raises(InputError, match="recurrent states"):
        memsheet.infer(
            "qwen3-next-80b-a3b",
            gpus="4xH100-80GB",
            engine="vllm",
            max_model_len=8192,
            shared_prefix_tokens=3000,
        )


def test_a_deployment_holds_more_users() -> None:
    asked: dict[str, Any] = {"gpus": "1xH100-80GB", "context": 8192}
    alone, shared = (
        memsheet.plan_serving("llama-3.1-8b", **asked, shared_prefix_tokens=tokens) for tokens in (0, 4096)
    )
    assert alone.best is not None
    assert shared.best is not None
    assert shared.best.in_all > 1.5 * alone.best.in_all
