"""Backends of attention that a plan names, beside those that servers take by themselves."""

from __future__ import annotations

import pytest

from memsheet.errors import InputError
from memsheet.questions.accounted import infer
from memsheet.sheet import Bytes, Component, Instant
from memsheet.units import MIB

LENGTHS = {"max_model_len": 8192, "sequences": 64}
NAMED = {"vllm": ("flash", "flashinfer", "triton"), "sglang": ("flash", "flashinfer", "triton", "trtllm")}


def workspaces(engine: str, card: str = "1xA100-80GB", **options: object) -> Bytes:
    asked = {**LENGTHS, **({"memory_fraction": 0.8} if engine == "sglang" else {}), **options}
    answer = infer("llama-3.1-8b", gpus=card, engine=engine, **asked)
    return answer.sheets[0].of(Component.WORKSPACES, instant=Instant.DECODE)


@pytest.mark.parametrize("engine", NAMED)
def test_what_is_named_is_no_wider_than_what_may_be_taken(engine: str) -> None:
    for backend in NAMED[engine]:
        said = workspaces(engine, attention_kernels=backend)
        assert said.low <= said.value <= said.high
    sizes = [
        workspaces(engine, attention_kernels=backend).value for backend in ("flash", "triton", "flashinfer")
    ]
    assert sizes == sorted(sizes)


def test_sglangs_range_without_a_name_holds_what_it_takes_by_itself() -> None:
    open_one = workspaces("sglang", engine_version="0.5.23")
    named = [
        workspaces("sglang", engine_version="0.5.23", attention_kernels=one)
        for one in ("flashinfer", "triton")
    ]
    assert open_one.low <= min(one.low for one in named)
    assert open_one.high >= max(one.high for one in named)


def test_flashinfers_workspace_grows_with_a_batch_in_newer_vllm() -> None:
    """16 bytes for each element of a batch's queries, at least 394 MiB (v0.33.0 flashinfer.py:1268)."""

    def of_batch(tokens: int, version: str = "0.33.0") -> Bytes:
        return workspaces(
            "vllm", attention_kernels="flashinfer", max_batched_tokens=tokens, engine_version=version
        )

    grown = of_batch(16384).value - of_batch(8192).value
    assert grown == 16 * 8192 * 4096
    assert of_batch(2048) == of_batch(1024)
    assert of_batch(16384, "0.11.0").value == of_batch(1024, "0.11.0").value
    flash = workspaces("vllm", attention_kernels="flash").value
    assert of_batch(1024).value - flash == (394 + 2 * 8) * MIB


def test_a_backend_that_an_engine_has_not_is_refused() -> None:
    with pytest.raises(InputError, match="attention_kernels"):
        workspaces("vllm", attention_kernels="trtllm")
    with pytest.raises(InputError, match="attention_kernels"):
        workspaces("vllm", attention_kernels="flex")


def test_a_pool_of_so_many_tokens_holds_no_more_and_takes_as_many_bytes() -> None:
    """Tokens times bytes are the pool, with the token that is spare."""
    whole = infer("llama-3.1-8b", gpus="1xH100-80GB", engine="sglang", max_model_len=8192)
    for tokens in (10_000, 100_000, 10**9):
        capped = infer(
            "llama-3.1-8b", gpus="1xH100-80GB", engine="sglang", max_model_len=8192, pool_tokens=tokens
        )
        held = (capped.serving or {})["kv_tokens"]
        assert held == min(tokens, (whole.serving or {})["kv_tokens"])
        pool = capped.sheets[0].of(Component.KV_CACHE, instant=Instant.DECODE).value
        assert pool == (held + 1) * 32 * 2 * 8 * 128 * 2


def test_a_pool_is_capped_without_a_card_too() -> None:
    asked = {"engine": "sglang", "max_model_len": 8192, "sequences": 4}
    whole, capped = (infer("llama-3.1-8b", **asked, **cap) for cap in ({}, {"pool_tokens": 10_000}))
    sizes = [
        answer.sheets[0].of(Component.KV_CACHE, instant=Instant.DECODE).value for answer in (whole, capped)
    ]
    assert sizes[0] == (4 * 8192 + 1) * 2**17
    assert sizes[1] == (10_000 + 1) * 2**17
