"""verl's launches: Hydra's overrides in shell scripts, and what the actor alone comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.exchange.test_wild_configs import FOLDER

import memsheet
from memsheet.budget import Result
from memsheet.exchange.formats.verl.easy_r1 import ADAMW, launched_values
from memsheet.exchange.formats.verl.overrides import override_value, verl_values
from memsheet.questions.recognised_files import recognise_files

START = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct "
A, M = "actor_rollout_ref.actor", "actor_rollout_ref.model"
MICRO = f"{A}.ppo_micro_batch_size_per_gpu"


def request_of(text: str) -> dict[str, Any]:
    reads, _ = recognise_files({"run.sh": text}, ())
    (read,) = reads.values()
    return {**dict(read.request), **{f"not modelled {at}": held for at, held in read.unmodelled}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None), ("True", True), ("false", False), ("8", 8), ("1.", 1.0), ("1e-6", 1e-6), ("'error'", "error"), ('["console","wandb"]', ["console", "wandb"]),
        ("[]", []), ("$X", "a variable that nobody set"), ("a.b/c", "a.b/c"), ("-1", -1),
    ],
)  # fmt: skip
def test_values_are_read_as_hydra_reads_them(text: str, value: Any) -> None:
    assert override_value("trainer.x", text) == value


def test_the_last_of_several_overrides_counts_whatever_stands_before_its_name() -> None:
    found = verl_values(f"{START} {MICRO}=4 +{MICRO}=8 ++{MICRO}=16 {A}.use_kl_loss=True ~{A}.use_kl_loss")
    assert found[MICRO] == 16
    assert f"{A}.use_kl_loss" not in found


def test_a_removed_key_may_be_said_again() -> None:
    assert verl_values(f"{START} {MICRO}=4 ~{MICRO} {MICRO}=2")[MICRO] == 2


def test_arrays_defaults_and_sums_are_filled_in() -> None:
    text = f"""
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 6))
MODEL=${{MODEL_PATH:-${{DATA_HOME:-"${{HOME}}/verl"}}/models/Qwen3-8B}}
DATA=(
    data.max_prompt_length=$max_prompt_length
    data.max_response_length=$max_response_length
)
ACTOR=(
    {A}.ppo_max_token_len_per_gpu=$(((max_prompt_length + max_response_length) * 2))
    {A}.use_dynamic_bsz=True
)
python3 -m verl.trainer.main_ppo {M}.path="$MODEL" "${{DATA[@]}}" ${{ACTOR[@]}} trainer.nnodes=${{N:-2}} "$@"
"""
    found = request_of(text)
    assert found["@model"].endswith("/models/Qwen3-8B")
    assert (found["seq_len"], found["microbatch"], found["@gpus"]) == (16384, 1, 16)


@pytest.mark.parametrize(
    "before",
    [
        "ray job submit --address http://head:8265 --runtime-env=env.yaml --no-wait -- ",
        "HYDRA_FULL_ERROR=1 nohup ",
        "srun --overlap --nodes=1 -w $head ",
    ],
)
def test_what_stands_before_the_program_changes_nothing(before: str) -> None:
    found = request_of(f"{before}{START} {MICRO}=4 trainer.n_gpus_per_node=4 2>&1 | tee {A}.log")
    assert (found["microbatch"], found["@gpus"]) == (4, 4)


def test_a_variable_that_nobody_set_stays_unknown() -> None:
    found = request_of(f"{START} {MICRO}=$MICRO trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)")
    assert "microbatch" not in found
    assert "@gpus" not in found
    assert found[f"not modelled {MICRO}"] == "a variable that nobody set"
    assert "not modelled trainer.n_gpus_per_node" in found


def test_slurms_own_variables_are_those_of_the_directives() -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
    ranks = "trainer.nnodes=$SLURM_NNODES trainer.n_gpus_per_node=${SLURM_GPUS_PER_NODE}"
    assert request_of(f"{head}{START} {MICRO}=1 {ranks}")["@gpus"] == 8


def test_a_mini_batch_counts_answers_and_is_divided_by_the_ranks() -> None:
    sizes = f"{A}.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=8 {MICRO}=16"
    assert request_of(f"{START} {sizes}")["@accumulation"] == 4
    shared = request_of(f"{START} {sizes} {A}.ulysses_sequence_parallel_size=2")
    assert (shared["@accumulation"], shared["seq_len"]) == (8, 512)
    assert str(shared["not modelled $.ulysses"]).startswith("2 ")


def test_the_older_micro_batch_is_that_of_all_ranks() -> None:
    assert request_of(f"{START} {A}.ppo_micro_batch_size=64")["microbatch"] == 8


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("", ("fsdp1", "fp32", "bf16", "fp32")), (f"{A}.strategy=fsdp2", ("fsdp2", "fp32", "bf16", "fp32")),
        (f"{A}.fsdp_config.model_dtype=bfloat16", ("fsdp1", "bf16", "bf16", "fp32")),
        ("--config-name=ppo_megatron_trainer.yaml", ("megatron", "bf16", "bf16", "fp32")), (f"{A}.strategy=megatron", ("megatron", "bf16", "bf16", "fp32")),
    ],
)  # fmt: skip
def test_strategies_and_their_dtypes(told: str, wanted: tuple[str, ...]) -> None:
    found = request_of(f"{START} {MICRO}=1 {told}")
    keys = ("engine", "precision.parameters", "precision.compute", "precision.reduce")
    assert tuple(found[key] for key in keys) == wanted


def test_shards_in_groups_are_replicated() -> None:
    found = request_of(f"{START} {MICRO}=1 trainer.nnodes=2 {A}.fsdp_config.fsdp_size=8")
    assert (found["mesh.dp_shard"], found["mesh.dp_replicate"]) == (8, 2)
    assert "mesh.dp_shard" not in request_of(f"{START} {MICRO}=1 {A}.fsdp_config.fsdp_size=-1")


def test_offload_by_hand_takes_nothing_off_the_card_while_the_actor_is_updated() -> None:
    text = f"{START} {MICRO}=1 {A}.fsdp_config.param_offload=True {A}.fsdp_config.optimizer_offload=True"
    assert not any(key.startswith("offload") for key in request_of(text))
    kept = request_of(f"{START} {MICRO}=1 {A}.strategy=fsdp2 {A}.fsdp_config.offload_policy=True")
    assert (kept["offload.parameters"], kept["offload.optimizer"]) == (1, 1)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("", "PPO: the actor alone: the rollout engine and the critic share"), ("algorithm.adv_estimator=grpo", "GRPO: the actor alone: the rollout engine shares"),
        ("algorithm.adv_estimator=rloo actor_rollout_ref.hybrid_engine=False", "RLOO: the actor alone, whose rollout engine has cards of its own"),
        (f"algorithm.adv_estimator=grpo {A}.use_kl_loss=True", "GRPO: the actor alone: the rollout engine and the reference share"),
    ],
)  # fmt: skip
def test_the_models_beside_the_actor_are_named(told: str, words: str) -> None:
    assert str(request_of(f"{START} {MICRO}=1 {told}")["not modelled $.roles"]).startswith(words)


def check_text(folder: Path, text: str, gpus: str) -> Any:
    (folder / "run.sh").write_text(text)
    return memsheet.check(folder / "run.sh", gpus=gpus)


def test_an_actor_alone_never_surely_fits_and_surely_does_not_where_its_states_do_not(tmp_path: Path) -> None:
    text = f"{START} {MICRO}=1 trainer.n_gpus_per_node=2 actor_rollout_ref.rollout.name=hf"
    fits = check_text(tmp_path, text, "2xH200")
    assert fits.result is Result.UNCERTAIN
    assert "the actor alone" in fits.doubt
    denied = check_text(tmp_path, text, "2xA100-40GB")
    assert denied.result is Result.DOES_NOT_FIT


def test_whole_logits_are_told_beside_the_sheet_and_offload_is_explained(tmp_path: Path) -> None:
    text = f"{START} {MICRO}=2 {A}.fsdp_config.param_offload=True actor_rollout_ref.rollout.name=hf"
    moved = {one.at: one for one in check_text(tmp_path, text, "8xH100-80GB").moved}
    tokens, vocab = 2 * 1024, 152064
    assert (moved["logits"].low_bytes, moved["logits"].high_bytes) == (tokens * vocab * 2, tokens * vocab * 4)
    assert moved[f"{A}.fsdp_config.param_offload"].low_bytes == 0
    fused = check_text(tmp_path, f"{text} {M}.use_fused_kernels=True", "8xH100-80GB").moved
    assert [one.at for one in fused] == [f"{A}.fsdp_config.param_offload"]
    entropy = check_text(tmp_path, f"{text} {A}.entropy_coeff=0.01", "8xH100-80GB").moved
    assert entropy[0].high_bytes == entropy[0].low_bytes > moved["logits"].high_bytes  # compiled
    more = f"{A}.entropy_coeff=0.01 {A}.use_torch_compile=False"
    one_by_one = check_text(tmp_path, f"{text} {more}", "8xH100-80GB").moved
    assert one_by_one[0].low_bytes > 4 * entropy[0].high_bytes


def test_an_unknown_key_is_told_with_the_nearest_one() -> None:
    reads, _ = recognise_files(
        {"run.sh": f"{START} {MICRO}=1 {M}.enable_gradient_checkpoint=True +x.y=1"}, ()
    )
    (read,) = reads.values()
    assert dict(read.unknown) == {
        f"{M}.enable_gradient_checkpoint": f"{M}.enable_gradient_checkpointing", "x.y": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "python3 -m verl.trainer.main_generation model.path=Qwen/Qwen2.5-7B rollout.n=4",
        "python3 -m verl.trainer.main_ppo algorithm.use_pf_ppo=True \\  # words\n    data.train_batch_size=8",
        "echo verl.trainer.main_ppo " + MICRO + "=4",
    ],
)
def test_what_trains_no_named_model_is_none_of_these(text: str) -> None:
    assert verl_values(text) == {}


TUNES = "torchrun --nnodes=2 --nproc_per_node=4 -m verl.trainer."


def test_fine_tuning_has_its_own_keys() -> None:
    old = request_of(f"{TUNES}fsdp_sft_trainer model.partial_pretrain=google/gemma-2b data.max_length=2048")
    keys = ("engine", "@gpus", "@nodes", "microbatch", "@accumulation", "seq_len", "loss")
    assert tuple(old[key] for key in keys) == ("fsdp2", 8, 2, 4, 8, 2048, "plain")
    assert "?seq_len_kind" not in old
    new = request_of(
        f"{TUNES}sft_trainer model.path=Qwen/Qwen3-8B data.max_token_len_per_gpu=4096 engine=fsdp"
    )
    assert tuple(new[key] for key in keys) == ("fsdp1", 8, 2, 1, 8, 4096, "fused")
    assert new["?seq_len_kind"] == "maximum"


def test_a_configuration_beside_the_script_says_the_rest(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "own.yaml").write_text(
        "defaults:\n  - ppo_megatron_trainer\n  - _self_\ndata:\n  max_prompt_length: 2048\n"
        "  max_response_length: 1024\nactor_rollout_ref:\n  hybrid_engine: true\n"
    )
    text = f"{START} --config-path=$PWD/config --config-name=own {MICRO}=1 data.max_prompt_length=1024"
    checked = check_text(tmp_path, text, "8xH100-80GB")
    assert checked.answer is not None
    assert (checked.answer.plan.engine, checked.answer.plan.training.seq_len) == ("megatron", 2048)
    (tmp_path / "config" / "own.yaml").unlink()
    absent = check_text(tmp_path, text, "8xH100-80GB")
    assert "config/own.yaml is named" in absent.doubt


def test_stages_that_a_script_divides_itself_are_told() -> None:
    checked = memsheet.check(FOLDER / "ve-grpo-qwen3-235b-megatron.sh", gpus="32xH100-96GB")
    assert checked.answer is not None
    assert list(checked.answer.plan.layers_per_stage or ()) == [11, *[12] * 6, 11]
    assert "the sheet is of layers_per_stage = 11,12" in checked.doubt
    assert checked.result is Result.UNCERTAIN


EASY = "python3 -m verl.trainer.main worker.actor.model.model_path=Qwen/Qwen2.5-7B-Instruct "
EASY_FILE = """data: {max_prompt_length: 2048, max_response_length: 1024}
worker:
  actor:
    global_batch_size: 64
    micro_batch_size_per_device_for_update: 2
    model: {model_path: Qwen/Qwen2.5-VL-3B-Instruct}
    optim: {strategy: adamw}
  rollout: {n: 4, tensor_parallel_size: 1}
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""


def test_places_of_a_fork_are_read_as_those_they_come_to() -> None:
    found = request_of(
        f"{EASY} worker.actor.micro_batch_size_per_device_for_update=2 worker.actor.global_batch_size=64 "
        "worker.rollout.n=4 trainer.n_gpus_per_node=4 data.max_prompt_length=1024 "
        "data.max_response_length=1024"
    )
    asked = (
        "@model",
        "@gpus",
        "engine",
        "zero",
        "microbatch",
        "seq_len",
        "@accumulation",
        "precision.parameters",
    )
    wanted = ("Qwen/Qwen2.5-7B-Instruct", 4, "fsdp1", 3, 2, 2048, 32, "fp32")
    assert tuple(found[at] for at in asked) == wanted
    assert (found["optimizer.name"], found["optimizer.implementation"]) == ("adamw", "fused")
    assert "EasyR1" in str(found["not modelled further arguments"])


def test_a_file_of_the_fork_says_the_rest_and_its_words_go_before(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(EASY_FILE)
    alone = memsheet.check(str(tmp_path / "config.yaml"), gpus="8xH100-80GB").answer
    assert alone is not None
    assert alone.plan.workload.microbatch == 2
    (tmp_path / "run.sh").write_text(
        f"{EASY} config=config.yaml worker.actor.micro_batch_size_per_device_for_update=1\n"
    )
    read = memsheet.check(str(tmp_path / "run.sh"), gpus="8xH100-80GB")
    assert read.answer is not None
    assert read.answer.model.name == "qwen2.5-7b"
    work = read.answer.plan.workload
    assert (work.microbatch, work.seq_len) == (1, 3072)


def test_words_say_no_optimizer_over_that_of_the_file_that_they_name() -> None:
    alone = launched_values(EASY)
    assert alone.items() >= ADAMW.items()
    assert not launched_values(f"{EASY} config=config.yaml").keys() & ADAMW.keys()


def test_an_optimizer_that_the_fork_alone_has_is_told() -> None:
    found = request_of(f"{EASY} worker.actor.optim.strategy=adamw_bf16")
    assert "adamw_bf16" in str(found["not modelled further arguments"])


@pytest.mark.parametrize("program", ["training.verl.main_grpo", "mine.main_ppo_tools", "mine.main_dapo"])
def test_programs_of_others_that_are_called_as_verls_are_read(program: str) -> None:
    found = request_of(START.replace("verl.trainer.main_ppo", program) + f"{MICRO}=4 +x.verl=1")
    assert (found["@model"], found["microbatch"]) == ("Qwen/Qwen2.5-7B-Instruct", 4)


def test_a_default_of_the_environment_is_taken_and_told(tmp_path: Path) -> None:
    """The model's name was read with the braces."""
    text = """actor_rollout_ref:
  model: {path: "MODEL"}
  actor: {ppo_micro_batch_size_per_gpu: 2, ppo_mini_batch_size: 64}
  rollout: {name: vllm, gpu_memory_utilization: SHARE, log_prob_micro_batch_size_per_gpu: 2}
data: {max_prompt_length: 512, max_response_length: 512}
trainer: {n_gpus_per_node: 8, nnodes: 1}
"""
    answers = []
    for model, share in (("Qwen/Qwen3-4B", "0.4"), ("${oc.env:OURS,Qwen/Qwen3-4B}", '"${oc.env:PART, 0.4}"')):
        (tmp_path / "grpo.yaml").write_text(text.replace("MODEL", model).replace("SHARE", share))
        found = memsheet.check(tmp_path / "grpo.yaml", gpus="8xH100-80GB")
        assert found.answer is not None, found.why_not
        answers.append(found)
    said, named = answers
    assert said.answer.job["roles"] == named.answer.job["roles"]  # type: ignore[union-attr, index]
    assert any("OURS = Qwen/Qwen3-4B" in one for one in named.assumed)


@pytest.mark.parametrize("server", ["vllm", "sglang"])
@pytest.mark.parametrize(("share", "stopped"), [("60", True), ("1.6", True), ("0.5", False)])
def test_a_share_that_is_none_stops_the_job_and_leaves_its_roles(
    server: str, share: str, stopped: bool, tmp_path: Path
) -> None:
    at = "actor_rollout_ref.rollout"
    text = (
        f"{START} {MICRO}=2 data.max_prompt_length=512 data.max_response_length=512 "
        "trainer.n_gpus_per_node=8 "
        f"{at}.log_prob_micro_batch_size_per_gpu=2 {at}.tensor_model_parallel_size=2 {at}.name={server} "
    )
    (tmp_path / "run.sh").write_text(f"{text} {at}.gpu_memory_utilization={share}\n")
    found = memsheet.check(tmp_path / "run.sh", gpus="8xH100-80GB")
    told = [one.where for _, one in found.mistakes if one.stops]
    assert [where.endswith("gpu_memory_utilization") for where in told] == [True] * stopped
    assert found.answer is not None
    assert found.answer.job is not None
    assert "rollout" in found.answer.job["roles"]
