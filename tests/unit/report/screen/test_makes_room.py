"""A server that may not start: how much is missing, rows that add up, and changes that do what they say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.cli.commands import COMMANDS
from memsheet.cli.line import flag_spellings
from memsheet.plan.check import RULES
from memsheet.plan.names import SHORT
from memsheet.report.screen.bars import components_by_size
from memsheet.report.screen.table import render_answer
from memsheet.report.shared.look import Look
from memsheet.report.shared.words import flags_for
from memsheet.sheet import OUTSIDE_TENSORS, Component

CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt-oss-120b", {"gpus": "1xH100-80GB", "engine": "vllm", "engine_version": "0.11.0"}),
    ("deepseek-v3", {"gpus": "8xH100-80GB", "engine": "vllm", "max_model_len": 8192}),
    ("llama-3.1-70b", {"gpus": "1xH100-80GB", "engine": "vllm"}),
    ("llama-3.1-70b", {"gpus": "1xH100-80GB", "engine": "sglang"}),
    ("llama-3.1-8b", {"gpus": "1xRTX4090", "engine": "vllm"}),
    (
        "nvidia/Llama-3.3-70B-Instruct-FP4",
        {"gpus": "2xRTX5090", "engine": "vllm", "max_model_len": 20224},
    ),
    ("gpt-oss-120b", {"gpus": "1xH100-80GB", "engine": "vllm", "engine_version": "0.11.0", "sequences": 16}),
    (
        "gpt-oss-120b",
        {"gpus": "1xH100-80GB", "engine": "vllm", "engine_version": "0.11.0", "max_num_seqs": 64},
    ),
    ("gemma-3-27b", {"gpus": "1xH100-80GB", "engine": "vllm"}),
)
NOT_ASKED = {"schema", "model", "task", "phase", "async_tp", "megatron_fsdp", "seq_len_kind"}
LIMITS = {"vllm": "max_num_seqs", "sglang": "max_running_requests"}
LONG = {key: short for short, key in SHORT.items()}
BETTER = [Result.DOES_NOT_FIT, Result.UNCERTAIN, Result.FITS]


def as_typed(changes: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with some changes: of sequences that nobody asked for at once, the engine's own limit."""
    words = LONG if "sequences" in options else {**LONG, "serving.max_sequences": LIMITS[options["engine"]]}
    return {**options, **{words.get(key, key): value for key, value in changes.items()}}


def screen(answer: Any, width: int = 100) -> str:
    return render_answer(answer, Look(width=width))


@pytest.mark.parametrize(("model", "options"), CASES)
def test_every_change_comes_to_what_is_promised(model: str, options: dict[str, Any]) -> None:
    before = memsheet.infer(model, **options)
    assert before.serving is not None
    assert before.serving["makes_room"]
    for one in before.serving["makes_room"]:
        after = memsheet.infer(model, **as_typed(one["changes"], options), fix=False)
        assert after.verdict is not None
        assert after.serving is not None
        assert after.verdict.result.value == one["result"]
        assert int(after.serving["short_bytes"].value) == one["lacks_bytes"]
        assert one["frees_bytes"] == int(before.serving["short_bytes"].value) - one["lacks_bytes"] > 0


@pytest.mark.parametrize(("model", "options"), CASES)
def test_no_change_is_offered_whose_answer_is_no_better(model: str, options: dict[str, Any]) -> None:
    """What has the same answer as the question, or a worse one, is no cure, unless less is missing then."""
    before = memsheet.infer(model, **options)
    assert before.verdict is not None
    assert before.serving is not None
    starts = int(before.serving["short_bytes"].value) <= 0
    for one in before.serving["makes_room"]:
        better = BETTER.index(Result(one["result"])) > BETTER.index(before.verdict.result)
        assert better or (not starts and (one["lacks_bytes"] > 0 or one["result"] == "uncertain"))
    shorter = before.serving["longest_that_fits"]
    assert shorter is None or shorter < before.plan.serving.max_model_len
    if shorter:
        lengths = {**options, "max_model_len": shorter}
        after = memsheet.infer(model, **lengths, fix=False)
        assert after.verdict is not None
        assert after.verdict.result is Result.FITS


@pytest.mark.parametrize(("model", "options"), CASES)
def test_no_format_is_named_that_takes_as_many_bits(model: str, options: dict[str, Any]) -> None:
    answer = memsheet.infer(model, **options)
    assert answer.serving is not None
    formats = [
        one["changes"]["quantization.weights"]
        for one in answer.serving["makes_room"]
        if "quantization.weights" in one["changes"]
    ]
    stored = answer.plan.quantization.weights.bits if answer.plan.quantization else 16
    assert all(stored > (4 if name == "awq-int4" else 8) for name in formats)
    if model == "gpt-oss-120b":
        assert formats == []


def test_the_longest_length_starts_and_the_next_does_not() -> None:
    options = {"gpus": "1xRTX4090", "engine": "vllm"}
    found = (memsheet.infer("llama-3.1-8b", **options).serving or {})["longest_that_fits"]
    starts, not_ = (
        memsheet.infer("llama-3.1-8b", **options, max_model_len=tokens).verdict
        for tokens in (found, found + 64)
    )
    assert starts is not None
    assert not_ is not None
    assert (starts.result, not_.result is Result.FITS) == (Result.FITS, False)


def test_what_is_missing_counts_what_comes_before_the_cache() -> None:
    """Weights beyond the card are missing too, not the cache of one sequence alone."""
    answer = memsheet.infer("llama-3.1-70b", gpus="1xH100-80GB", engine="vllm")
    assert answer.cluster is not None
    assert answer.serving is not None
    weights = int(answer.sheets[0].of(Component.PARAMETERS).value)
    sequence = int(answer.serving["kv_bytes_per_sequence"])
    given = answer.cluster.device.framework_bytes
    assert int(answer.serving["short_bytes"].low) > weights + sequence - given
    assert "more than the 79.1 GiB that a GPU gives" in screen(answer)
    assert "its fraction of the card lacks" in screen(answer).replace("\n             ", "")


@pytest.mark.parametrize(("model", "options"), CASES)
def test_rows_add_up(model: str, options: dict[str, Any]) -> None:
    sheet = memsheet.infer(model, **options).sheets[0]
    inside = sum(
        int(size.value) for component, size in components_by_size(sheet) if component not in OUTSIDE_TENSORS
    )
    assert inside == int(sheet.allocated.value)
    assert sum(int(size.value) for _, size in components_by_size(sheet)) == int(sheet.device.value)


@pytest.mark.parametrize("width", [80, 120])
def test_an_uncertain_server_may_refuse(width: int) -> None:
    answer = memsheet.infer(
        "gpt-oss-120b", gpus="1xH100-80GB", engine="vllm", engine_version="0.11.0", memory_fraction=0.92
    )
    assert answer.verdict is not None
    assert answer.verdict.result is Result.UNCERTAIN
    told = screen(answer, width)
    assert "may refuse to start" in told
    assert "vllm refuses" not in told
    assert "kv cache" in told.split("= allocated")[0]
    assert all(len(line) <= width for line in told.splitlines())


def test_nothing_is_tried_where_nobody_asks() -> None:
    answer = memsheet.infer("llama-3.1-70b", gpus="1xH100-80GB", engine="vllm", fix=False)
    assert "makes_room" not in (answer.serving or {})
    assert "What makes room" not in screen(answer)


def test_flags_can_be_copied() -> None:
    assert flags_for({"cuda_graphs": False, "gpus": "2xH100-80GB"}) == "--no-cuda-graphs --gpus 2xH100-80GB"


def test_every_key_of_a_plan_is_said_in_a_flag_that_commands_have() -> None:
    known = {word for flag in COMMANDS["train"].flags for word, _ in flag_spellings(flag)}
    told = {flags_for({key: True}).split()[0] for key in RULES if key not in NOT_ASKED}
    assert told - known == set()


def test_several_changes_that_suffice_are_all_needed() -> None:
    options = {"gpus": "4xH100-80GB", "engine": "vllm", "max_loras": 8, "lora_rank": 64}
    answer = memsheet.infer("qwen3-235b-a22b", **options)
    assert answer.serving is not None
    together = answer.serving["makes_room_together"]
    changes = {LONG.get(key, key): value for key, value in together["changes"].items()}
    after = memsheet.infer("qwen3-235b-a22b", **{**options, **changes}, fix=False)
    assert after.verdict is not None
    assert after.verdict.result is Result.FITS
    for left_out in changes:
        fewer = {key: value for key, value in changes.items() if key != left_out}
        without = memsheet.infer("qwen3-235b-a22b", **{**options, **fewer}, fix=False)
        assert without.verdict is not None
        assert without.verdict.result is not Result.FITS


def test_weights_as_released_are_better_than_a_format_that_takes_more() -> None:
    answer = memsheet.infer("gpt-oss-120b", gpus="1xH100-80GB", engine="vllm", quantize="fp8")
    told = screen(answer)
    assert "no --quantize" in told
    assert "--quantize fp8" not in told


ADAPTERS = {"gpus": "1xA10", "engine": "vllm", "lora_rank": 16, "max_loras": 30}


@pytest.mark.parametrize("asked", [4096, 8192, 12000, 16384, 65536])
def test_a_cure_is_not_what_is_asked_and_the_longest_expected_is_that_of_any_length(asked: int) -> None:
    """A length that is expected to start needs no shorter one, and how long one may be does not depend on
    what is asked.
    """
    answer = memsheet.infer("llama-3.1-8b", **ADAPTERS, max_model_len=asked)
    assert answer.serving is not None
    least = int(answer.serving["short_bytes"].value)
    longest = answer.serving["longest_expected"]
    ends = [
        memsheet.infer("llama-3.1-8b", **ADAPTERS, max_model_len=length, fix=False).serving or {}
        for length in (longest, longest + 64)
    ]
    assert int(ends[0]["short_bytes"].value) <= 0 < int(ends[1]["short_bytes"].value)
    assert (asked <= longest) == (least <= 0)
    shown = screen(answer, 120)
    assert (f"As asked it is expected to start, and so it is up to --max-model-len {longest}." in shown) == (
        least <= 0
    )
    assert (f"--max-model-len {longest} " in shown and "the longest that is expected to start" in shown) == (
        least > 0
    )
