"""A YAML that is put over a recipe of Megatron-Bridge is read by its groups, and the rest is open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError

OVERRIDES: dict[str, Any] = {
    "model": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "sequence_parallel": True},
    "train": {"micro_batch_size": 1, "global_batch_size": 64},
    "dataset": {"seq_length": 2048},
    "checkpoint": {"pretrained_checkpoint": "/some/where/Qwen3-8B"},
}


def checked(folder: Path, tree: Any) -> memsheet.Checked:
    (folder / "over.yaml").write_text(json.dumps(tree))
    return memsheet.check(folder / "over.yaml", gpus="8xH100-80GB")


def test_what_it_says_is_in_the_plan_and_no_verdict_is_sure(tmp_path: Path) -> None:
    found = checked(tmp_path, OVERRIDES)
    assert found.answer is not None
    plan = found.answer.plan
    assert (plan.mesh.tp, plan.mesh.pp, plan.mesh.dp_shard * plan.mesh.dp_replicate) == (2, 2, 2)
    assert plan.sequence_parallel
    assert (plan.training.seq_len, plan.training.microbatch) == (2048, 1)
    assert found.result is Result.UNCERTAIN
    assert "recipe" in str(found.doubt)


def test_without_a_checkpoint_no_model_is_named(tmp_path: Path) -> None:
    found = checked(tmp_path, {at: held for at, held in OVERRIDES.items() if at != "checkpoint"})
    assert found.answer is None
    assert "no model is named" in str(found.no_model)


@pytest.mark.parametrize("left_out", ["model", "train"])
def test_a_tree_without_its_groups_is_none(tmp_path: Path, left_out: str) -> None:
    with pytest.raises(InputError, match="not recognised"):
        checked(tmp_path, {at: held for at, held in OVERRIDES.items() if at != left_out})
