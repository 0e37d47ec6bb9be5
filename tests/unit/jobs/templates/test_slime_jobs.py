"""slime's launches as jobs of several models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.report.shared.checked import Checked

WILD = Path(__file__).parents[3] / "wild_configs"
SCRIPT = (
    "MODEL_ARGS=(\n --num-layers 28\n)\nray job submit -- python3 -u train.py --actor-num-nodes 1 "
    "--actor-num-gpus-per-node 2 ${MODEL_ARGS[@]} ${NOBODY[@]} --hf-checkpoint Qwen/Qwen3-0.6B "
    "--rollout-batch-size 8 --n-samples-per-prompt 8 --rollout-max-response-len 1024 "
    "--rollout-max-prompt-len 1024 --global-batch-size 64 --tensor-model-parallel-size 1 "
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
    "--attention-dropout 0.0 --hidden-dropout 0.0 --use-dynamic-batch-size --max-tokens-per-gpu 4096 "
    "--advantage-estimator grpo --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.6"
)


def checked(folder: Path, more: str = "--colocate") -> Checked:
    file = folder / "run.sh"
    file.write_text(f"{SCRIPT} {more}\n")
    return memsheet.check(file, gpus="2xA100-80GB")


def job_of(found: Checked) -> dict[str, Any]:
    assert found.answer is not None
    assert found.answer.job is not None
    return dict(found.answer.job)


def phases_of(found: Checked) -> dict[str, dict[str, Any]]:
    return {phase["name"]: phase for phase in job_of(found)["phases"]}


def held(found: Checked, instant: str, role: str, component: str = "") -> int:
    assert found.answer is not None
    when = memsheet.Instant(instant)
    return sum(
        int(item.at[when].value)
        for item in found.answer.sheets[0].items
        if item.path.startswith(f"{role}/") and when in item.at and component in item.component.value
    )


def test_trainer_and_servers_leave_the_card_to_each_other(tmp_path: Path) -> None:
    found = checked(tmp_path)
    assert list(phases_of(found)) == ["update_weights", "gen", "old_log_prob", "update_actor"]
    assert not found.doubt
    assert (
        held(found, "gen/decode", "actor", "optimizer")
        == held(found, "gen/decode", "actor", "parameters")
        == 0
    )
    assert held(found, "update_actor/loss", "rollout", "kv_cache") == 0
    assert held(found, "gen/decode", "rollout", "kv_cache") > 2**33


def test_what_is_not_offloaded_stays(tmp_path: Path) -> None:
    found = checked(tmp_path, "--colocate --no-offload-train")
    assert held(found, "gen/decode", "actor", "optimizer") > 0
    assert held(found, "update_actor/loss", "rollout", "kv_cache") == 0


def test_servers_of_their_own_have_cards_of_their_own(tmp_path: Path) -> None:
    found = checked(tmp_path, "--rollout-num-gpus 3")
    assert job_of(found)["placement"] == {"actor": [0, 2], "rollout": [2, 3]}
    assert found.answer is not None
    assert found.answer.cluster is not None
    assert found.answer.cluster.count == 5


def test_a_reference_is_switched_in_and_is_no_second_model(tmp_path: Path) -> None:
    found = checked(tmp_path, "--colocate --use-kl-loss --kl-loss-coef 0.001")
    assert set(job_of(found)["roles"]) == {"actor", "rollout"}
    assert phases_of(found)["ref"]["active"] == "actor"


def test_the_servers_own_probabilities_save_a_pass(tmp_path: Path) -> None:
    assert "old_log_prob" not in phases_of(checked(tmp_path, "--colocate --use-rollout-logprobs"))


def test_ppo_trains_a_critic_that_takes_turns(tmp_path: Path) -> None:
    found = checked(tmp_path, "--colocate --advantage-estimator ppo")
    assert {"values", "update_critic"} <= set(phases_of(found))
    assert held(found, "update_actor/loss", "critic", "optimizer") == 0


def test_entropy_and_temperature_hold_more_of_the_logits(tmp_path: Path) -> None:
    plain, more = (
        checked(tmp_path),
        checked(tmp_path, "--colocate --entropy-coef 0.01 --rollout-temperature 0.8"),
    )
    sizes = [phases_of(one)["update_actor"]["logits"]["bytes"] for one in (plain, more)]
    assert sizes == [[8, 8, 10], [12, 16, 18]]


def test_servers_are_told_what_stands_behind_their_name(tmp_path: Path) -> None:
    plan = job_of(checked(tmp_path, "--colocate --sglang-max-running-requests 32"))["roles"]["rollout"][
        "plan"
    ]
    assert plan["serving"]["memory_fraction"] == 0.6
    assert plan["serving"]["max_sequences"] == 32
    assert (
        "--sglang-torchao-config is not known"
        in checked(tmp_path, "--colocate --sglang-torchao-config int8wo").doubt
    )


def test_without_the_length_of_prompts_rows_may_be_longer(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    script = SCRIPT.replace("--rollout-max-prompt-len 1024 ", "").replace("4096", "1024")
    file.write_text(f"{script} --colocate\n")
    assert "how long prompts are" in memsheet.check(file, gpus="2xA100-80GB").doubt


def test_a_list_of_another_file_is_taken_in(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    held = 'MODEL_ARGS=(\n  --num-layers $((20 + 8))\n  --spec "a" "b"\n)\nrm -rf x\n'
    (tmp_path / "models" / "small.sh").write_text(held)
    file = tmp_path / "run.sh"
    file.write_text('source "${DIR}/models/small.sh"\n' + SCRIPT.partition(")\n")[2] + " --colocate\n")
    found = memsheet.check(file, gpus="2xA100-80GB")
    assert "--spec" in found.doubt
    assert "rollout" in job_of(found)["roles"]


@pytest.mark.parametrize(
    ("name", "phase"), [("sl-qwen3-4b", "ref"), ("sl-qwen2.5-0.5b-async", "old_log_prob"), ("sl-qwen3-8b-opd", "teacher")],
)  # fmt: skip
def test_scripts_of_its_own_are_jobs(name: str, phase: str) -> None:
    found = memsheet.check(WILD / f"{name}.sh", gpus="8xH100-80GB")
    assert phase in phases_of(found)


def test_fine_tuning_is_one_model() -> None:
    found = memsheet.check(WILD / "sl-qwen3-4b-sft.sh", gpus="8xH100-80GB")
    assert found.answer is not None
    assert found.answer.job is None
    assert [moved.at for moved in found.moved] == ["logits"]
