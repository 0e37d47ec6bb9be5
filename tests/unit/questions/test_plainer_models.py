"""What stands in for a model whose layers an engine has code of its own for; servers that make vectors or
scores and have no output matrix.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import Problem, input_error
from memsheet.formulas.states.params import parameter_tensors, tower_tensors
from memsheet.questions.plainer_models import plainer_model
from memsheet.questions.question_parts import read_named_model
from memsheet.questions.sized_models import in_place_of_model

TOWER = Problem(field="model", value="m", reason="its vision tower is not modelled for megatron")
LAYERS = Problem(field="model", value="m", reason="the layers of x are not modelled for megatron: caps")

SERVE = "vllm serve Qwen/{name} --max-model-len 8192{flags}\n"
EMBEDS, RANKS = "Qwen3-Embedding-8B", "Qwen3-Reranker-8B"


def parameters_of(entries: object) -> int:
    return sum(weight.elements * times for _, weight, times in entries)  # type: ignore[attr-defined]


def test_without_its_towers_a_model_has_the_other_parameters() -> None:
    spec = read_named_model("qwen2.5-vl-7b", "infer")
    plainer = plainer_model(spec, [TOWER])
    assert plainer is not None
    whole, towers = (parameters_of(found(spec)) for found in (parameter_tensors, tower_tensors))
    assert parameters_of(parameter_tensors(plainer[0])) == whole - towers > 0
    assert f"{towers / 1e9:.2f} B" in plainer[1]


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3-next-80b-a3b", "gemma-2-9b"])
def test_plain_attention_keeps_every_parameter(name: str) -> None:
    spec = read_named_model(name, "infer")
    plainer = plainer_model(spec, [LAYERS])
    assert plainer is not None
    assert parameters_of(parameter_tensors(plainer[0])) == parameters_of(parameter_tensors(spec))


def test_any_other_reason_has_no_stand_in() -> None:
    spec = read_named_model("llama-3.1-8b", "infer")
    assert plainer_model(spec, [Problem(field="model", value="m", reason="is a riddle")]) is None
    assert plainer_model(spec, [TOWER]) is None


def test_a_file_of_such_a_model_has_a_sheet_with_a_doubt(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "megatron sft --model Qwen/Qwen2.5-VL-7B-Instruct --tensor_model_parallel_size 2 "
        "--micro_batch_size 1 "
        "--global_batch_size 16 --max_length 2048\n"
    )
    checked = memsheet.check(tmp_path / "run.sh", gpus="8xH100-80GB")
    assert checked.result is Result.UNCERTAIN
    assert "language model alone" in checked.doubt


@pytest.mark.parametrize(
    ("name", "flags", "output"),
    [
        (EMBEDS, "", False),
        (EMBEDS, " --runner pooling", False),
        (EMBEDS, " --convert embed", False),
        (EMBEDS, " --runner generate", True),
        (RANKS, " --task score", False),
        (RANKS, "", True),
        ("Qwen3-8B", "", True),
    ],
)
def test_pooled_models_have_no_output(name: str, flags: str, output: bool, tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(SERVE.format(name=name, flags=flags))
    found = memsheet.check(tmp_path / "serve.sh", gpus="1xA100-80GB")
    assert found.answer is not None
    assert (found.answer.model.head.kind == "causal_lm") is output
    assert not any("--runner" in at or "--convert" in at for at, _ in found.reads["serve.sh"].unmodelled)


@pytest.mark.parametrize(
    ("task", "head"),
    [
        ("", "causal_lm"),
        ("--task_type seq_cls --num_labels 2", "none"),
        ("--task_type causal_lm", "causal_lm"),
    ],
)
def test_a_task_that_tells_labels_apart_has_no_vocabulary(task: str, head: str, tmp_path: Path) -> None:
    words = f"swift sft --model Qwen/Qwen2.5-0.5B --tuner_type lora --dataset a --max_length 512 {task}"
    (tmp_path / "sft.sh").write_text(f"{words} --per_device_train_batch_size 1\n")
    found = memsheet.check(tmp_path / "sft.sh", gpus="1xA100-80GB")
    assert found.answer is not None
    assert found.answer.model.head.kind == head
    assert found.result is Result.FITS


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_a_model_that_cannot_be_put_on_record_is_its_language_model_with_room_for_its_towers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The range holds what the whole model needs, as its own code on record tells."""
    (tmp_path / "run.sh").write_text(
        "NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-VL-7B-Instruct --train_type full "
        "--torch_dtype bfloat16 "
        f"--per_device_train_batch_size 1 --max_length 2048 --deepspeed {stage}\n"
    )

    def missing(_: object) -> None:
        reason = "has no layers written down here, and an extra that reads its own code is missing (torch)"
        raise input_error("model_type", "qwen2_5_vl", reason, "pip install it")

    recorded = memsheet.check(tmp_path / "run.sh", gpus="4xH200").answer
    monkeypatch.setattr("memsheet.questions.question_parts.recording_of", missing)
    found = memsheet.check(tmp_path / "run.sh", gpus="4xH200")
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert recorded is not None
    assert recorded.verdict is not None
    assert "language model alone" in found.doubt
    assert "pip install it" in found.doubt
    device = found.answer.verdict.device
    assert device.low <= recorded.verdict.device.value <= device.high


def test_a_bundled_model_by_its_size_has_as_many_parameters_as_it_has() -> None:
    spec = read_named_model("qwen2.5-vl-7b", "infer")
    sized = in_place_of_model("Qwen/Qwen2.5-VL-7B-Instruct", [TOWER])
    assert sized is not None
    layer = parameters_of(parameter_tensors(sized[0].spec)) // sized[0].spec.layers
    apart = parameters_of(parameter_tensors(sized[0].spec)) - parameters_of(parameter_tensors(spec))
    assert abs(apart) <= layer
