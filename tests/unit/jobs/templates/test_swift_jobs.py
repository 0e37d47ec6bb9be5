"""ms-swift's jobs, as its commands and files say them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from job_files import phases_by_name, role_bytes
from memsheet.report.shared.checked import Checked

MODEL, TEACHER = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-14B-Instruct"
BASE = f"--model {MODEL} --dataset x --torch_dtype bfloat16 --max_length 2048 --per_device_train_batch_size 2"
SERVED = "--use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.4 --vllm_max_model_len 4096"
GRPO = f"--rlhf_type grpo {BASE} --max_completion_length 1024 --num_generations 8 {SERVED}"
FULL = "--tuner_type full --deepspeed zero3"
LORA = "--tuner_type lora --deepspeed zero2"
COMPONENTS = memsheet.Component


def swift(folder: Path, flags: str, *, program: str = "swift", gpus: str = "8xH100-80GB") -> Checked:
    file = folder / "run.sh"
    file.write_text(f"NPROC_PER_NODE=8 {program} rlhf {flags}\n")
    return memsheet.check(file, gpus=gpus)


def roles_of(found: Checked) -> dict[str, Any]:
    assert found.answer is not None
    assert found.answer.job is not None, found.why_not
    return dict(found.answer.job["roles"])


def test_adapters_are_their_own_reference_and_all_weights_have_a_copy(tmp_path: Path) -> None:
    whole, adapted = (swift(tmp_path, f"{GRPO} {how}") for how in (FULL, LORA))
    assert set(roles_of(whole)) == {"actor", "reference", "rollout"}
    assert set(roles_of(adapted)) == {"actor", "rollout"}
    assert phases_by_name(adapted)["ref"]["active"] == "actor"
    assert "ref" not in phases_by_name(swift(tmp_path, f"{GRPO} {LORA} --beta 0"))


def test_the_pool_is_there_in_every_phase_unless_the_server_sleeps(tmp_path: Path) -> None:
    for level, held in (("0", True), ("1", False), ("2", False)):
        found = swift(tmp_path, f"{GRPO} {LORA} --sleep_level {level}")
        assert bool(role_bytes(found, "update_actor/backward", "rollout", "kv_cache")) is held
        assert role_bytes(found, "gen/decode", "rollout", "kv_cache")
        kept = role_bytes(found, "update_actor/backward", "rollout", "parameters")
        assert bool(kept) is held


def test_moving_the_model_frees_what_no_buffer_of_deepspeed_holds(tmp_path: Path) -> None:
    """Adapters' base leaves the card; parameters that learn, and their master copy, do not."""
    away = "--offload_model true --offload_optimizer true --sleep_level 1"
    adapted, whole = (swift(tmp_path, f"{GRPO} {how} {away}") for how in (LORA, FULL))
    assert role_bytes(adapted, "gen/decode", "actor", "parameters") == 0
    assert role_bytes(adapted, "update_actor/backward", "actor", "parameters") > 14e9
    still = role_bytes(whole, "gen/decode", "actor", "parameters")
    master = role_bytes(whole, "gen/decode", "actor", "master_weights")
    assert master == role_bytes(whole, "update_actor/backward", "actor", "master_weights")
    assert 1.9 * still < master < 2 * still
    assert role_bytes(whole, "gen/decode", "actor", "optimizer_states") == 0
    assert role_bytes(whole, "update_actor/load", "actor", "parameters") > 1.99 * still


def test_weights_are_sent_all_at_once_or_a_part_at_a_time(tmp_path: Path) -> None:
    for mode in (SERVED, "--use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1"):
        flags = GRPO.replace(SERVED, mode)
        sent = [
            role_bytes(
                swift(tmp_path, f"{flags} {FULL} {parts}"), "update_weights/load", "actor", "unsharded"
            )
            for parts in ("", "--move_model_batches 16")
        ]
        assert sent[0] > 15e9
        assert sent[0] / 17 < sent[1] < sent[0] / 10
    divided = swift(tmp_path, f"{GRPO} {LORA}")
    assert role_bytes(divided, "update_weights/load", "actor", "unsharded") == 0


def test_a_fused_loss_has_gradients_of_the_output_matrix_alone(tmp_path: Path) -> None:
    plain, fused = (swift(tmp_path, f"{GRPO} {LORA} {more}") for more in ("", "--use_liger_kernel true"))
    assert "logits" in phases_by_name(plain)["update_actor"]
    last = phases_by_name(fused)["update_actor"]
    assert "logits" not in last
    matrix = 152064 * 3584 * 2  # of all rows and of one, of a matrix that adapters leave without a gradient
    assert [one["bytes"][0] for one in last["items"] if one["path"] == "liger"] == [2 * matrix]
    assert "logits" in phases_by_name(fused)["old_log_prob"]


@pytest.mark.parametrize(("method", "rows", "copy"), [("dpo", 4, True), ("kto", 2, True), ("orpo", 4, False), ("cpo", 4, False), ("simpo", 4, False)])  # fmt: skip
def test_preferences_are_learnt_from_with_their_rows(
    tmp_path: Path, method: str, rows: int, *, copy: bool
) -> None:
    found = swift(tmp_path, f"--rlhf_type {method} {BASE} {FULL}")
    roles = roles_of(found)
    assert roles["actor"]["plan"]["microbatch"] == rows
    assert ("reference" in roles) is copy
    assert "method" not in found.doubt


def test_a_reward_model_is_a_sheet_of_its_own(tmp_path: Path) -> None:
    """It has a head of one value, and nothing beside it."""
    found = swift(tmp_path, f"--rlhf_type rm {BASE} {LORA}")
    assert found.answer is not None
    assert found.answer.model.head.kind == "none"
    assert not found.doubt


def test_a_critic_has_adapters_as_the_policy_has(tmp_path: Path) -> None:
    roles = roles_of(swift(tmp_path, f"--rlhf_type ppo {BASE} {LORA} --reward_model {MODEL}"))
    assert set(roles) == {"actor", "critic", "reward"}
    assert roles["critic"]["plan"]["adapter"]["rank"] == 8
    assert roles["critic"]["plan"]["recompute"]["mode"] == "none"


def test_a_teacher_is_divided_by_its_own_configuration(tmp_path: Path) -> None:
    gkd = f"--rlhf_type gkd {BASE} --max_completion_length 512 --teacher_model Qwen/Qwen2.5-14B-Instruct"
    held = [
        role_bytes(swift(tmp_path, f"{gkd} {how}"), "update_actor/loss", "teacher", "parameters")
        for how in (FULL, f"{FULL} --teacher_deepspeed zero3_offload", "--tuner_type full --deepspeed zero2")
    ]
    assert held[1] < held[0] / 100
    assert held[2] > 7.9 * held[0] > 0
    assert "teacher" not in roles_of(swift(tmp_path, f"{gkd} {LORA}".replace("Qwen2.5-14B", "Qwen2.5-7B")))


def test_fewer_words_of_a_teacher_take_less_than_all(tmp_path: Path) -> None:
    gkd = f"--rlhf_type gkd {BASE} --lmbda 1 --max_completion_length 2048 --teacher_model {TEACHER}"
    whole, likely, fused = (
        role_bytes(swift(tmp_path, f"{gkd} {FULL} {more}"), "update_actor/loss", "actor", "temporaries")
        for more in ("", "--gkd_logits_topk 64", "--use_liger_kernel true")
    )
    assert whole > 2 * likely > 0
    assert whole > fused > 0


MEGATRON = f"--model {MODEL} --dataset x --max_length 2048 --micro_batch_size 1 --global_batch_size 32"


def test_megatron_loads_a_reference_whatever_its_penalty(tmp_path: Path) -> None:
    flags = f"--rlhf_type grpo {MEGATRON} --beta 0 --max_completion_length 1024 {SERVED} --sleep_level 2"
    full = swift(tmp_path, f"{flags} --tuner_type full", program="megatron")
    assert "reference" in roles_of(full)
    assert full.answer is not None
    assert "ref" not in phases_by_name(full)
    assert any("whatever beta is" in note for note in full.answer.notes)
    assert "reference" not in roles_of(swift(tmp_path, f"{flags} --tuner_type lora", program="megatron"))


def test_megatrons_teacher_gives_all_logits_of_a_generation_first(tmp_path: Path) -> None:
    flags = f"--rlhf_type gkd {MEGATRON} --tuner_type full --teacher_model {MODEL} {SERVED}"
    flags += " --max_completion_length 1024"
    found = swift(tmp_path, f"{flags} --sleep_level 1", program="megatron")
    (kept,) = (one for one in phases_by_name(found)["teacher"]["items"] if one["path"] == "teacher_logits")
    assert kept["bytes"][1] == 2 * (32 // 8) * 3072 * 152064
    likely = swift(tmp_path, f"{flags} --sleep_level 1 --gkd_logits_topk 64", program="megatron")
    assert "items" not in phases_by_name(likely)["teacher"]


RAY = f"""rlhf_type: grpo
model: {MODEL}
micro_batch_size: 1
global_batch_size: 32
max_length: 2048
max_completion_length: 1024
use_vllm: true
sleep_level: 1
GROUPS
train:
  gpus: 4
  tuner_type: lora
rollout:
  gpus: 4
  vllm_gpu_memory_utilization: 0.4
"""


def test_rays_groups_say_which_cards_are_shared(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    for groups, places in (
        ("colocate_groups: [[train, rollout]]", None),
        ("", {"actor": [0, 4], "rollout": [4, 4]}),
    ):
        file.write_text(RAY.replace("GROUPS", groups))
        found = memsheet.check(file, gpus="4xH100-80GB")
        assert found.answer is not None
        assert found.answer.job is not None, found.why_not
        assert found.answer.job.get("placement") == places


def test_a_script_that_starts_its_own_server_is_read_as_its_training(tmp_path: Path) -> None:
    server = f"CUDA_VISIBLE_DEVICES=7 swift rollout --model {MODEL}\n"
    flags = GRPO.replace(SERVED, "--use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1")
    file = tmp_path / "run.sh"
    file.write_text(f"{server}NPROC_PER_NODE=4 swift rlhf {flags} {LORA}\n")
    found = memsheet.check(file, gpus="4xH100-80GB")
    assert set(roles_of(found)) == {"actor"}
    assert any("swift rollout" in line for line in found.assumed)


@pytest.mark.parametrize(
    ("model", "result"),
    [("Qwen/Qwen2.5-7B", "DOES_NOT_FIT"), (MODEL, "FITS"), ("nvidia/OpenReasoning-Nemotron-7B", "UNCERTAIN")],
)
def test_a_server_takes_its_models_own_length_as_far_as_it_is_known(
    tmp_path: Path, model: str, result: str
) -> None:
    """Of one shape: the base of 131,072 tokens, a release of 32,768, and a tuned one of which nobody says."""
    said = f"{GRPO} {LORA} --sleep_level 2".replace(MODEL, model)
    said = said.replace("--vllm_max_model_len 4096", "").replace("utilization 0.4", "utilization 0.25")
    found = swift(tmp_path, said)
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.result.name == result, found.doubt
    assert (f"what length {model} was made for" in found.doubt) is (result == "UNCERTAIN")
