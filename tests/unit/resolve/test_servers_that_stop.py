"""What a server refuses at its start whatever room there is: blocks, dtypes, caches and groups that a card or
a release does not have.
"""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from laws import every
from memsheet.errors import InputError, Problem
from memsheet.plan.hardware import eight_bit_cache

SERVED = {"engine": "vllm", "gpus": "1xH100-80GB", "max_model_len": 4096}


def refusal(model: str, **options: Any) -> str:
    with pytest.raises(InputError) as refused:
        memsheet.infer(model, **{**SERVED, **options})
    return "\n".join(
        f"{problem.field}: {problem.reason}; {problem.hint}" for problem in refused.value.problems
    )


@pytest.mark.parametrize(("version", "tokens"), [("0.33.0", 7), ("0.11.0", 8), ("0.6.4", 24), ("0.11.0", 48)])
def test_blocks_that_kernels_do_not_read(version: str, tokens: int) -> None:
    assert "serving.page_tokens" in refusal("llama-3.2-1b", page_tokens=tokens, engine_version=version)


@pytest.mark.parametrize(("version", "tokens"), [("0.33.0", 48), ("0.33.0", 256), ("0.11.0", 128)])
def test_blocks_that_they_do(version: str, tokens: int) -> None:
    assert (
        memsheet.infer(
            "llama-3.2-1b", **SERVED, page_tokens=tokens, engine_version=version
        ).plan.cache.page_tokens
        == tokens
    )


def test_the_hint_is_a_size_that_is_taken() -> None:
    assert "--page-tokens 16" in refusal("llama-3.2-1b", page_tokens=7)
    assert memsheet.infer("llama-3.2-1b", **SERVED, page_tokens=16).plan.cache.page_tokens == 16


OLD = {"gpus": "1xT4", "attention": "sdpa"}


def test_bf16_on_an_old_card_is_refused_where_it_is_asked_for() -> None:
    assert "compute capability 8.0" in refusal("llama-3.2-1b", **OLD, precision="bf16-pure")
    assert "compute capability 8.0" in refusal("llama-3.2-1b", **OLD, engine_version="0.8.5")


def test_where_nobody_asks_a_new_release_takes_what_the_card_has() -> None:
    answer = memsheet.infer("llama-3.2-1b", **{**SERVED, **OLD})
    assert answer.plan.precision.compute.name == answer.plan.cache.kv_dtype.name == "fp16"
    assert any(words.startswith("precision.parameters = fp16 (bf16 needs") for words in answer.assumed)
    assert (
        memsheet.infer("gemma-3-4b", **{**SERVED, **OLD}).plan.precision.compute.name == "fp32"
    )  # fp16 is refused for it


def test_fp16_is_refused_for_families_that_overflow() -> None:
    assert "gemma3" in refusal("gemma-3-4b", plan={"precision": {"parameters": "fp16", "compute": "fp16"}})
    halves = memsheet.infer(
        "llama-3.2-1b", **SERVED, plan={"precision": {"parameters": "fp16", "compute": "fp16"}}
    )
    assert halves.plan.precision.compute.name == "fp16"


@pytest.mark.parametrize(
    ("model", "options", "stops"),
    [
        ("llama-3.2-1b", {"gpus": "1xA100-80GB", "engine_version": "0.11.0"}, True),
        ("llama-3.2-1b", {"gpus": "1xA100-80GB", "engine_version": "0.33.0"}, False),
        ("llama-3.2-1b", {"gpus": "1xA100-80GB", "engine_version": "0.10.2"}, False),
        ("llama-3.2-1b", {"gpus": "1xA100-80GB", "engine": "sglang"}, False),
        ("llama-3.2-1b", {**OLD, "engine_version": "0.33.0"}, True),
        ("gpt-oss-20b", {"gpus": "1xA100-80GB", "engine_version": "0.33.0"}, True),
        ("gpt-oss-20b", {"gpus": "1xH100-80GB", "engine_version": "0.33.0"}, False),
    ],
)
def test_eight_bit_caches_by_card_and_release(model: str, options: dict[str, Any], *, stops: bool) -> None:
    if stops:
        assert "serving.kv_dtype" in refusal(model, **options, kv_dtype="fp8")
        return
    answer = memsheet.infer(model, **{**SERVED, **options}, kv_dtype="fp8")
    warned = any("converts no fp8" in note for note in answer.notes)
    assert warned is ("A100" in str(options["gpus"]))
    assert answer.cluster is not None
    assert bool(eight_bit_cache(answer.plan, answer.cluster.device, answer.model)) is warned


@pytest.mark.parametrize("model", ["llama-3.2-1b", "gpt-oss-20b"])
def test_groups_need_as_many_ranks(model: str) -> None:
    assert "2 GPUs" in refusal(model, attn_dp=2)
    assert memsheet.infer(model, **{**SERVED, "gpus": "2xH100-80GB"}, attn_dp=2).verdict is not None


FORMATS = ("awq-int4", "gptq-int4", "fp8", "fp8-block", "mxfp4")


@pytest.mark.parametrize(
    ("card", "version", "left"),
    [
        ("V100-32GB", "0.19.1", {"gptq-int4"}),
        ("V100-32GB", "0.11.0", {"gptq-int4"}),
        ("T4", "0.13.0", {"gptq-int4", "awq-int4"}),
        ("T4", "0.14.0", {"gptq-int4", "awq-int4", "fp8", "fp8-block"}),
        ("A100-80GB", "0.11.0", set(FORMATS)),
        ("H100-80GB", "0.33.0", set(FORMATS)),
    ],
)
def test_formats_that_a_release_reads_on_a_card(card: str, version: str, left: set[str]) -> None:
    asked = {**SERVED, "gpus": f"1x{card}", "attention": "sdpa", "engine_version": version, "fix": False}
    precision = {"parameters": "fp16", "compute": "fp16"} if card in ("V100-32GB", "T4") else {}
    asked["plan"] = {"precision": precision}
    problems = {name: problems_of("llama-3.2-1b", **asked, quantize=name) for name in FORMATS}
    assert {name for name in FORMATS if not problems[name]} == left
    told = [problem for found in problems.values() for problem in found]
    assert all(problem.refused and problem.field == "quantization.weights" for problem in told)


def problems_of(model: str, **asked: Any) -> tuple[Problem, ...]:
    """All that is wrong with a question."""
    try:
        memsheet.infer(model, **asked)
    except InputError as error:
        return error.problems
    return ()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("gpus", ["1xL4", None])
def test_packed_weights_are_not_multiplied_in_fp32(engine: str, gpus: str | None) -> None:
    asked: dict[str, Any] = {"engine": engine, "gpus": gpus, "quantize": "awq-int4", "max_model_len": 4096}
    assert "fp16 or bf16" in refusal(
        "llama-3.2-1b", **asked, plan={"precision": {"parameters": "fp32", "compute": "fp32"}}
    )
    assert memsheet.infer("llama-3.2-1b", **{**SERVED, **asked}, fix=False).plan.quantization is not None


@every("card", ["V100-32GB", "T4", "RTX3090", "L4"])
@every("model, length", [("qwen3-14b", 16384), ("gemma-3-4b", 8192), ("qwen3-32b", 4096)])
@every("engine", ["vllm", "sglang"])
def test_what_makes_room_is_refused_on_no_card(engine: str, model: str, length: int, card: str) -> None:
    """A change that is offered is a question that has the answer it is offered with."""
    asked: dict[str, Any] = {"engine": engine, "gpus": f"1x{card}", "max_model_len": length}
    asked |= {"memory_fraction": 0.9}
    if found := problems_of(model, **asked, fix=False):
        assert all(problem.refused for problem in found)
        return
    answer = memsheet.infer(model, **asked)
    offered = (answer.serving or {}).get("makes_room", ())
    assert offered or answer.verdict is None or answer.verdict.headroom_bytes >= 0
    for row in offered:
        changes = {FLAG_OF.get(key, key.rpartition(".")[2]): value for key, value in row["changes"].items()}
        again = memsheet.infer(model, **{**asked, **changes}, fix=False)
        assert again.verdict is not None
        assert again.verdict.result.value == row["result"], changes


FLAG_OF = {"quantization.weights": "quantize", "serving.max_sequences": "sequences"}
