"""Commands that train what a YAML beside them says, with words over it."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.exchange.shared.settings_launches import settings_launches, with_words_over
from memsheet.report.shared.checked import Checked

WILD = Path(__file__).parents[2] / "wild_configs"
RUN = "uv run examples/run_grpo.py --config recipes/grpo.yaml"


def checked(folder: Path, command: str, config: str, place: str) -> Checked:
    (folder / ".git").mkdir(exist_ok=True)
    file = folder / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((WILD / config).read_text())
    script = folder / "run.sh"
    script.write_text(f"#!/bin/bash\n{command}\n")
    return memsheet.check(script, gpus="8xH100-80GB")


def roles_of(found: Checked) -> dict[str, dict[str, object]]:
    assert found.answer is not None
    assert found.answer.job is not None
    return dict(found.answer.job["roles"])


def test_a_command_s_words_stand_over_its_file(tmp_path: Path) -> None:
    plain = checked(tmp_path, RUN, "nl-grpo-math-1b.yaml", "recipes/grpo.yaml")
    changed = checked(
        tmp_path, f"{RUN} policy.model_name=Qwen/Qwen2.5-7B ++policy.generation.vllm_cfg.gpu_memory_utilization=0.3",
        "nl-grpo-math-1b.yaml", "recipes/grpo.yaml",
    )  # fmt: skip
    assert roles_of(plain)["actor"]["model"] != roles_of(changed)["actor"]["model"] == "qwen2.5-7b"
    assert roles_of(changed)["rollout"]["plan"]["serving"]["memory_fraction"] == 0.3  # type: ignore[index]
    assert any("2 words of its command" in line for read in changed.reads.values() for line in read.assumed)


def test_a_file_by_itself_and_one_of_a_folder_and_a_name(tmp_path: Path) -> None:
    usual = checked(
        tmp_path, "python examples/run_grpo.py", "nl-grpo-math-1b.yaml", "examples/configs/grpo_math_1B.yaml"
    )
    assert "rollout" in roles_of(usual)
    named = checked(
        tmp_path, "python examples/start_rlvr_pipeline.py --config_path own --config_name rlvr", "ro-qwen2.5-7b-rlvr.yaml", "examples/own/rlvr.yaml",
    )  # fmt: skip
    assert "reward_llm_judge" in roles_of(named)
    areal = checked(
        tmp_path, "python3 train.py --config=grpo.yaml rollout.backend=sglang:d2 actor.backend=fsdp:d2", "ar-gsm8k-grpo.yaml", "grpo.yaml",
    )  # fmt: skip
    assert areal.answer is not None
    assert areal.answer.job is not None
    assert areal.answer.job["placement"] == {"actor": [0, 2], "rollout": [2, 2]}


@pytest.mark.parametrize("place", ["../outside.yaml", "/etc/passwd.yaml", "absent.yaml"])
def test_nothing_is_opened_that_lies_elsewhere(tmp_path: Path, place: str) -> None:
    home = tmp_path / "home"
    (home / ".git").mkdir(parents=True)
    (tmp_path / "outside.yaml").write_text((WILD / "nl-grpo-math-1b.yaml").read_text())
    script = home / "run.sh"
    script.write_text(f"python examples/run_grpo.py --config {place}\n")
    with pytest.raises(memsheet.InputError):
        memsheet.check(script, gpus="8xH100-80GB")


def test_words_and_what_they_leave_out() -> None:
    (launch,) = settings_launches(
        "python a/run_grpo.py --config b.yaml x.y=[1,2] +z=null ~w.v plain q=${UNSET}\n"
    )
    assert launch.files == ("b.yaml",)
    assert with_words_over({"w": {"v": 1, "u": 2}, "x": 3}, launch) == {
        "w": {"u": 2}, "x": {"y": [1, 2]}, "z": None, "q": "a variable that nobody set",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["python train.py --lr 1", "cat --config a.yaml", "python x.py --config run.json"]
)
def test_what_is_no_such_command(text: str) -> None:
    assert list(settings_launches(text)) == []
