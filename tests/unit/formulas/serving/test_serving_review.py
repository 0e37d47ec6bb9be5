"""Serving: what transformers refuses by family, what attention makes of the cache, what a replica's cache
is.
"""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.sheet import Bytes, Component, Instant


def temporaries(model: str, path: str, instant: Instant, **options: Any) -> Bytes:
    sheet = memsheet.infer(model, **options).sheets[0]
    return next(i.at[instant] for i in sheet.items if i.component is Component.TEMPORARIES and i.path == path)


def test_eager_scores_of_layers_that_are_not_recorded_do_not_fit() -> None:
    """qwen3-30b-a3b: 32 heads · 32768² of bf16, fp32 and bf16 again are 256 GiB."""
    answer = memsheet.infer(
        "qwen3-30b-a3b", gpus="1xH100-80GB", max_model_len=32768, prompt_tokens=32768, attention="eager"
    )
    assert answer.verdict is not None
    assert answer.verdict.result is Result.DOES_NOT_FIT
    size = temporaries(
        "qwen3-30b-a3b",
        "widest_layer",
        Instant.PREFILL,
        max_model_len=32768,
        prompt_tokens=32768,
        attention="eager",
    )
    assert size.value > 32 * 32768**2 * 8


@pytest.mark.parametrize(
    ("model", "options", "key"),
    [
        ("gpt-oss-20b", {"attention": "sdpa"}, "attention"),
        ("gpt-oss-20b", {"gpus": "2xH100-80GB"}, "mesh.tp"),
        ("jamba-v0.1", {"gpus": "2xH100-80GB"}, "mesh.tp"),
        ("falcon-40b", {"tp": 2}, "mesh.tp"),
        ("gpt2", {"max_model_len": 100_000}, "serving.max_model_len"),
    ],
)
def test_what_transformers_cannot_serve_is_refused(model: str, options: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as caught:
        memsheet.infer(model, **{"max_model_len": 1024, "engine": "transformers", **options})
    assert key in str(caught.value)


def test_latents_are_expanded_over_the_whole_cache() -> None:
    a_token = 128 * ((128 + 128) + (128 + 64)) * 2
    size = temporaries("deepseek-v3", "widest_layer", Instant.DECODE, max_model_len=8192)
    assert size.value >= 8192 * a_token


def test_eager_decode_repeats_keys_over_the_cache_and_sdpa_does_not() -> None:
    eager, sdpa = (
        temporaries("llama-3-8b", "widest_layer", Instant.DECODE, max_model_len=8192, attention=kind).value
        for kind in ("eager", "sdpa")
    )
    assert eager >= 8192 * (2 * 32 * 128 * 2 + 32 * 8)
    assert sdpa < 2**20


def test_the_cache_that_grows_most_counts_not_the_first_layer() -> None:
    """Gemma's first layers have windows of 1,024: 16 key heads of 128 of its full ones grow most, beyond what
    the newest token takes.
    """
    size = temporaries("gemma-3-27b", "cache_growth", Instant.DECODE, max_model_len=8192).value
    assert 8191 * 16 * 128 * 2 < size <= 8192 * 16 * 128 * 2


def test_an_fp8_cache_leaves_recurrent_states_as_they_are() -> None:
    with pytest.raises(InputError, match="keeps none"):  # of keys and values
        memsheet.infer("mamba-130m", max_model_len=1024, kv_dtype="fp8")
    low, full = (
        memsheet.infer("bamba-9b", max_model_len=1, kv_dtype=kind, engine="transformers").sheets[0]
        for kind in ("fp8", "bf16")
    )
    sizes = [sheet.of(Component.KV_CACHE, instant=Instant.DECODE).value for sheet in (low, full)]
    layers = sum(run.count for run in memsheet.infer("bamba-9b", max_model_len=1).model.stacks[0].runs)
    assert (
        0 < sizes[1] - sizes[0] < layers * 2**13 < sizes[0]
    )  # a token's keys and values, beside the states of all layers


@pytest.mark.parametrize(("card", "kept"), [("A100-80GB", False), ("H100-80GB", True)])
def test_fp8_checkpoints_are_dequantized_on_older_cards(card: str, kept: bool) -> None:
    answer = memsheet.infer("deepseek-v3", gpus=f"16x{card}", max_model_len=1024, engine="transformers")
    released = answer.model.quantization is not None
    assert (answer.plan.quantization is not None) == (kept and released)
    assert not released or kept == any("as released" in line for line in answer.assumed)


def test_cache_facts_are_those_of_one_replica() -> None:
    for tp in (1, 8):
        facts = memsheet.infer("deepseek-v3", max_model_len=1024, tp=tp).serving
        assert facts is not None
        assert facts["kv_bytes_per_token"] == facts["kv_bytes_per_token_per_rank"] == 70_272
    facts = memsheet.infer("llama-3-8b", max_model_len=1024, tp=4).serving
    assert facts is not None
    assert facts["kv_bytes_per_token"] == 4 * facts["kv_bytes_per_token_per_rank"] == 131_072


def test_one_dequantized_matrix_and_the_tower_widen_the_high_end() -> None:
    matrix = temporaries(
        "llama-3-8b", "dequantized_weight", Instant.PREFILL, max_model_len=1024, quantize="nf4"
    )
    assert (matrix.value, matrix.high) == (0, 4096 * 14336 * 2)
    assert temporaries("gemma-3-4b", "vision_tower", Instant.PREFILL, max_model_len=1024).high > 0


@pytest.mark.parametrize("model", ["gemma-3-1b", "mistral-7b"])
def test_a_quantized_cache_of_windowed_layers_is_refused(model: str) -> None:
    with pytest.raises(InputError, match="full attention only"):
        memsheet.infer(model, engine="transformers", max_model_len=1024, kv_dtype="fp8")


def test_logits_of_the_token_before_stay_while_the_next_is_made() -> None:
    """gemma-3-1b: 262,144 logits in fp32, the next ones in bf16 and fp32; while prompts are read the layers
    take more than those.
    """
    size = temporaries(
        "gemma-3-1b", "logits", Instant.DECODE, max_model_len=64, prompt_tokens=32, sequences=8
    )
    step = temporaries(
        "gemma-3-1b", "widest_layer", Instant.DECODE, max_model_len=64, prompt_tokens=32, sequences=8
    )
    growth = temporaries(
        "gemma-3-1b", "cache_growth", Instant.DECODE, max_model_len=64, prompt_tokens=32, sequences=8
    )
    assert size.value + step.value + growth.value == 8 * 262_144 * (4 + 4 + 2)
    assert (
        temporaries("gemma-3-1b", "logits", Instant.PREFILL, max_model_len=1024, prompt_tokens=1024).value
        == 0
    )


def test_prompts_of_mamba2_take_whole_chunks() -> None:
    one, chunk = (
        temporaries(
            "mamba-codestral-7b", "widest_layer", Instant.PREFILL, max_model_len=1024, prompt_tokens=n
        ).value
        for n in (1, 256)
    )
    assert chunk > one > 256 * 4 * 7 * 8192
