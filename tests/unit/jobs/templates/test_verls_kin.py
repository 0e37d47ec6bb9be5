"""Launches of programs that were made from verl, or take its keys, as its jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.report.shared.checked import Checked

A, R, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
KEYS = (
    "algorithm.adv_estimator=grpo data.max_prompt_length=512 data.max_response_length=512 "
    f"{M}.path=Qwen/Qwen3-0.6B {A}.ppo_mini_batch_size=16 {A}.ppo_micro_batch_size_per_gpu=4 "
    f"{R}.log_prob_micro_batch_size_per_gpu=8 {R}.name=vllm {R}.tensor_model_parallel_size=1 "
    f"{R}.gpu_memory_utilization=0.4 trainer.nnodes=1"
)
OWN = """worker:
  actor:
    global_batch_size: 16
    micro_batch_size_per_device_for_update: 4
    micro_batch_size_per_device_for_experience: 8
    model: {model_path: Qwen/Qwen3-0.6B}
    offload: {offload_params: true, offload_optimizer: true}
  rollout: {n: 5, gpu_memory_utilization: 0.4, tensor_parallel_size: 1}
  ref: {fsdp: {enable_cpu_offload: true}}
data: {max_prompt_length: 512, max_response_length: 512, rollout_batch_size: 64}
algorithm: {adv_estimator: grpo, disable_kl: false, use_kl_loss: true}
trainer: {nnodes: 1, n_gpus_per_node: 2}
"""


def checked(folder: Path, text: str, gpus: str = "2xA100-80GB", name: str = "run.sh") -> Checked:
    (folder / name).write_text(text)
    return memsheet.check(folder / name, gpus=gpus)


def job_of(found: Checked) -> dict[str, Any]:
    assert found.answer is not None, found.why_not
    assert found.answer.job is not None
    return dict(found.answer.job)


@pytest.mark.parametrize("program", ["train.py", "-m examples.math.train_math", "-u agents/run_rl.py"])
def test_a_program_that_takes_its_keys_is_its_trainer_in_doubt(tmp_path: Path, program: str) -> None:
    keys = f"{KEYS} trainer.n_gpus_per_node=2"
    own = checked(tmp_path, f"python3 -m verl.trainer.main_ppo {keys}\n")
    other = checked(tmp_path, f"python3 {program} {keys}\n")
    assert {**job_of(own), "name": ""} == {**job_of(other), "name": ""}
    assert "which is called as a program of verl's" in other.doubt
    assert other.result is memsheet.Result.UNCERTAIN


def test_a_program_without_its_keys_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python3 train.py data.max_prompt_length=512 trainer.nnodes=1\n")
    with pytest.raises(memsheet.InputError, match="is not there"):
        memsheet.check(tmp_path / "run.sh")


def test_an_engine_of_another_project_is_never_denied_by_what_its_trainer_holds(tmp_path: Path) -> None:
    """It may divide and move what verl's own has on the card."""
    large = f"{KEYS} trainer.n_gpus_per_node=2".replace("0.6B", "32B")
    own, other = (
        checked(tmp_path, f"python3 -m verl.trainer.main_ppo {large} {word}\n")
        for word in ("", f"actor@{A}=lite_actor")
    )
    assert own.result is memsheet.Result.DOES_NOT_FIT
    assert other.result is memsheet.Result.UNCERTAIN
    assert "lite_actor" in other.doubt


def test_gpus_of_a_node_are_as_the_file_says(tmp_path: Path) -> None:
    """Six of each of two nodes, and servers on two more of each."""
    apart = "rollout.nnodes=2 rollout.n_gpus_per_node=2 actor_rollout_ref.hybrid_engine=False"
    text = (
        "python3 -m verl.experimental.one_step_off_policy.main_ppo "
        f"{KEYS} {apart} trainer.n_gpus_per_node=6\n"
    )
    found = checked(tmp_path, text.replace("trainer.nnodes=1", "trainer.nnodes=2"), "12xA100-80GB")
    assert job_of(found)["placement"] == {"actor": [0, 12], "rollout": [12, 4]}


def test_settings_of_easy_r1_are_verls(tmp_path: Path) -> None:
    found = checked(tmp_path, OWN, name="config.yaml")
    job = job_of(found)
    assert set(job["roles"]) == {"actor", "reference", "rollout"}
    assert job["roles"]["rollout"]["plan"]["serving"]["memory_fraction"] == 0.4
    assert job["roles"]["actor"]["plan"]["microbatch"] == 4
    resting = {phase["name"]: phase.get("residents", {}).get("actor") for phase in job["phases"]}
    assert resting["gen"] == "offloaded"
    assert found.result is memsheet.Result.UNCERTAIN
    assert "EasyR1" in found.doubt


def test_a_launch_of_easy_r1_changes_its_file_of_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(OWN)
    launch = (
        "python3 -m verl.trainer.main config=examples/config.yaml worker.rollout.gpu_memory_utilization=0.7"
    )
    job = job_of(checked(tmp_path, f"{launch} algorithm.disable_kl=True\n"))
    assert job["roles"]["rollout"]["plan"]["serving"]["memory_fraction"] == 0.7
    assert set(job["roles"]) == {"actor", "rollout"}


def test_what_easy_r1_takes_where_nothing_is_said(tmp_path: Path) -> None:
    launch = "python3 -m verl.trainer.main worker.actor.model.model_path=Qwen/Qwen3-0.6B"
    job = job_of(checked(tmp_path, f"{launch} trainer.n_gpus_per_node=2\n"))
    assert job["roles"]["rollout"]["plan"]["serving"]["memory_fraction"] == 0.6
    assert "critic" not in job["roles"]
    assert job["roles"]["reference"]["plan"]["precision"]["parameters"] == "bf16"


@pytest.mark.parametrize("place", ["critic.fsdp", "critic.model.fsdp_config"])
def test_a_critic_leaves_the_card_where_either_release_says_so(tmp_path: Path, place: str) -> None:
    moved = f"{place}.param_offload=True {place}.optimizer_offload=True"
    keys = KEYS.replace("grpo", "gae") + " critic.ppo_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=2"
    job = job_of(checked(tmp_path, f"python3 -m verl.trainer.main_ppo {keys} {moved}\n"))
    generating = next(phase for phase in job["phases"] if phase["name"] == "gen")
    assert generating["residents"]["critic"] == "offloaded"


def test_a_reference_is_loaded_in_its_own_dtype(tmp_path: Path) -> None:
    keys = f"{KEYS} trainer.n_gpus_per_node=2 {A}.use_kl_loss=True"
    of_ref = "actor_rollout_ref.ref.fsdp_config.model_dtype=bfloat16"
    wide, narrow = (
        job_of(checked(tmp_path, f"python3 -m verl.trainer.main_ppo {keys} {word}\n"))["roles"]
        for word in ("", of_ref)
    )
    assert wide["reference"]["plan"]["precision"]["parameters"] == "fp32"
    assert narrow["reference"]["plan"]["precision"]["parameters"] == "bf16"
    assert wide["actor"] == narrow["actor"]


COPY = """actor_rollout_ref:
  model: {path: ~/models/deepseek-llm-7b-chat, enable_gradient_checkpointing: false}
  actor: {ppo_micro_batch_size_per_gpu: 2}
  rollout:
    gpu_memory_utilization: 0.3
    log_prob_micro_batch_size_per_gpu: ${actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu}
critic:
  ulysses_sequence_parallel_size: 1
  model: {fsdp_config: {fsdp_size: -1}}
algorithm: {adv_estimator: grpo}
their: {own: key}
"""


def test_defaults_are_those_of_the_copy_in_the_same_tree(tmp_path: Path) -> None:
    """But for the model, and where no others stand below them."""
    few = (
        f"python3 -m verl.trainer.main_ppo {M}.path=Qwen/Qwen3-0.6B {R}.name=vllm "
        f"{R}.tensor_model_parallel_size=1 {A}.ppo_micro_batch_size_per_gpu=4\n"
    )
    config = tmp_path / "verl" / "trainer" / "config"
    config.mkdir(parents=True)
    (config / "ppo_trainer.yaml").write_text(COPY)
    found = checked(tmp_path, few)
    job = job_of(found)
    assert job["roles"]["rollout"]["plan"]["serving"]["memory_fraction"] == 0.3
    assert job["roles"]["actor"]["plan"]["recompute"]["mode"] == "none"
    assert job["roles"]["actor"]["plan"]["microbatch"] == 4
    assert job["roles"]["actor"]["model"] == "qwen3-0.6b"
    reading = next(phase for phase in job["phases"] if phase["name"] == "old_log_prob")
    assert reading["plan"]["microbatch"] == 4  # which names the actor's, as the launch has it
    assert "critic" not in job["roles"]
    assert any("verl/trainer/config/ppo_trainer.yaml" in line for line in found.assumed)
    assert not any("their.own" in one.where for _, one in found.mistakes)
    assert "is not read" not in found.doubt  # of what is said as it is counted without it
    (config / "ppo_trainer.yaml").write_text(f"defaults: [_self_]\n{COPY}")
    assert "critic" in job_of(checked(tmp_path, few))["roles"]


SKYRL = (
    "uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base "
    "trainer.policy.model.path=Qwen/Qwen3-0.6B "
    "trainer.placement.policy_num_gpus_per_node=2 generator.inference_engine.num_engines=2 "
    "trainer.micro_train_batch_size_per_gpu=4 trainer.micro_forward_batch_size_per_gpu=8 "
    "generator.inference_engine.gpu_memory_utilization=0.4 trainer.max_prompt_length=512"
)


def test_a_launch_of_skyrl_is_its_job(tmp_path: Path) -> None:
    found = checked(tmp_path, SKYRL)
    job = job_of(found)
    assert set(job["roles"]) == {"actor", "reference", "rollout"}
    assert job["roles"]["actor"]["plan"]["engine"] == "fsdp2"
    assert job["roles"]["actor"]["plan"]["microbatch"] == 4
    assert job["roles"]["actor"]["plan"]["seq_len"] == 1536
    assert job["roles"]["rollout"]["plan"]["serving"]["memory_fraction"] == 0.4
    resting = {phase["name"]: phase.get("residents", {}).get("actor") for phase in job["phases"]}
    assert resting["gen"] == "offloaded"  # as where all share the cards
    assert found.result is memsheet.Result.UNCERTAIN
    assert "SkyRL" in found.doubt


def test_servers_of_skyrl_have_cards_of_their_own_where_nothing_is_shared(tmp_path: Path) -> None:
    job = job_of(checked(tmp_path, f"{SKYRL} trainer.placement.colocate_all=false", "4xA100-80GB"))
    assert job["placement"]["rollout"] == [2, 2]
    assert job["placement"]["actor"] == [0, 2]


def test_keys_of_an_earlier_skyrl_are_the_same(tmp_path: Path) -> None:
    earlier = SKYRL.replace("inference_engine.num_engines", "num_inference_engines")
    earlier = earlier.replace("generator.inference_engine.gpu", "generator.gpu")
    assert job_of(checked(tmp_path, earlier)) == job_of(checked(tmp_path, SKYRL))


def test_other_cards_for_what_trains_leave_it_several_micro_batches_of_a_step(tmp_path: Path) -> None:
    """Gradients of earlier micro-batches stand in both: a server of four ranks takes more than are named."""
    wide = KEYS.replace("tensor_model_parallel_size=1", "tensor_model_parallel_size=4")
    text = f"python3 -m verl.trainer.main_ppo {wide} {R}.n=8 trainer.n_gpus_per_node=4\n"
    four, two = (job_of(checked(tmp_path, text, gpus)) for gpus in ("4xA100-80GB", "2xA100-80GB"))
    plans = [job["roles"]["actor"]["plan"] for job in (four, two)]
    assert two["placement"]["actor"] == [0, 4]
    assert all(plan["global_batch"] > 4 * plan["microbatch"] for plan in plans)
