"""The most sequences and the longest ones of servers with a pool, which takes all there is whatever is
asked.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.catalog import find_model, model_names
from memsheet.questions.question_parts import parse_question
from memsheet.readers.model import read_model
from memsheet.search.solve.targets import Solution, most_sequences, solve_sequence_length


def solved(find: Any, model: str, gpus: str, **options: Any) -> Solution:
    name, request, cluster, _ = parse_question("infer", model, {"gpus": gpus, **options})
    found: Solution = find(read_model(name, catalog=find_model, names=model_names()), request, cluster)
    return found


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_as_many_sequences_as_the_pool_surely_holds(engine: str) -> None:
    found = solved(most_sequences, "llama-3.1-8b", "1xH100-80GB", engine=engine, max_model_len=8192).found
    assert found is not None
    assert found.pool is not None
    answer = memsheet.infer(
        "llama-3.1-8b", gpus="1xH100-80GB", engine=engine, max_model_len=8192, sequences=found.value
    )
    assert answer.serving is not None
    assert answer.serving["asked"]["held_low"] == found.value <= answer.serving["max_sequences"]["8192"]
    more = memsheet.infer(
        "llama-3.1-8b", gpus="1xH100-80GB", engine=engine, max_model_len=8192, sequences=found.value + 1
    )
    assert (more.serving or {})["asked"]["held_low"] <= found.value


def test_longer_sequences_on_more_ranks() -> None:
    lengths = []
    for gpus in (2, 4):
        solution = solved(solve_sequence_length, "llama-3.1-70b", f"{gpus}xH100-80GB", engine="vllm")
        lengths.append(solution.shown.value)
    assert lengths[0] < lengths[1]
    answer = memsheet.infer(
        "llama-3.1-70b", gpus="2xH100-80GB", engine="vllm", max_model_len=lengths[0] + 64, fix=False
    )
    assert answer.serving is not None
    assert answer.serving["short_bytes"].high > 0  # no more is sure


def test_sequences_that_are_pinned_are_all_held() -> None:
    one, many, limited = (
        memsheet.solve("max-model-len", "llama-3.1-8b", gpus="1xH100-80GB", engine="vllm", **more).found
        for more in ({}, {"sequences": 16}, {"max_num_seqs": 16})
    )
    assert limited is not None
    assert many is not None
    assert limited.value > many.value
    assert one is not None
    assert 16 * many.value < 1.1 * 450_000
    assert many.value < one.value


def _lengths(rng: random.Random) -> dict[str, int]:
    """Of prompts and answers, or of none; now and then what all prompts begin with."""
    prompt, output = rng.choice((300, 1000, 5000)), rng.choice((100, 200, 1000))
    asked = {"max_model_len": rng.choice((prompt + output, 8192))}
    asked |= {"prompt_tokens": prompt} if rng.random() < 0.8 else {}
    asked |= {"output_tokens": output} if "prompt_tokens" in asked and rng.random() < 0.8 else {}
    return asked | ({"shared_prefix_tokens": prompt * 4 // 5} if rng.random() < 0.5 else {})


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("seed", range(4))
def test_sequences_of_the_lengths_asked_are_held_and_one_more_is_not(engine: str, seed: int) -> None:
    rng = random.Random(seed)
    model, gpus = rng.choice(
        (("llama-3.1-8b", "1xH100-80GB"), ("qwen2.5-7b", "1xA100-80GB"), ("mixtral-8x7b", "4xH100-80GB"))
    )
    lengths = _lengths(rng)
    found = solved(most_sequences, model, gpus, engine=engine, **lengths).found
    assert found is not None, lengths
    for count, held in ((found.value, True), (found.value + 1, False)):
        answer = memsheet.infer(model, gpus=gpus, engine=engine, sequences=count, fix=False, **lengths)
        assert answer.serving is not None
        assert answer.verdict is not None
        surely = answer.verdict.result is Result.FITS and answer.serving["asked"]["held_low"] >= count
        assert surely is held, (count, lengths)


NAMED = (
    ("nvidia/Llama-3.3-70B-Instruct-FP4", "2xRTX5090"),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "1xRTXPRO6000"),
    ("RedHatAI/Qwen3-32B-NVFP4", "1xRTX5090"),
)


@pytest.mark.parametrize(("name", "gpus"), NAMED)
def test_each_row_of_a_copy_known_by_its_name_is_what_infer_says(name: str, gpus: str) -> None:
    """What a name leaves open is a range in every question: no length is sure that an answer doubts."""
    solution = memsheet.solve("max-model-len", name, gpus=gpus, engine="vllm")
    rows = [row for row in (solution.found, solution.expected, solution.beyond, solution.least) if row]
    assert rows
    for row in rows:
        answer = memsheet.infer(name, gpus=gpus, engine="vllm", max_model_len=row.value, fix=False)
        assert answer.verdict is not None
        assert answer.verdict.result is row.verdict.result
        assert answer.verdict.device == row.verdict.device


@pytest.mark.parametrize(
    ("model", "device", "options"),
    [
        ("moonshotai/Kimi-K2.5", "H200", {"engine": "vllm", "max_model_len": 131072}),
        ("llama-3.1-70b", "H100-80GB", {"engine": "sglang"}),
        ("llama-3.1-8b", "RTX4090", {"max_model_len": 32768, "sequences": 8}),
        ("llama-3.1-70b", "RTX4090", {"max_model_len": 32768, "per_node": 8}),
        ("llama-3.1-70b", "RTX4090", {"engine": "llama.cpp", "quantize": "gguf:Q4_K_M"}),
        ("llama-3.1-8b", "RTX4090", {"engine": "transformers", "max_model_len": 4096, "prompt_tokens": 512}),
    ],
)
def test_the_fewest_gpus_of_a_serving_question_are_those_infer_says(
    model: str, device: str, options: dict[str, Any]
) -> None:
    """Words of those that serve, or an engine that only serves, ask about serving; every row is an answer."""
    solution = memsheet.solve("gpus", model, gpus=device, **options)
    assert solution.task == "infer"
    found = solution.found
    assert found is not None
    count = found.value
    while count:
        node = {"per_node": min(count, options["per_node"])} if "per_node" in options else {}
        cards = {"gpus": f"{count}x{device}", **node}
        answer = memsheet.infer(model, **{**options, **cards}, fix=False)
        assert answer.verdict is not None
        assert (answer.verdict.result is Result.FITS) == (count == found.value)
        count //= 2
