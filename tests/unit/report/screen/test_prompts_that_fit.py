"""What a load whose prompts nobody described hangs on, and the factors of a token's cache."""

from __future__ import annotations

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.catalog import find_model, model_names
from memsheet.plan.dtypes import BF16
from memsheet.readers.model import read_model
from memsheet.report.screen.table import render_answer
from memsheet.report.screen.token_words import token_factors
from memsheet.report.shared.look import Look

LOAD = {"gpus": "1xH100-80GB", "engine": "transformers", "max_model_len": 32768, "sequences": 16}


def test_the_longest_prompt_is_the_last_whose_whole_range_fits() -> None:
    answer = memsheet.infer("qwen2.5-7b", **LOAD)
    assert answer.verdict is not None
    assert answer.serving is not None
    assert answer.verdict.result is Result.UNCERTAIN
    longest = answer.serving["prompt_tokens_that_fit"]
    results = [
        memsheet.infer("qwen2.5-7b", **LOAD, prompt_tokens=tokens).verdict.result
        for tokens in (longest, longest + 1)
    ]  # type: ignore[union-attr]
    assert results[0] is Result.FITS
    assert results[1] is not Result.FITS


def test_a_server_is_named_where_its_pool_holds_every_sequence() -> None:
    assert (memsheet.infer("qwen2.5-7b", **LOAD).serving or {})["in_pieces"] == "vllm"
    many = memsheet.infer(
        "qwen2.5-7b", **{**LOAD, "sequences": 36}
    )  # 63 GiB of cache beside 14.2 of weights: no pool of 0.92 has that
    assert many.verdict is not None
    assert many.verdict.result is Result.UNCERTAIN
    assert (many.serving or {})["in_pieces"] is None


def test_nothing_is_looked_for_where_the_prompts_are_known() -> None:
    assert "prompt_tokens_that_fit" not in (
        memsheet.infer("qwen2.5-7b", **LOAD, prompt_tokens=32768).serving or {}
    )
    assert "prompt_tokens_that_fit" not in (
        memsheet.infer("qwen2.5-7b", engine="transformers", gpus="1xH100-80GB", max_model_len=1024).serving
        or {}
    )


@pytest.mark.parametrize(
    ("name", "total", "words"),
    [
        ("qwen2.5-7b", 57344, "28 layers × 2 (keys, values) × 4 heads × 128 wide × 2 bytes"),
        ("deepseek-v3", 70272, "61 layers × (512 latent + 64 rotary) × 2 bytes"),
    ],
)
def test_factors_multiply_to_the_bytes_of_a_token(name: str, total: int, words: str) -> None:
    spec = read_model(name, catalog=find_model, names=model_names())
    assert token_factors(spec, BF16, total) == words
    assert token_factors(spec, BF16, total + 1) == ""  # never factors that come to something else


@pytest.mark.parametrize(
    ("name", "beyond"),
    [
        ("gemma-3-27b", "Beyond a window of 1,024 tokens it takes 80.00 KiB, of the 10 layers without one."),
        ("mistral-7b", "Beyond a window of 4,096 tokens it takes no more."),
        ("llama-3.1-8b", ""),
    ],
)
def test_a_window_ends_what_a_token_takes(name: str, beyond: str) -> None:
    answer = memsheet.infer(name, gpus="1xH100-80GB", engine="vllm")
    screen = " ".join(render_answer(answer, Look(width=100)).split())
    assert beyond in screen
    assert ("Beyond a window" in screen) == bool(beyond)
    serving = answer.serving or {}
    whole = int(serving["kv_bytes_per_token"]) * int(answer.plan.serving.max_model_len)
    assert (int(serving["kv_bytes_per_sequence"]) < whole) == bool(beyond)


def test_a_pool_that_is_too_small_is_the_headline() -> None:
    screen = render_answer(memsheet.infer("gemma-3-27b", gpus="1xH100-80GB", engine="vllm"), Look(width=100))
    assert screen.startswith("DOES NOT FIT")
    assert "its pool lacks" in screen.split("\n\n")[0]
    assert "too much" not in screen.split("\n\n")[0]
