"""What is missing gets a default that is seen: a ladder of lengths, the model's own length, a server for a
server's question, a few batches.
"""

from __future__ import annotations

import json

import pytest

import memsheet
from bundled import written_names
from laws import every
from memsheet.budget import Result
from memsheet.catalog import model_names
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import read_model
from memsheet.report.json.sheet import sheet_document
from memsheet.search.solve.length_ladder import SHORTEST, ladder_lengths

EXIT = {Result.FITS: 0, Result.DOES_NOT_FIT: 10, Result.UNCERTAIN: 11}
SAMPLE = (
    "gpt2",
    "llama-3.2-1b",
    "bert-base",
    "t5-small",
    "vit-base",
    "mamba-130m",
    "qwen2-vl-2b",
    "olmoe-1b-7b",
    "deepseek-v2-lite",
)


def spec(name: str):
    return read_model(name, catalog=catalog_entry, names=model_names())


@every("name", written_names())
def test_a_ladder_doubles_up_to_the_models_own_length(name):
    lengths, own = ladder_lengths(spec(name)), spec(name).max_positions
    assert list(lengths) == sorted(set(lengths))
    assert all(length == SHORTEST << number for number, length in enumerate(lengths[:-1]))
    assert own is None or lengths[-1] == own


@pytest.mark.parametrize("name", SAMPLE)
def test_a_model_and_a_card_are_enough(name, capsys):
    for task in ("train", "infer"):
        answer = getattr(memsheet, task)(name, gpus="4090")
        assert main([task, name, "--gpus", "4090", "--json"]) == EXIT[answer.verdict.result]
        assert json.loads(capsys.readouterr().out)["verdict"]["result"] == answer.verdict.result.value
        assert any("gpus = 1xRTX4090" in line for line in answer.assumed)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gpt2", "mamba-130m"])
def test_every_step_of_a_ladder_is_what_its_own_question_says(name):
    answer = memsheet.train(name, gpus="1xRTX4080")
    for step in answer.ladder:
        alone = memsheet.train(name, gpus="1xRTX4080", seq_len=step.seq_len, fix=False)
        assert (step.device_bytes, step.result) == (alone.verdict.device.value, alone.verdict.result)
        assert not alone.ladder
        if step.recomputed_bytes is not None:
            again = memsheet.train(name, gpus="1xRTX4080", seq_len=step.seq_len, recompute="full", fix=False)
            assert (step.recomputed_bytes, step.recomputed_result) == (
                again.verdict.device.value,
                again.verdict.result,
            )
    fitting = [step.seq_len for step in answer.ladder if step.result is Result.FITS]
    assert answer.plan.training.seq_len == (max(fitting) if fitting else answer.ladder[0].seq_len)
    assert answer.assumed[0].startswith(f"seq_len = {answer.plan.training.seq_len} ")
    document = sheet_document(answer)
    assert [(step["seq_len"], step["device_bytes"], step["result"]) for step in document["ladder"]] == [
        (step.seq_len, step.device_bytes, step.result.value) for step in answer.ladder
    ]
    assert document["plan"]["seq_len"] == answer.plan.training.seq_len


def test_what_fits_at_no_length_is_answered_at_the_first_with_its_cure():
    answer = memsheet.train("llama-3.1-8b", gpus="1xRTX4090")
    assert answer.plan.training.seq_len == SHORTEST
    assert answer.verdict.result is Result.DOES_NOT_FIT
    assert answer.verdict.cheapest_fix is not None


def test_without_a_card_a_ladder_has_no_results_and_a_length_that_is_asked_has_no_ladder():
    assert {step.result for step in memsheet.train("gpt2").ladder} == {None}
    assert "ladder" not in sheet_document(memsheet.train("gpt2", seq_len=512))


def test_a_test_that_must_fit_says_its_length():
    with pytest.raises(InputError, match="seq_len"):
        memsheet.assert_fits("gpt2", gpus="1xRTX4090")


def test_what_is_served_is_as_long_as_the_model_was_made_for():
    for name in ("gpt2", "llama-3.2-1b", "t5-small"):
        answer, own = memsheet.infer(name), spec(name).max_positions
        assert answer.plan.serving.max_model_len == (own or 4096)
        assert any(line.startswith(f"serving.max_model_len = {own or 4096} ") for line in answer.assumed)


@pytest.mark.parametrize("asked", [{"max_model_len": 1024}, {"sequences": 4}, {"memory_fraction": 0.8}])
def test_a_servers_question_goes_to_the_server_and_names_the_other_engine(asked):
    for name, gpus, engine in (
        ("llama-3.2-1b", "h100", "vllm"),
        ("t5-small", "h100", "transformers"),
        ("llama-3.2-1b", "m4-16gb", "llama.cpp"),
    ):
        if engine != "vllm" and "max_model_len" not in asked:
            continue
        answer = memsheet.infer(name, gpus=gpus, **asked)
        assert answer.plan.engine == engine
        if engine == "vllm":
            assert any(line == "engine = vllm" for line in answer.assumed)
            assert answer.verdict == memsheet.infer(name, gpus=gpus, engine="vllm", **asked).verdict
        for other in answer.other_engines:
            alone = memsheet.infer(name, gpus=gpus, engine=other.engine, **asked)
            assert (other.device, other.result) == (alone.verdict.device, alone.verdict.result)
    assert memsheet.infer("llama-3.2-1b", gpus="h100").plan.engine == "transformers", (
        "nothing of a server was asked"
    )


@pytest.mark.slow
def test_a_plan_without_a_batch_looks_at_several_and_names_each():
    advice = memsheet.plan("llama-tiny", gpus="2xRTX4090", engine="fsdp2", top=1)
    assert [batch for batch, *_ in advice.batches] == [2, 8, 32]
    assert any("global_batch = 8" in note for note in advice.ranking.notes)
    assert any("seq_len = " in note for note in advice.ranking.notes)
    asked = memsheet.plan("llama-tiny", gpus="2xRTX4090", engine="fsdp2", top=1, global_batch=32)
    swept = {batch: best for batch, best, _ in advice.batches}[32]
    assert not asked.batches
    assert swept.request == asked.ranking.plans[0].request
