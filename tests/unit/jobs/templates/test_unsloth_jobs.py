"""Unsloth's GRPO as a job: adapters that train, and vLLM that runs with the base's own tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.report.shared.checked import Checked
from memsheet.sheet import Component

SCRIPT = """{before}from unsloth import FastLanguageModel
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
model, tokenizer = FastLanguageModel.from_pretrained("Qwen/Qwen3-0.6B", max_seq_length=1024, load_in_4bit=True, {load})
model = FastLanguageModel.get_peft_model(model, r=16, use_gradient_checkpointing="unsloth")
def score(completions, **more): return [1.0 for _ in completions]
cfg = GRPOConfig(output_dir="o", optim="adamw_8bit", max_prompt_length=256, max_completion_length=256, {more})
GRPOTrainer(model=model, processing_class=tokenizer, reward_funcs=[score], args=cfg,
    train_dataset=load_dataset("trl-lib/tldr", split="train")).train()
"""
FAST = "fast_inference=True, gpu_memory_utilization=0.5"
EIGHT = "per_device_train_batch_size=8, gradient_accumulation_steps=1, num_generations=8"
STANDBY = 'import os\nos.environ["UNSLOTH_VLLM_STANDBY"] = "1"\n'


def checked(folder: Path, load: str = FAST, more: str = EIGHT, before: str = "") -> Checked:
    file = folder / "grpo.py"
    file.write_text(SCRIPT.format(load=load, more=more, before=before))
    return memsheet.check(file, gpus="1xL4")


def job_of(found: Checked) -> dict[str, Any]:
    assert found.answer is not None
    assert found.answer.job is not None
    return dict(found.answer.job)


def held(found: Checked, phase: str, role: str, component: Component | None = None) -> int:
    """The most that a role's items of a kind come to in a phase."""
    assert found.answer is not None
    sheet = found.answer.sheets[0]
    return max(
        sum(
            int(item.at[when].value)
            for item in sheet.items
            if item.path.startswith(f"{role}/") and when in item.at and component in (None, item.component)
        )
        for when in sheet.instants
        if str(when.value).startswith(f"{phase}/")
    )


def test_the_base_is_counted_once_with_what_trains(tmp_path: Path) -> None:
    found = checked(tmp_path)
    assert held(found, "gen", "actor", Component.PARAMETERS) > 0
    assert held(found, "gen", "rollout", Component.PARAMETERS) == 0
    assert held(found, "gen", "rollout", Component.BUFFERS) > 0  # vLLM's own places of adapters


def test_the_server_takes_its_share_of_what_is_free(tmp_path: Path) -> None:
    found = checked(tmp_path)
    assert found.answer is not None
    card = found.answer.cluster.device.framework_bytes if found.answer.cluster else 0
    share = job_of(found)["roles"]["rollout"]["plan"]["serving"]["memory_fraction"]
    assert 0.5 * (card - 2**30) / card == pytest.approx(share)


def test_standby_keeps_the_weights_and_frees_the_cache_while_it_trains(tmp_path: Path) -> None:
    asleep, awake = checked(tmp_path, before=STANDBY), checked(tmp_path)
    assert held(awake, "update_actor", "rollout", Component.KV_CACHE) > 0
    assert held(asleep, "update_actor", "rollout", Component.KV_CACHE) == 0
    assert held(asleep, "update_actor", "actor", Component.PARAMETERS) == held(
        awake, "update_actor", "actor", Component.PARAMETERS
    )
    shares = [
        job_of(one)["roles"]["rollout"]["plan"]["serving"]["memory_fraction"] for one in (asleep, awake)
    ]
    assert shares[0] > shares[1]  # which it sets itself, whatever is said


@pytest.mark.parametrize(("rows", "rounds", "runs"), [(1, 1, 8), (4, 2, 4), (8, 1, 8), (3, 1, 8)])
def test_rows_are_a_group_where_a_step_is_no_multiple_of_one(
    tmp_path: Path, rows: int, rounds: int, runs: int
) -> None:
    more = f"per_device_train_batch_size={rows}, gradient_accumulation_steps={rounds}, num_generations=8"
    found = checked(tmp_path, more=more)
    assert job_of(found)["roles"]["actor"]["plan"]["microbatch"] == runs


def test_beta_zero_removes_exactly_the_pass_of_the_reference(tmp_path: Path) -> None:
    with_it, without = (checked(tmp_path, more=f"{EIGHT}, beta={beta}") for beta in (0.04, 0.0))
    phases = [[one["name"] for one in job_of(found)["phases"]] for found in (with_it, without)]
    assert [name for name in phases[0] if name != "ref"] == phases[1]
    assert job_of(with_it)["roles"] == job_of(without)["roles"]


def test_without_a_server_it_generates_with_what_trains(tmp_path: Path) -> None:
    found = checked(tmp_path, load="fast_inference=False")
    assert job_of(found)["roles"]["rollout"]["plan"]["engine"] == "transformers"
    assert held(found, "gen", "rollout", Component.PARAMETERS) == 0


def test_rows_are_as_long_as_their_two_parts(tmp_path: Path) -> None:
    assert job_of(checked(tmp_path))["roles"]["actor"]["plan"]["seq_len"] == 512
