"""Settings of people's own for what generates, and Unsloth's generation: read by names, never sure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError

OWN: dict[str, Any] = {
    "model": {"name": "Qwen/Qwen2.5-7B-Instruct", "torch_dtype": "bfloat16"},
    "generation": {"max_new_tokens": 512, "temperature": 0.7},
    "inference": {"batch_size": 8},
}
SERVED: dict[str, Any] = {
    "model": {"name": "Qwen/Qwen3-8B", "max_seq_length": 8192, "gpu_memory_utilization": 0.8},
    "generation": {"max_new_tokens": 512},
}
UNSLOTH = """from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained({given}, max_seq_length=4096, {more})
FastLanguageModel.for_inference(model)
out = model.generate(**tokenizer("a", return_tensors="pt"), max_new_tokens=64)
"""


def checked(folder: Path, tree: Any, name: str = "config.json") -> memsheet.Checked:
    (folder / name).write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return memsheet.check(folder / name, gpus="1xH100-80GB")


def test_a_model_and_an_answer_are_a_generation(tmp_path: Path) -> None:
    found = checked(tmp_path, OWN)
    assert found.answer is not None
    plan = found.answer.plan
    assert (found.result, found.answer.model.name, plan.engine) == (
        Result.UNCERTAIN,
        "qwen2.5-7b",
        "transformers",
    )
    assert getattr(plan.workload, "max_sequences", None) == 8
    assert plan.precision.parameters.name == "bf16"
    more = checked(tmp_path, {**OWN, "inference": {"batch_size": 64}})
    assert more.answer is not None
    assert more.answer.sheets[0].device.value > found.answer.sheets[0].device.value


def test_a_share_of_the_card_is_an_engines(tmp_path: Path) -> None:
    found = checked(tmp_path, SERVED)
    assert found.answer is not None
    plan, (read,) = found.answer.plan, found.reads.values()
    assert (found.result, plan.engine, read.request["serving.memory_fraction"]) == (
        Result.UNCERTAIN,
        "vllm",
        0.8,
    )
    assert getattr(plan.workload, "max_model_len", None) == 8192


@pytest.mark.parametrize(
    "tree",
    [
        {**OWN, "learning_rate": 1e-4},
        {**OWN, "training": {"seed": 1}},
        {**OWN, "model": {"name": "Qwen/Qwen2.5-7B-Instruct", "device": "cpu"}},
        {**OWN, "server": {"base_url": "localhost"}},
        {**OWN, "generation": {"max_tokens": 512}},
        {**OWN, "model": {"name": "ours"}},
        {**OWN, "model": {}, "a_model": {"name": "Qwen/Qwen3-8B"}, "b_model": {"name": "Qwen/Qwen3-4B"}},
        {**SERVED, "epochs": 3},
        {**SERVED, "model": {"name": "Qwen/Qwen3-8B", "gpu_memory_utilization": 80}},
    ],
)
def test_what_trains_or_asks_elsewhere_is_none(tmp_path: Path, tree: Any) -> None:
    with pytest.raises(InputError, match="not recognised"):
        checked(tmp_path, tree)


@pytest.mark.parametrize(
    ("more", "bits"),
    [("", "nf4"), ("load_in_4bit=False", "bf16"), ("load_in_4bit=False, load_in_8bit=True", "int8")],
)
def test_unsloths_generation_has_its_bits_and_is_not_sure(tmp_path: Path, more: str, bits: str) -> None:
    text = UNSLOTH.format(given='model_name="Qwen/Qwen2.5-7B-Instruct"', more=more)
    found = checked(tmp_path, text, "infer.py")
    assert found.answer is not None
    held = found.answer.plan.quantization
    named = held.weights.name if held and held.weights else found.answer.plan.precision.parameters.name
    assert (found.result, named) == (Result.UNCERTAIN, bits)


def test_a_model_of_ones_own_is_asked_for(tmp_path: Path) -> None:
    found = checked(tmp_path, UNSLOTH.format(given='model_name="./ours"', more=""), "infer.py")
    assert "--model" in found.no_model
    with pytest.raises(InputError, match="not recognised"):
        checked(tmp_path, UNSLOTH.format(given='"a/b-7B"', more="fast_inference=True"), "infer.py")


ARGUED = """from transformers import AutoModelForCausalLM, Seq2SeqTrainingArguments
arguments = Seq2SeqTrainingArguments(output_dir="o")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B-Instruct", torch_dtype="bfloat16")
{line}
out = model.generate(**rows(arguments), max_new_tokens=64)
"""


@pytest.mark.parametrize(
    ("line", "task"),
    [
        ("# Trainer(model).train()", "infer"),
        ("Seq2SeqTrainer(model=model, args=arguments).train()", "train"),
        ("train_model(model)", "train"),
        ("trainer.train()", "train"),
    ],
)
def test_arguments_of_what_only_generates_are_no_trainings(tmp_path: Path, line: str, task: str) -> None:
    (read,) = checked(tmp_path, ARGUED.format(line=line), "a.py").reads.values()
    assert read.request.get("task", "train") == task


PLACES = """{start}
python scripts/infer.py --model_name_or_path "$MODEL" --cutoff_len 2048 --max_new_tokens 64
"""


@pytest.mark.parametrize(
    ("start", "model"),
    [
        ("MODEL=$(ls -d saves/qwen2.5-7b/full/checkpoint-* 2>/dev/null | sort | head -1)", "qwen2.5-7b"),
        ('B=saves/qwen2.5-7b\nMODEL=$(ls -d "${B}"/checkpoint-* | tail -1)', "qwen2.5-7b"),
        ('MODEL="saves/qwen2.5-7b/full/${SET}/checkpoint-$AT"', "qwen2.5-7b"),
        ('MODEL="saves/ours/${SET}/checkpoint-$AT"', None),
        ("MODEL=$(ls -d saves/qwen2.5-7b/full/checkpoint | xargs basename)", None),
        ("MODEL=$(cat saves/qwen2.5-7b/*)", None),
    ],
)
def test_folders_that_a_run_chooses_leave_the_models_name(
    tmp_path: Path, start: str, model: str | None
) -> None:
    found = checked(tmp_path, PLACES.format(start=start), "a.sh")
    assert (found.answer.model.name if found.answer else None) == model
    assert found.result in (None, Result.UNCERTAIN)
