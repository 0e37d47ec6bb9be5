"""OpenRLHF's launches as jobs of several models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.jobs.cures import OFFLOAD, job_cures
from memsheet.jobs.templates import offloaded_by
from memsheet.questions.cures_of_jobs import what_helps
from memsheet.report.screen.jobs.phases import render_job
from memsheet.report.shared.checked import Checked
from memsheet.report.shared.look import Look

WILD = Path(__file__).parents[3] / "wild_configs"
SCRIPT = (
    "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-0.6B "
    "--reward.model_name_or_path Qwen/Qwen3-0.6B --actor.num_gpus_per_node 2 --ref.num_gpus_per_node 2 "
    "--critic.num_gpus_per_node 2 --reward.num_gpus_per_node 2 --vllm.num_engines 2 --ds.zero_stage 3 "
    "--vllm.gpu_memory_utilization 0.4 --train.micro_batch_size 2 --rollout.micro_batch_size 4 "
    "--data.max_len 1024 --actor.gradient_checkpointing_enable --ds.packing_samples"
)
TOGETHER = "--train.colocate_all --vllm.enable_sleep --ds.enable_sleep"


def checked(folder: Path, more: str = TOGETHER, script: str = SCRIPT) -> Checked:
    file = folder / "run.sh"
    file.write_text(f"{script} {more}\n")
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


def test_all_models_take_turns_on_the_same_cards(tmp_path: Path) -> None:
    found = checked(tmp_path)
    assert list(phases_of(found)) == [
        "gen", "reward", "old_log_prob", "values", "ref", "update_critic", "update_actor", "update_weights",
    ]  # fmt: skip
    assert {tuple(place) for place in job_of(found)["placement"].values()} == {(0, 2)}
    assert not found.doubt
    assert held(found, "update_actor/backward", "rollout", "kv_cache") == 0


def test_groups_of_their_own_have_cards_of_their_own(tmp_path: Path) -> None:
    found = checked(tmp_path, "--train.colocate_actor_ref --train.colocate_critic_reward")
    places = job_of(found)["placement"]
    assert places == {
        "actor": [0, 2],
        "reference": [0, 2],
        "critic": [2, 2],
        "reward": [2, 2],
        "rollout": [4, 2],
    }
    assert found.answer is not None
    assert found.answer.cluster is not None
    assert found.answer.cluster.count == 6
    assert len(found.answer.sheets) == 3


def test_an_asynchronous_server_leaves_the_cards(tmp_path: Path) -> None:
    places = job_of(checked(tmp_path, "--train.colocate_all --train.async_enable"))["placement"]
    assert places["rollout"] == [2, 2]
    assert places["critic"] == places["actor"] == [0, 2]


def test_what_sleeps_of_the_trainer_are_states_and_buckets(tmp_path: Path) -> None:
    asleep, awake = checked(tmp_path), checked(tmp_path, "--train.colocate_all --vllm.enable_sleep")
    assert held(asleep, "gen/decode", "actor", "optimizer_states") == 0
    assert held(asleep, "gen/decode", "actor", "communication") == 0
    assert held(asleep, "gen/decode", "actor", "parameters") == held(
        awake, "gen/decode", "actor", "parameters"
    )
    assert held(awake, "gen/decode", "actor", "optimizer_states") > 0
    assert "the critic trains while the actor does" in awake.doubt


def test_without_kl_there_is_no_reference(tmp_path: Path) -> None:
    assert "reference" not in job_of(checked(tmp_path, f"{TOGETHER} --algo.kl.init_coef 0"))["roles"]


def test_other_estimators_than_gae_have_no_critic(tmp_path: Path) -> None:
    more = f"{TOGETHER} --algo.advantage.estimator rloo --reward.remote_url f.py"
    assert set(job_of(checked(tmp_path, more))["roles"]) == {"actor", "reference", "rollout"}


def test_a_model_of_values_has_no_output_matrix(tmp_path: Path) -> None:
    found = checked(tmp_path)
    assert held(found, "values/forward", "critic") < held(found, "old_log_prob/loss", "actor")
    assert "logits" not in phases_of(found)["reward"]
    assert "logits" in phases_of(found)["ref"]


def test_tokens_bound_a_micro_batch_and_no_row_is_cut(tmp_path: Path) -> None:
    packed = "--train.dynamic_batch_enable --train.max_tokens_per_gpu 4096 --rollout.max_tokens_per_gpu 512"
    more = f"{TOGETHER} {packed}"
    found = checked(tmp_path, more)
    assert phases_of(found)["old_log_prob"]["plan"] == {"microbatch": 1, "seq_len": 1024}
    actor = job_of(found)["roles"]["actor"]["plan"]
    assert actor["microbatch"] * actor["seq_len"] == 4096


def test_flags_of_older_releases_say_the_same(tmp_path: Path) -> None:
    older = (
        "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-0.6B "
        "--reward_pretrain Qwen/Qwen3-0.6B --actor_num_gpus_per_node 2 --ref_num_gpus_per_node 2 "
        "--critic_num_gpus_per_node 2 --reward_num_gpus_per_node 2 --vllm_num_engines 2 --zero_stage 3 "
        "--bf16 --vllm_gpu_memory_utilization 0.4 --micro_train_batch_size 2 "
        "--micro_rollout_batch_size 4 --prompt_max_len 512 --generate_max_len 512 "
        "--gradient_checkpointing --packing_samples --flash_attn "
        "--colocate_all_models --vllm_enable_sleep --deepspeed_enable_sleep"
    )
    assert job_of(checked(tmp_path, "", older)) == job_of(checked(tmp_path))


def test_variables_leave_the_actor_alone(tmp_path: Path) -> None:
    found = checked(tmp_path, f"{TOGETHER} --vllm.gpu_memory_utilization $SHARE")
    assert found.answer is not None
    assert found.answer.job is None
    assert found.doubt


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("or-ppo-llama3-8b-hybrid", {"actor", "reference", "critic", "reward", "rollout"}), ("or-dapo-llama3-8b", {"actor", "reference", "rollout"}),
        ("or-ppo-llama3-8b-slurm", {"actor", "reference", "critic", "reward", "rollout"}), ("or-dpo-llama3-8b", {"actor", "reference"}),
        ("or-reinforce-qwen3-4b", {"actor", "reference", "rollout"}),
    ],
)  # fmt: skip
def test_scripts_of_its_own_are_jobs(name: str, roles: set[str]) -> None:
    found = memsheet.check(WILD / f"{name}.sh", gpus="8xH100-80GB")
    assert set(job_of(found)["roles"]) == roles


def test_fine_tuning_is_one_model(tmp_path: Path) -> None:
    tuned = "deepspeed --module openrlhf.cli.train_sft --model.model_name_or_path Qwen/Qwen3-0.6B"
    found = checked(tmp_path, "--data.max_len 1024 --train.micro_batch_size 2", tuned)
    assert found.answer is not None
    assert found.answer.job is None
    assert int(found.answer.plan.training.microbatch) == 2
    assert [moved.at for moved in found.moved] == ["logits"]


def test_a_fused_loss_that_it_lacks_is_no_cure_and_its_sleep_keeps_the_parameters(tmp_path: Path) -> None:
    awake = checked(tmp_path, "--train.colocate_all", SCRIPT.replace("1024", "32768")).answer
    assert awake is not None
    assert awake.job is not None
    helps = {one.kind: one for one in what_helps(awake, {"gpus": "2xA100-80GB"})}
    assert helps.keys() == {"sleep"}
    moved = [
        cure.document
        for cure in job_cures(awake.job, "gen", moved=offloaded_by("openrlhf"))
        if cure.kind == OFFLOAD
    ]
    assert {one["phases"][0]["residents"][role] for one in moved for role in ("actor", "critic")} == {
        "parameters",
        "whole",
    }


def test_positions_begin_anew_in_each_packed_row(tmp_path: Path) -> None:
    many = "--train.dynamic_batch_enable --train.max_tokens_per_gpu 65536"
    found = checked(tmp_path, f"{TOGETHER} {many} --rollout.batch_size 4096")
    assert found.answer is not None
    assert found.answer.plan.workload.seq_len > 40960
    assert "beyond-positions" not in {rule.id for rule, _ in found.mistakes}


@pytest.mark.parametrize("width", [80, 120])
def test_a_screen_shows_the_whole_of_each_figure(width: int) -> None:
    found = memsheet.check(WILD / "or-ppo-llama3-8b-hybrid.sh", gpus="8xH100-80GB")
    assert found.answer is not None
    said = render_job(found.answer, Look(width=width))
    assert "…" not in said
    assert "GiB of it" in said if width == 80 else "GiB of it" not in said


def test_ring_attention_has_buffers_of_all_ranks_tokens(tmp_path: Path) -> None:
    """The sheet was told to be without them, and could need nothing at the least."""
    alone, shared = (checked(tmp_path, f"{TOGETHER} --ds.ring_attn_size {ranks}") for ranks in (1, 2))
    assert not shared.doubt
    assert alone.answer is not None
    assert shared.answer is not None
    rows = [job_of(found)["roles"]["actor"]["plan"]["seq_len"] for found in (alone, shared)]
    assert rows == [1024, 512]
    item = next(one for one in shared.answer.sheets[0].items if one.path == "actor/ring_attention")
    assert {when.value for when in item.at} == {
        "old_log_prob/forward", "update_actor/forward", "update_actor/backward",
    }  # fmt: skip
    assert all(0 == size.low == size.value < size.high for size in item.at.values())
    (passing, learnt) = (item.at[memsheet.Instant(at)].high for at in ("old_log_prob/forward", "update_actor/forward"))  # fmt: skip
    assert passing == 2 * learnt  # of four rows, and of two
    assert not [one for one in alone.answer.sheets[0].items if "ring" in one.path]


def test_ring_attention_of_another_model_stays_open(tmp_path: Path) -> None:
    """Whose heads nobody looked up."""
    script = SCRIPT.replace("--reward.model_name_or_path Qwen/Qwen3-0.6B", "--reward.model_name_or_path Qwen/Qwen3-4B")  # fmt: skip
    found = checked(tmp_path, f"{TOGETHER} --ds.ring_attn_size 2", script)
    assert "ring" in found.doubt


KD = (
    "deepspeed --module openrlhf.cli.train_kd --max_len 1024 --micro_train_batch_size 2 "
    "--pretrain Qwen/Qwen3-0.6B --teacher_model Qwen/Qwen3-1.7B --bf16 --flash_attn "
    "--gradient_checkpointing --zero_stage"
)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_student_holds_its_teacher_s_distributions_beside_its_own(stage: int, tmp_path: Path) -> None:
    """The teacher reads while the student's step is kept, and is on the host where it is told to be and
    ranks divide it.
    """
    plain = checked(tmp_path, "", f"{KD} {stage}")
    away = checked(tmp_path, "", f"{KD} {stage} --teacher_offload")
    document = job_of(plain)
    assert document["roles"]["teacher"]["model"] == "Qwen/Qwen3-1.7B"
    assert [phase["name"] for phase in document["phases"]] == ["teacher", "update_actor"]
    assert not plain.doubt
    held = [_teacher_at_rest(one) for one in (plain, away)]
    assert held[0] > 0
    assert (held[1] == 0) == (stage == 3)


def _teacher_at_rest(found: Checked) -> int:
    assert found.answer is not None
    when = memsheet.Instant("update_actor/backward")
    return sum(
        int(item.at[when].value)
        for item in found.answer.sheets[0].items
        if item.path.startswith("teacher/") and item.component.value == "parameters" and when in item.at
    )


def test_what_learns_from_marks_of_steps_is_a_model_of_its_own(tmp_path: Path) -> None:
    """With the whole vocabulary's head, and with nothing beside it."""
    script = KD.replace("train_kd", "train_prm").replace(
        "--teacher_model Qwen/Qwen3-1.7B", "--reward_tokens + -"
    )
    found = checked(tmp_path, "", f"{script} 3")
    assert found.answer is not None
    assert found.answer.job is None
    (read,) = found.reads.values()
    assert (read.form.name, read.unknown, read.unmodelled) == ("openrlhf", (), ())
    assert [one.at for one in found.moved] == ["logits"]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("offload", ["", "--ds.adam_offload"])
def test_every_model_stays_whatever_of_the_optimizer_is_on_the_host(
    tmp_path: Path, stage: int, offload: str
) -> None:
    script = SCRIPT.replace("--ds.zero_stage 3", f"--ds.zero_stage {stage}")
    roles = job_of(checked(tmp_path, f"{TOGETHER} {offload}", script))["roles"]
    assert set(roles) == {"actor", "reference", "critic", "reward", "rollout"}
