"""verl's launches as jobs of several models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.jobs.shorter import with_rows_of
from memsheet.report.shared.checked import Checked

A, R, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
SCRIPT = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.max_prompt_length=512 "
    f"data.max_response_length=512 {M}.path=Qwen/Qwen3-0.6B {A}.ppo_mini_batch_size=16 "
    f"{A}.ppo_micro_batch_size_per_gpu=4 {R}.log_prob_micro_batch_size_per_gpu=8 "
    f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 {A}.use_kl_loss=True {R}.name=vllm "
    f"{R}.tensor_model_parallel_size=1 {R}.gpu_memory_utilization=0.4 "
    "trainer.n_gpus_per_node=2 trainer.nnodes=1"
)
REAL = Path(__file__).parents[3] / "wild_configs" / "ve-grpo-qwen3-8b.sh"


def checked(folder: Path, more: str = "") -> Checked:
    file = folder / "run.sh"
    file.write_text(f"{SCRIPT} {more}\n")
    return memsheet.check(file, gpus="2xA100-80GB")


def job_of(found: Checked) -> dict[str, Any]:
    assert found.answer is not None
    assert found.answer.job is not None
    return dict(found.answer.job)


def held(found: Checked, instant: str, role: str, component: str = "") -> int:
    assert found.answer is not None
    return sum(
        int(item.at[memsheet.Instant(instant)].value)
        for item in found.answer.sheets[0].items
        if item.path.startswith(f"{role}/")
        and memsheet.Instant(instant) in item.at
        and component in item.component.value
    )


def test_a_script_of_its_own_is_a_job(tmp_path: Path) -> None:
    del tmp_path
    found = memsheet.check(REAL, gpus="8xH100-80GB")
    assert set(job_of(found)["roles"]) == {"actor", "reference", "rollout"}
    assert [phase["name"] for phase in job_of(found)["phases"]] == [
        "update_weights", "gen", "old_log_prob", "ref", "update_actor",
    ]  # fmt: skip
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.instant.phase == "update_actor"
    assert not found.doubt
    assert not found.moved


def test_packed_tokens_that_may_be_fewer_are_no_stop(tmp_path: Path) -> None:
    """On half of the cards, where as many as a GPU may take do not fit."""
    text = REAL.read_text().replace("trainer.n_gpus_per_node=8", "trainer.n_gpus_per_node=2")
    (tmp_path / "run.sh").write_text(text)
    found = memsheet.check(tmp_path / "run.sh", gpus="2xH100-80GB")
    assert found.answer is not None
    assert found.answer.verdict is not None
    needs, least = found.answer.sheets[0].device, int(found.answer.verdict.device.low)
    assert least < needs.low
    assert "tokens that it may have at the most" in found.doubt


def test_the_reference_is_on_the_host(tmp_path: Path) -> None:
    """Always so of FSDP, and unit by unit on the card while it reads."""
    found = checked(tmp_path)
    assert held(found, "update_actor/forward", "reference", "parameters") == 0
    assert held(found, "ref/forward", "reference", "unsharded") > 0
    assert found.answer is not None
    assert found.answer.sheets[0].host_bytes >= found.answer.parameters * 4 // 2


def test_without_its_loss_there_is_no_reference(tmp_path: Path) -> None:
    job = job_of(checked(tmp_path, f"{A}.use_kl_loss=False"))
    assert "reference" not in job["roles"]
    assert "ref" not in [phase["name"] for phase in job["phases"]]


def test_offload_leaves_the_card_to_the_server(tmp_path: Path) -> None:
    here = checked(tmp_path)
    away = checked(tmp_path, f"{A}.fsdp_config.param_offload=True {A}.fsdp_config.optimizer_offload=True")
    states = held(here, "gen/decode", "actor") - held(away, "gen/decode", "actor")
    assert here.answer is not None
    assert states == pytest.approx(here.answer.parameters * 12 // 2, rel=0.01)
    assert held(here, "update_actor/backward", "actor") == held(away, "update_actor/backward", "actor")
    assert away.answer is not None
    assert away.answer.sheets[0].host_bytes - here.answer.sheets[0].host_bytes >= states


def test_a_server_that_never_sleeps_stays(tmp_path: Path) -> None:
    asleep, awake = checked(tmp_path), checked(tmp_path, f"{R}.free_cache_engine=False")
    assert held(asleep, "update_actor/backward", "rollout", "kv_cache") == 0
    assert held(awake, "update_actor/backward", "rollout", "kv_cache") > 2**33


def test_adapters_are_their_own_reference(tmp_path: Path) -> None:
    job = job_of(checked(tmp_path, f"{M}.lora_rank=16"))
    assert "reference" not in job["roles"]
    phases = {phase["name"]: phase for phase in job["phases"]}
    assert phases["ref"]["active"] == "actor"
    assert phases["update_actor"]["residents"]["rollout"] == "asleep-1"


@pytest.mark.parametrize(("trained", "room"), [(4, 8), (16, 16), (33, 64)])
def test_a_server_has_room_for_the_adapters_that_it_is_sent(trained: int, room: int, tmp_path: Path) -> None:
    plain, adapted = checked(tmp_path), checked(tmp_path, f"{M}.lora_rank={trained}")
    assert job_of(adapted)["roles"]["rollout"]["plan"]["adapter"] == {"kind": "lora", "rank": room}
    assert held(adapted, "gen/decode", "rollout", "buffers") > held(plain, "gen/decode", "rollout", "buffers")
    assert held(adapted, "gen/decode", "rollout", "kv") < held(plain, "gen/decode", "rollout", "kv")


def test_adapters_that_are_merged_are_sent_as_weights(tmp_path: Path) -> None:
    job = job_of(checked(tmp_path, f"{M}.lora_rank=16 +{M}.lora.merge=True"))
    assert "adapter" not in job["roles"]["rollout"]["plan"]
    assert "reference" not in job["roles"]
    assert job["phases"][-1]["residents"]["rollout"] == "asleep-2"


@pytest.mark.parametrize(("share", "result"), [(0.025, "UNCERTAIN"), (0.005, "DOES_NOT_FIT")])
def test_a_server_of_any_release_is_sure_not_to_start_by_its_weights_and_one_sequence(
    share: float, result: str, tmp_path: Path
) -> None:
    other = checked(tmp_path, f"{R}.name=sglang {R}.gpu_memory_utilization={share}")
    assert other.answer is not None
    assert other.answer.verdict is not None
    assert other.answer.verdict.result.name == "UNCERTAIN"  # of what is free, which nobody says
    more = f"{R}.gpu_memory_utilization={share} {R}.max_num_seqs=1024"
    found = checked(tmp_path, more)
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.result.name == result
    told = memsheet.check(tmp_path / "run.sh", gpus="2xA100-80GB", engine_version="vllm==0.33.0")
    assert told.answer is not None
    assert told.answer.verdict is not None
    assert told.answer.verdict.result.name == "DOES_NOT_FIT"


def test_a_critic_trains_beside_it_without_an_output_matrix(tmp_path: Path) -> None:
    more = (
        "algorithm.adv_estimator=gae critic.model.path=Qwen/Qwen3-0.6B critic.ppo_micro_batch_size_per_gpu=4"
    )
    found = checked(tmp_path, more)
    names = [phase["name"] for phase in job_of(found)["phases"]]
    assert names[-3:] == ["values", "update_critic", "update_actor"]
    assert not found.doubt
    assert found.answer is not None
    assert not [item for item in found.answer.sheets[0].items if item.path.startswith("critic/lm_head")]


def test_tokens_bound_what_is_read_at_once(tmp_path: Path) -> None:
    more = (
        f"{A}.use_dynamic_bsz=True {A}.ppo_max_token_len_per_gpu=8192 {R}.log_prob_max_token_len_per_gpu=4096"
    )
    phases = {phase["name"]: phase for phase in job_of(checked(tmp_path, more))["phases"]}
    assert phases["old_log_prob"]["plan"] == {"microbatch": 1, "seq_len": 4096}
    assert phases["ref"]["plan"] == {"microbatch": 1, "seq_len": 8192}


@pytest.mark.parametrize("more", [f"{R}.name=hf", f"{R}.data_parallel_size=many"])
def test_what_is_no_such_job_is_the_actor_alone(more: str, tmp_path: Path) -> None:
    found = checked(tmp_path, more)
    assert found.answer is not None
    assert found.answer.job is None
    assert found.doubt


def test_a_server_apart_has_cards_behind_the_trainer_s(tmp_path: Path) -> None:
    apart = checked(
        tmp_path,
        "actor_rollout_ref.hybrid_engine=False rollout.nnodes=1 rollout.n_gpus_per_node=4 "
        f"{R}.tensor_model_parallel_size=2",
    )
    assert job_of(apart)["placement"] == {"actor": [0, 2], "reference": [0, 2], "rollout": [2, 4]}
    together = checked(tmp_path)
    assert held(apart, "update_actor/loss", "rollout") == 0
    assert held(apart, "update_actor/loss", "actor", "parameters") == held(
        together, "update_actor/loss", "actor", "parameters"
    )
    assert together.answer is not None
    assert apart.answer is not None
    most = [
        max(int(sheet.device.value) for sheet in one.answer.sheets) for one in (together, apart) if one.answer
    ]
    assert most[0] >= most[1]


def test_a_server_that_takes_more_cards_than_are_asked_about_has_the_file_s(tmp_path: Path) -> None:
    found = checked(tmp_path, f"trainer.n_gpus_per_node=8 trainer.nnodes=2 {R}.tensor_model_parallel_size=16")
    assert job_of(found)["placement"] == {"actor": [0, 16], "reference": [0, 16], "rollout": [0, 16]}


def test_experts_of_a_server_are_over_all_of_its_ranks(tmp_path: Path) -> None:
    found = checked(
        tmp_path, f"{M}.path=Qwen/Qwen3-30B-A3B {R}.data_parallel_size=2 {R}.expert_parallel_size=2"
    )
    assert job_of(found)["roles"]["rollout"]["plan"]["mesh"] == {"tp": 2, "ep": 2, "attn_dp": 2}
    copies = checked(tmp_path, f"{R}.data_parallel_size=2")
    assert job_of(copies)["roles"]["rollout"]["plan"]["mesh"] == {"tp": 1}


def test_a_critic_on_megatron_has_degrees_of_its_own(tmp_path: Path) -> None:
    megatron = (
        "actor_rollout_ref.actor.strategy=megatron critic.strategy=megatron algorithm.adv_estimator=gae "
        "critic.ppo_micro_batch_size_per_gpu=4"
    )
    found = checked(tmp_path, f"{megatron} critic.megatron.tensor_model_parallel_size=2")
    roles = job_of(found)["roles"]
    assert roles["critic"]["plan"]["mesh"]["tp"] == 2
    assert roles["actor"]["plan"]["mesh"].get("tp", 1) == 1
    away = checked(
        tmp_path, f"{megatron} critic.megatron.param_offload=True critic.megatron.optimizer_offload=True"
    )
    assert held(away, "update_actor/loss", "critic", "optimizer_states") == 0
    assert held(found, "update_actor/loss", "critic", "optimizer_states") > 0


def test_which_server_runs_is_taken_for_vllm_and_told(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT.replace(f"{R}.name=vllm ", ""))
    found = memsheet.check(file, gpus="2xA100-80GB")
    assert job_of(found)["roles"]["rollout"]["plan"]["engine"] == "vllm"
    assert "counted as vLLM" in found.doubt


def test_a_choice_of_devices_is_of_gpus(tmp_path: Path) -> None:
    head = 'case "${DEVICE}" in\n  gpu) TP=2 ;;\n  npu) TP=1 ;;\n  *) exit 1 ;;\nesac\n'
    file = tmp_path / "run.sh"
    file.write_text(
        f"{head}{SCRIPT.replace('tensor_model_parallel_size=1', 'tensor_model_parallel_size=${TP}')}"
    )
    found = memsheet.check(file, gpus="2xA100-80GB")
    assert job_of(found)["roles"]["rollout"]["plan"]["mesh"] == {"tp": 2}


@pytest.mark.parametrize(
    ("more", "critic"),
    [("critic.enable=True critic.ppo_micro_batch_size_per_gpu=4", True), ("algorithm.adv_estimator=gae critic.enable=False", False)],
)  # fmt: skip
def test_a_critic_is_there_as_it_is_said(more: str, critic: bool, tmp_path: Path) -> None:
    assert ("critic" in job_of(checked(tmp_path, more))["roles"]) is critic


@pytest.mark.parametrize(
    "more",
    [
        f"{R}.engine_kwargs.vllm.gpu_memory_utilization=0.95", f"{R}.engine_kwargs.vllm.kv_cache_dtype=fp8", f"{R}.quantization=fp8",
        "actor_rollout_ref.ref.fsdp_config.reshard_after_forward=False", "distillation.enabled=True",
    ],
)  # fmt: skip
def test_what_may_move_memory_and_is_not_read_leaves_the_verdict_open(more: str, tmp_path: Path) -> None:
    plain, found = checked(tmp_path), checked(tmp_path, more)
    assert plain.answer is not None
    assert plain.answer.verdict is not None
    assert plain.answer.verdict.result is memsheet.Result.FITS
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.result is memsheet.Result.UNCERTAIN
    assert more.partition("=")[0] in found.doubt


def test_old_probabilities_of_the_server_are_not_computed_again(tmp_path: Path) -> None:
    found = job_of(checked(tmp_path, "algorithm.rollout_correction.bypass_mode=True"))
    assert [phase["name"] for phase in found["phases"]] == ["update_weights", "gen", "ref", "update_actor"]


def test_a_reference_of_its_own_is_the_one_that_is_held(tmp_path: Path) -> None:
    found = job_of(checked(tmp_path, "+actor_rollout_ref.ref.model.path=Qwen/Qwen3-1.7B"))
    assert found["roles"]["reference"]["model"] == "Qwen/Qwen3-1.7B"


def test_old_probabilities_have_entropy_with_adapters_and_a_reference_too(tmp_path: Path) -> None:
    adapters = f"{M}.lora_rank=8 {M}.target_modules=all-linear"
    with_it, without = (
        held(
            checked(tmp_path, f"{adapters} {A}.use_kl_loss={said}"),
            "old_log_prob/loss",
            "actor",
            "temporaries",
        )
        for said in (True, False)
    )
    assert with_it == without


def test_megatrons_buffer_of_gradients_stays_while_the_actor_reads(tmp_path: Path) -> None:
    found = checked(tmp_path, f"{A}.strategy=megatron {A}.megatron.tensor_model_parallel_size=2")
    assert held(found, "gen/prefill", "actor", "gradients") > 0
    assert held(found, "old_log_prob/forward", "actor", "gradients") == held(
        found, "gen/prefill", "actor", "gradients"
    )


def test_a_pool_that_is_too_small_is_told_as_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from memsheet.cli import main

    file = tmp_path / "run.sh"
    file.write_text(f"{SCRIPT} {A}.use_dynamic_bsz=True {R}.gpu_memory_utilization=0.01\n")
    assert main(["check", str(file), "--gpus", "2xA100-80GB"]) == 10
    said = " ".join(capsys.readouterr().out.split())
    assert "its pool is too small for one sequence" in said
    assert "dies in" not in said
    assert "leaves update_actor too little" not in said


LONG = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=256 data.max_prompt_length=512 \\
 data.max_response_length=1024 actor_rollout_ref.model.path=meta-llama/Llama-3.1-8B-Instruct \\
 actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
 actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \\
 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.name=vllm MORE \\
 actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.35 \\
 actor_rollout_ref.rollout.n=5 trainer.n_gpus_per_node=8 trainer.nnodes=1
"""


def test_a_server_whose_longest_nobody_says_stops_nobody(tmp_path: Path) -> None:
    """Older releases take a prompt and an answer, newer ones what the model was made for."""
    longest = "actor_rollout_ref.rollout.max_model_len"
    told = {}
    for said in ("", f"{longest}=1536", f"{longest}=131072"):
        (tmp_path / "run.sh").write_text(LONG.replace("MORE", said))
        found = memsheet.check(tmp_path / "run.sh", gpus="8xH100-80GB")
        assert found.answer is not None
        assert found.answer.verdict is not None
        told[said] = found.answer.verdict.result.name, "max_model_len is not said" in found.doubt
    assert list(told.values()) == [("UNCERTAIN", True), ("FITS", False), ("DOES_NOT_FIT", False)]


def test_machines_that_a_script_leaves_open_are_those_that_are_asked_about(tmp_path: Path) -> None:
    text = LONG.replace("MORE", "actor_rollout_ref.rollout.max_model_len=1536")
    told = []
    for nodes in ("1", "TO_BE_FILLED"):
        (tmp_path / "run.sh").write_text(text.replace("trainer.nnodes=1", f"trainer.nnodes={nodes}"))
        found = memsheet.check(tmp_path / "run.sh", gpus="8xH100-80GB")
        assert found.answer is not None
        assert found.answer.job is not None, found.why_not
        told.append(found.answer.job["phases"])
    assert told[0] == told[1]


WIDE = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae data.train_batch_size=1024 data.max_prompt_length=1024 \\
 data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2.5-32B-Instruct \\
 actor_rollout_ref.model.enable_gradient_checkpointing=False actor_rollout_ref.model.use_remove_padding=True \\
 actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size=16 \\
 actor_rollout_ref.rollout.log_prob_micro_batch_size=128 actor_rollout_ref.rollout.tensor_model_parallel_size=4 \\
 actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.3 critic.ppo_micro_batch_size=32 \\
 critic.model.path=Qwen/Qwen2.5-32B-Instruct critic.model.enable_gradient_checkpointing=False trainer.nnodes=4 \\
 trainer.n_gpus_per_node=8
"""


def test_what_the_allocator_keeps_of_long_rows_stops_nobody(tmp_path: Path) -> None:
    """It is there when the optimizer steps, and would be less with shorter rows, with which the job fits."""
    (tmp_path / "run.sh").write_text(WIDE)
    found = memsheet.check(tmp_path / "run.sh", gpus="32xH100-80GB")
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert "it is expected to fit with" in found.doubt
    assert found.answer.verdict.result.name == "UNCERTAIN"


def test_tokens_that_are_told_to_fit_do_and_a_sixteenth_more_do_not(tmp_path: Path) -> None:
    text = SCRIPT.replace("ppo_mini_batch_size=16", "ppo_mini_batch_size=64").replace(
        "response_length=512", "response_length=3584"
    )
    (tmp_path / "run.sh").write_text(
        text.replace(f"{A}.ppo_micro_batch_size_per_gpu=4", f"{A}.ppo_micro_batch_size_per_gpu=32")
    )
    found = memsheet.check(tmp_path / "run.sh", gpus="2xA100-80GB")
    told = re.search(
        r"with the ([\d,]+) tokens .* fit with ([\d,]+), ([\d,]+) of each row's ([\d,]+)", found.doubt
    )
    assert told is not None
    counted, fitting, each, row = (int(number.replace(",", "")) for number in told.groups())
    assert fitting // each == counted // row
    document = {**job_of(found), "gpus": "2xA100-80GB"}
    needs = []
    for tokens in (each, each + each // 16 + 2):
        shorter = memsheet.job(with_rows_of(document, tokens, row))
        assert shorter.cluster is not None
        needs.append(
            max(int(one.device.value) for one in shorter.sheets) / shorter.cluster.device.framework_low_bytes
        )
    assert needs[0] <= 1.01
    assert needs[1] > 0.99


def test_a_batch_below_its_update_stops_releases_that_refuse_it(tmp_path: Path) -> None:
    """Older ones, whose words a launch may have, take it whole."""
    text = LONG.replace("MORE", "").replace("train_batch_size=256", "train_batch_size=16")
    old = text.replace("ppo_micro_batch_size_per_gpu=2", "ppo_micro_batch_size=16")
    for script, stops in ((text, True), (old, False)):
        (tmp_path / "run.sh").write_text(script)
        found = memsheet.check(tmp_path / "run.sh", gpus="8xH100-80GB")
        assert found.stops is stops
        assert any("less than the 64 prompts" in one.says for _, one in found.mistakes)


def test_a_pass_whose_rows_nobody_says_has_one_and_leaves_the_verdict_open(tmp_path: Path) -> None:
    said = checked(tmp_path)
    script = tmp_path / "run.sh"
    script.write_text(script.read_text().replace(f"{R}.log_prob_micro_batch_size_per_gpu=8 ", ""))
    unsaid = memsheet.check(script, gpus="2xA100-80GB")
    assert not said.doubt
    assert f"{R}.log_prob_micro_batch_size_per_gpu is not said" in str(unsaid.doubt)
    assert held(unsaid, "old_log_prob/loss", "actor") < held(said, "old_log_prob/loss", "actor")


def test_ranks_that_share_a_row_hold_a_part_of_it_and_what_they_exchange(tmp_path: Path) -> None:
    """The sheet was told to be without the exchange, and could need nothing at the least."""
    alone, shared = (checked(tmp_path, f"{A}.ulysses_sequence_parallel_size={ranks}") for ranks in (1, 2))
    assert alone.answer is not None
    assert shared.answer is not None
    assert "ulysses" not in shared.doubt
    rows = {
        name: found.answer.job["roles"]["actor"]["plan"]["seq_len"]
        for name, found in (("alone", alone), ("shared", shared))
    }  # type: ignore[union-attr, index]
    assert 2 * rows["shared"] == rows["alone"]
    (sheet, *_), (own, *_) = shared.answer.sheets, alone.answer.sheets
    item = next(one for one in sheet.items if one.path == "actor/exchanged_heads")
    assert {when.step.value for when in item.at} == {"forward", "backward"}
    assert all(0 == size.low == size.value < size.high for size in item.at.values())
    assert not [one for one in own.items if "exchanged" in one.path]


@pytest.mark.parametrize(
    ("more", "read", "learnt"),
    [
        ("", 4, 6),
        (f"{A}.entropy_from_logits_with_chunking=True", 8, 32),
        (f"{A}.use_torch_compile=False", 18, 32),
        ("actor_rollout_ref.model.use_remove_padding=False", 18, 32),
    ],
)
def test_entropy_has_copies_of_the_logits_where_nothing_compiles_it(
    more: str, read: int, learnt: int, tmp_path: Path
) -> None:
    phases = {one["name"]: one for one in job_of(checked(tmp_path, f"{A}.entropy_coeff=0.01 {more}"))["phases"]}  # fmt: skip
    assert phases["update_actor"]["logits"]["bytes"][2] == learnt
    assert phases["old_log_prob"]["logits"]["bytes"][2] == read


@pytest.mark.parametrize(
    ("release", "temperature", "bytes_read"),
    [
        ("0.8.0", "1.0", [2, 2, 2]), ("0.8.0", "0.7", [2, 2, 2]), ("0.9.0", "1.0", [4, 4, 4]), ("0.9.1", "1.0", [2, 2, 2]),
        ("0.9.1", "0.7", [4, 4, 4]), ("", "1.0", [2, 2, 4]), ("", "0.7", [2, 4, 4]),
    ],
)  # fmt: skip
def test_logits_that_are_read_stand_as_often_as_the_release_divides_them(
    release: str, temperature: str, bytes_read: list[int], tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{SCRIPT} {R}.temperature={temperature}\n")
    more = {"engine_version": f"verl=={release}"} if release else {}
    found = memsheet.check(script, gpus="2xA100-80GB", **more)
    phase = next(one for one in job_of(found)["phases"] if one["name"] == "old_log_prob")
    assert phase["logits"]["bytes"] == bytes_read


def test_a_launch_that_only_validates_learns_nothing(tmp_path: Path) -> None:
    """It ends before the first step, with no optimizer's states and no pass of log-probabilities."""
    trains, validates = checked(tmp_path), checked(tmp_path, "trainer.val_only=True")
    assert [phase["name"] for phase in job_of(validates)["phases"]] == ["update_weights", "gen"]
    assert held(trains, "gen/decode", "actor", "optimizer") > 0
    assert held(validates, "gen/decode", "actor", "optimizer") == 0
    later = checked(tmp_path, "trainer.val_only=True trainer.val_before_train=False")
    assert job_of(later)["phases"] == job_of(trains)["phases"]


GAE = "algorithm.adv_estimator=gae critic.ppo_micro_batch_size_per_gpu=4"


def test_a_critic_s_ranks_share_rows_by_themselves(tmp_path: Path) -> None:
    alone, shared = (
        checked(tmp_path, f"{GAE} critic.ulysses_sequence_parallel_size={ranks}") for ranks in (1, 2)
    )
    plans = [job_of(one)["roles"]["critic"]["plan"] for one in (alone, shared)]
    assert plans[0]["seq_len"] == 2 * plans[1]["seq_len"]
    assert job_of(alone)["roles"]["actor"]["plan"] == job_of(shared)["roles"]["actor"]["plan"]
    assert not shared.doubt
    assert shared.answer is not None
    paths = {item.path for item in shared.answer.sheets[0].items}
    assert "critic/exchanged_heads" in paths
    assert "actor/exchanged_heads" not in paths


def test_a_critic_is_loaded_in_its_own_dtype(tmp_path: Path) -> None:
    """In fp32 where nobody says one, whatever the actor is loaded in."""
    of_actor = f"{A}.fsdp_config.model_dtype=bf16"
    usual, said = (
        job_of(checked(tmp_path, f"{GAE} {of_actor} {more}"))["roles"]
        for more in ("", "critic.model.fsdp_config.model_dtype=bf16")
    )
    assert usual["actor"]["plan"]["precision"]["parameters"] == "bf16"
    assert usual["critic"]["plan"]["precision"]["parameters"] == "fp32"
    assert said["critic"]["plan"]["precision"]["moments"] == "bf16"


@pytest.mark.parametrize(
    "more", ["", f"{A}.use_dynamic_bsz=True {A}.ppo_max_token_len_per_gpu=8192", f"{A}.ulysses_sequence_parallel_size=2", GAE]
)  # fmt: skip
def test_rows_that_a_flag_says_are_those_of_every_pass(more: str, tmp_path: Path) -> None:
    """As long as the file's they change nothing; shorter ones are read and learnt from alike, as many of them
    as are packed.
    """
    plain = job_of(checked(tmp_path, more))
    same, half = (
        job_of(memsheet.check(tmp_path / "run.sh", gpus="2xA100-80GB", seq_len=length))
        for length in (1024, 512)
    )
    assert same["roles"] == plain["roles"]
    assert same["phases"] == plain["phases"]
    packed = "dynamic" in more
    for one, other in zip(plain["phases"], half["phases"], strict=True):
        if "seq_len" in one.get("plan", {}):
            whole, part = (int(each["plan"]["seq_len"]) for each in (one, other))
            assert part == (whole if packed else whole // 2)
    ours, theirs = (int(each["roles"]["actor"]["plan"]["seq_len"]) for each in (plain, half))
    assert theirs == (ours // 2)  # of packed ones, too: a step has eight rows of a rank and no more
    serving = [each["roles"]["rollout"]["plan"]["serving"] for each in (plain, half)]
    assert serving[0] == serving[1]


def test_sizes_that_no_release_has_leave_a_launch_open(tmp_path: Path) -> None:
    """A copy that somebody changed may make its rows longer by them."""
    assert not checked(tmp_path, "data.train_data_num=8").doubt
    found = checked(tmp_path, "data.max_obs_length=500")
    assert "data.max_obs_length is no key of verl's own" in found.doubt


def test_releases_are_of_the_trainer_and_of_its_server(tmp_path: Path) -> None:
    checked(tmp_path)
    file = tmp_path / "run.sh"
    both = memsheet.check(file, gpus="2xA100-80GB", engine_version="verl==0.8.0,vllm==0.11.0")
    assert job_of(both)["roles"]["rollout"]["plan"]["engine_version"] == "0.11.0"
    assert next(iter(both.reads.values())).release == "0.8.0"
    with pytest.raises(memsheet.InputError, match="the job's servers are: vllm"):
        memsheet.check(file, gpus="2xA100-80GB", engine_version="sglang==0.5.0")


def test_a_model_that_is_called_by_a_variable_without_its_sign_is_told_which(tmp_path: Path) -> None:
    text = f"model_path=Qwen/Qwen3-0.6B\n{SCRIPT}".replace(
        f"{M}.path=Qwen/Qwen3-0.6B", f"{M}.path=model_path"
    )
    (tmp_path / "run.sh").write_text(text)
    found = memsheet.check(tmp_path / "run.sh", gpus="2xA100-80GB")
    assert "$model_path: --model Qwen/Qwen3-0.6B is its value" in found.no_model


D = "distillation"
DISTILS = (
    f"{D}.enabled=True {D}.n_gpus_per_node=2 {D}.nnodes=1 "
    f"{D}.teacher_models.teacher_model.model_path=Qwen/Qwen3-1.7B "
    f"{D}.teacher_models.teacher_model.inference.tensor_model_parallel_size=1 "
    f"{D}.distillation_loss.loss_mode="
)


def test_a_teacher_serves_on_cards_behind_the_student_s(tmp_path: Path) -> None:
    """Its share is of its own cards, the student's are as without it, and what scores a row is beside the
    share.
    """
    alone, taught = checked(tmp_path), checked(tmp_path, f"{DISTILS}k3")
    assert not taught.doubt
    document = job_of(taught)
    assert document["placement"] == {
        "actor": [0, 2],
        "reference": [0, 2],
        "rollout": [0, 2],
        "teacher": [2, 2],
    }
    assert alone.answer is not None
    assert taught.answer is not None
    first = next(sheet for sheet in taught.answer.sheets if sheet.rank == 0)
    assert first.device == alone.answer.sheets[0].device
    theirs = next(sheet for sheet in taught.answer.sheets if sheet.rank == 2)
    assert {item.path.partition("/")[0] for item in theirs.items} == {"teacher"}
    assert not [item for item in theirs.items if item.path == "teacher/bucket"]
    assert [item for item in theirs.items if item.path == "teacher/prompt_logprobs"]


def test_a_job_of_more_cards_than_are_named_says_so(tmp_path: Path) -> None:
    """A sheet on twelve cards is no answer about eight without a word."""
    assert "take 4 cards, and --gpus names 2" in checked(tmp_path, f"{DISTILS}k3").cards_words
    assert not checked(tmp_path).cards_words


def test_a_loss_of_likeliest_tokens_holds_log_probabilities_of_all(tmp_path: Path) -> None:
    last = {
        mode: job_of(checked(tmp_path, f"{DISTILS}{mode}"))["phases"][-1]["logits"]["bytes"]
        for mode in ("k3", "forward_kl_topk")
    }
    assert last["k3"] == [4, 4, 4]
    assert last["forward_kl_topk"] == [10, 14, 18]


def test_a_teacher_without_a_model_leaves_the_job_open(tmp_path: Path) -> None:
    found = checked(tmp_path, f"{D}.enabled=True {D}.nnodes=1")
    assert "which teacher runs on how many cards is not said" in found.doubt
    assert not checked(tmp_path, f"{D}.enabled=False {D}.nnodes=1").doubt


def test_pictures_leave_a_model_that_sees_open(tmp_path: Path) -> None:
    """Its tower was counted by its weights alone, and the launch fitted for sure."""
    sees = SCRIPT.replace("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-VL-3B-Instruct")
    for text, opened in ((f"{sees} data.image_key=images", True), (sees, False), (f"{SCRIPT} data.image_key=images", False)):  # fmt: skip
        (tmp_path / "run.sh").write_text(text)
        found = memsheet.check(tmp_path / "run.sh", gpus="2xH200")
        assert ("the tower for pictures" in found.doubt) is opened


def test_a_length_in_thousands_stops_and_keeps_every_role(tmp_path: Path) -> None:
    roles = []
    for length in ("2048", "2k"):
        found = checked(tmp_path, f"data.max_prompt_length={length} data.max_response_length=1024")
        assert any("is no number" in str(told) for _, told in found.mistakes) == (length == "2k")
        roles.append(job_of(found)["roles"])
    assert roles[0] == roles[1]


@pytest.mark.parametrize(
    "named", ["/models/Qwen3-1.7B", "./Qwen3-1.7B", "$HOME/runs/Qwen3-1.7B/global_step_100"]
)
def test_a_further_model_by_a_path_is_of_the_name_in_it(named: str, tmp_path: Path) -> None:
    """As the model that trains is, and not a copy of that one."""
    found = checked(tmp_path, f"algorithm.adv_estimator=gae critic.model.path={named}")
    assert job_of(found)["roles"]["critic"]["model"] == "qwen3-1.7b"
