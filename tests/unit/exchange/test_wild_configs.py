"""Configurations as people run them: read without a crash, and none told that it does not start, for each of
them does.

``tests/wild_configs/index.json`` names the repository, commit, path and licence of each. Comments and long
texts are left out; of batch scripts the directives are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.cli import main
from memsheet.cli import question as flags_of

FOLDER = Path(__file__).parents[2] / "wild_configs"
INDEX = json.loads((FOLDER / "index.json").read_text())
FORMATS = {
    "ah": ("trl", "slurm"),
    "ax": ("axolotl",),
    "lf": ("llamafactory", "llamafactory-v1"),
    "mg": ("slurm", "megatron", "megatron-generation"),
    "tt": ("slurm", "torchtitan-toml"),
    "ds": ("deepspeed",),
    "ac": ("accelerate",),
    "dc": ("deepspeed-chat", "transformers", "deepspeed", "pytorch"),
    "oi": ("open-instruct", "accelerate", "transformers"),
    "tr": ("transformers", "trl", "accelerate"),
    "ms": ("swift", "swift-megatron", "pytorch"),
    "ve": ("verl",),
    "or": ("openrlhf",),
    "sl": ("slime",),
    "nl": ("nemo-rl",),
    "pr": ("prime-rl",),
    "ar": ("areal",),
    "ro": ("roll",),
    "lg": ("litgpt",),
    "mf": ("llm-foundry",),
    "nt": ("nanotron",),
    "nm": ("nemo",),
    "ls": ("llama.cpp",),
    "tl": ("tensorrt-llm",),
    "tg": ("tgi",),
    "nr": ("nemo-recipe",),
    "ry": ("vllm",),
    "dy": ("vllm", "sglang", "tensorrt-llm"),
    "vr": ("vllm",),
    "mo": ("vllm",),
    "cv": ("vllm",),
    "sr": ("sglang", "tensorrt-llm", "vllm"),
    "sh": ("pytorch", "accelerate", "vllm", "sglang", "transformers"),
    "tu": ("torchtune", "torchtune-ppo", "torchtune-async", "torchtune-serve"),
}
PERMISSIVE = {"Apache-2.0", "BSD-3-Clause", "MIT"}


def test_every_file_has_its_source_and_a_licence_that_permits_it() -> None:
    assert {row["file"] for row in INDEX} == {path.name for path in FOLDER.iterdir()} - {"index.json"}
    for row in INDEX:
        assert row["licence"] in PERMISSIVE
        assert len(row["commit"]) == 40
        assert row["repo"]
        assert row["path"]


WHOLE = 8
"""Of so many files one is looked over for cures, too, which takes longer than all the rest."""


@pytest.fixture
def without_cures(monkeypatch: pytest.MonkeyPatch) -> None:
    said = flags_of.job_arguments
    monkeypatch.setattr(flags_of, "job_arguments", lambda asked: {**said(asked), "cures": False})


def _checked_launches(name: str, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    """What a file comes to, or each server of it."""
    code = main(["check", str(FOLDER / name), "--seq-len", "2048", "--gpus", "8xH100-80GB", "--json", *more])
    told = json.loads(capsys.readouterr().out)
    assert code in (0, 2, 10, 11)
    several = told["schema"] == "memsheet/launches/1"
    found = [one["checked"] for one in told["launches"]] if several else [told]
    assert code != 2 or any(one["why_not"] for one in found)
    return found


@pytest.mark.parametrize(("place", "name"), [(place, row["file"]) for place, row in enumerate(INDEX)])
def test_what_runs_is_not_told_that_it_does_not_start(
    place: int, name: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """A file without a model that is known is one of some model's, too."""
    if place % WHOLE:
        request.getfixturevalue("without_cures")
    checked = _checked_launches(name, capsys)
    if any(found["sheet"] is None for found in checked):
        checked += _checked_launches(name, capsys, "--model", "llama-3.1-8b")
    for found in checked:
        assert found["schema"] == "memsheet/checked/1", found
        assert found["starts"], [one for one in found["mistakes"] if one["stops"]]
        assert {one["format"] for one in found["files"]} <= {*FORMATS[name[:2]], "torchrun", "deepspeed"}
