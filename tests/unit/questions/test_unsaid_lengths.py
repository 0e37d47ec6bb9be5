"""Models of which nobody says what length they were made for: a server of theirs is no sure stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.questions.check import check_configuration_files


def checked(command: str, folder: Path, gpus: str) -> Any:
    file = folder / "serve.sh"
    file.write_text(command + "\n", encoding="utf-8")
    unsaid = dict.fromkeys(("parameters", "nodes", "per_node", "host_memory", "cluster"))
    return check_configuration_files((str(file),), None, {**unsaid, "gpus": gpus}, {})


def test_a_release_takes_its_own_length_and_not_its_bases(tmp_path: Path) -> None:
    found = checked("vllm serve Qwen/Qwen2.5-72B-Instruct-AWQ", tmp_path, "1xA100-80GB")
    assert found.answer.plan.serving.max_model_len == 32768
    assert found.answer.verdict.result.value == "fits"


@pytest.mark.parametrize(
    "model", ["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "someone/Qwen2.5-Math-7B-Medical-SFT"]
)
def test_a_tuned_model_may_be_longer_than_its_base(model: str, tmp_path: Path) -> None:
    found = checked(f"vllm serve {model} --max-model-len 32768", tmp_path, "1xA100-80GB")
    assert not any(rule.id == "length-beyond-model" for rule, _ in found.mistakes)
    assert not found.why_not
    assert found.answer.verdict.result.value in ("fits", "uncertain")


def test_a_base_is_still_as_long_as_its_own_file_says(tmp_path: Path) -> None:
    found = checked("vllm serve Qwen/Qwen2.5-Math-7B --max-model-len 32768", tmp_path, "1xA100-80GB")
    assert any(rule.id == "length-beyond-model" for rule, _ in found.mistakes)


@pytest.mark.parametrize(("gpus", "result"), [("1xA100-80GB", "uncertain"), ("4xA100-80GB", "fits")])
def test_a_tuned_one_whose_base_does_not_fit_is_not_sure(gpus: str, result: str, tmp_path: Path) -> None:
    command = f"vllm serve open-thoughts/OpenThinker-32B -tp {gpus[0]}"
    found = checked(command, tmp_path, gpus)
    assert found.answer.verdict.result.value == result
    assert ("is not known" in found.doubt) == (result == "uncertain")


def test_a_length_that_the_engine_finds_is_one_that_fits(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len auto\n")
    found = memsheet.check(tmp_path / "a.sh", gpus="1x24GB")
    assert found.answer is not None
    assert (found.answer.serving or {})["short_bytes"].value <= 0
    assert 0 < int(found.answer.plan.serving.max_model_len or 0) < 131072
