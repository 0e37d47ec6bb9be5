"""Every change that a job is told, written where it is printed for and read back, gives what it promised."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

import memsheet
from memsheet.exchange.mistakes import FoundMistake
from memsheet.report.screen.checked import render_checked
from memsheet.report.shared.checked import Checked
from memsheet.report.shared.jobs.phases import phase_needs
from memsheet.report.shared.look import Look

WILD = Path(__file__).parents[2] / "wild_configs"
MODEL = "Qwen/Qwen2.5-7B-Instruct"
SERVED = "--num_generations 8 --max_prompt_length 512 --max_completion_length 1024"
PAIRS = f"--model_name_or_path {MODEL} --dataset_name x --per_device_train_batch_size 6 --max_length 2048"
DPO = f"""from trl import DPOConfig, DPOTrainer
args = DPOConfig(output_dir="q", max_length=2048, per_device_train_batch_size=4, bf16=True)
trainer = DPOTrainer(model="{MODEL}", args=args, train_dataset=None)
trainer.train()
"""
GRPO = f"""from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(output_dir="q", num_generations=8, max_completion_length=1024, max_prompt_length=512,
   per_device_train_batch_size=8, use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.3)
trainer = GRPOTrainer(model="{MODEL}", reward_funcs=len, args=args, train_dataset=None)
trainer.train()
"""
AXOLOTL = f"""base_model: {MODEL}
rl: METHOD
datasets: [{{path: x/y, type: chatml.intel}}]
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: true
flash_attention: true
gradient_checkpointing: true
"""
FACTORY = f"""model_name_or_path: {MODEL}
stage: dpo
pref_loss: METHOD
do_train: true
finetuning_type: full
template: qwen
cutoff_len: 2048
bf16: true
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
"""
SWIFT = (
    f"--model {MODEL} --dataset x --torch_dtype bfloat16 --max_length 4096 --per_device_train_batch_size 4"
)
VERL = (WILD / "ve-grpo-qwen3-8b.sh").read_text() if (WILD / "ve-grpo-qwen3-8b.sh").is_file() else ""
BESIDE_CRITIC = (
    f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={MODEL} data.max_response_length=1024 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.6 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 critic.ppo_micro_batch_size_per_gpu=2 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 trainer.n_gpus_per_node=4"
)
LOGITS = (
    f"python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path={MODEL} "
    "data.max_prompt_length=1024 data.max_response_length=8192 actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.rollout.n=5 actor_rollout_ref.rollout.gpu_memory_utilization=0.6 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 trainer.n_gpus_per_node=8"
)
PIPELINED = (
    f"{BESIDE_CRITIC.replace('n_gpus_per_node=4', 'n_gpus_per_node=8')} --config-name=ppo_megatron_trainer "
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 "
    "critic.megatron.tensor_model_parallel_size=2"
)
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-8B "
    "--reward.model_name_or_path Qwen/Qwen3-8B --actor.num_gpus_per_node 2 --ref.num_gpus_per_node 2 "
    "--critic.num_gpus_per_node 2 --reward.num_gpus_per_node 2 --vllm.num_engines 2 --ds.zero_stage 3 "
    "--vllm.gpu_memory_utilization 0.6 --train.micro_batch_size 2 --rollout.micro_batch_size 4 "
    "--data.max_len 1024 --actor.gradient_checkpointing_enable --train.colocate_all"
)
SLIME = (
    "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 2 --num-layers 36 "
    "--hf-checkpoint Qwen/Qwen3-4B "
    "--rollout-batch-size 8 --n-samples-per-prompt 8 --rollout-max-response-len 1024 "
    "--rollout-max-prompt-len 1024 --global-batch-size 64 --tensor-model-parallel-size 1 "
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
    "--use-dynamic-batch-size --max-tokens-per-gpu 4096 --advantage-estimator grpo "
    "--rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.6 --colocate --no-offload-rollout"
)
NEMO = (WILD / "nl-dpo.yaml").read_text()
POLICY = """
grpo: {num_prompts_per_step: 8, num_generations_per_prompt: 8}
loss_fn: {reference_policy_kl_penalty: 0.01}
policy:
  model_name: Qwen/Qwen3-4B
  train_global_batch_size: 64
  train_micro_batch_size: 16
  logprob_batch_size: 4
  max_total_sequence_length: 2048
  precision: bfloat16
  dtensor_cfg: {enabled: true, activation_checkpointing: true, tensor_parallel_size: 1, context_parallel_size: 1, cpu_offload: false}
  sequence_packing: {enabled: false}
  optimizer: {name: torch.optim.AdamW, kwargs: {foreach: false, fused: false}}
  generation:
    backend: BACKEND
    vllm_cfg: {tensor_parallel_size: 1, gpu_memory_utilization: 0.99, max_model_len: 2048}
    sglang_cfg: {tp_size: 1, pp_size: 1, mem_fraction_static: 0.97, context_length: 2048, sglang_server_config: {needs_offload: true, cpu_weight_backup: true}}
    colocated: {enabled: true, resources: {gpus_per_node: null, num_nodes: null}}
cluster: {gpus_per_node: 2, num_nodes: 1}
"""
SERVES = POLICY.replace("micro_batch_size: 16", "micro_batch_size: 1").replace("Qwen3-4B", "Qwen3-0.6B")
AWAKE = POLICY.replace("needs_offload: true", "needs_offload: false").replace(
    "fraction_static: 0.97", "fraction_static: 0.6"
)
SHARDED = (WILD / "ro-qwen3-8b-rlvr-fsdp2.yaml").read_text()
PRIME = (WILD / "pr-reverse-text-rl.toml").read_text()
WHOLE = '[trainer.model]\nfused_lm_head_token_chunk_size = "disabled"\n\n[trainer.optim]'
EXAMPLES = "accelerate launch --num_processes 2 examples/scripts"
SMALLER, REWARDS = PAIRS.replace("7B", "1.5B"), MODEL.replace("7B", "1.5B")
CASES: dict[str, tuple[str, str, str]] = {
    "a command of pairs": ("run.sh", f"trl dpo {PAIRS}", "2xA100-80GB"),
    "one card of pairs": ("run.sh", f"trl dpo {PAIRS.replace('7B', '0.5B')}", "1xRTX4090"),
    "a launch of pairs": ("run.sh", f"accelerate launch --num_processes 2 trl/scripts/dpo.py {PAIRS}", "2xA100-80GB"),
    "without a reference": ("run.sh", f"python examples/scripts/orpo.py {PAIRS.replace('7B', '1.5B')}", "1xRTX4090"),
    "marked examples": ("run.sh", f"trl kto {PAIRS}", "2xA100-80GB"),
    "a server beside": ("run.sh", f"trl grpo {PAIRS.replace('batch_size 6', 'batch_size 8')} {SERVED} --use_vllm true --vllm_mode colocate", "8xA100-80GB"),
    "no server": ("run.sh", f"trl grpo {PAIRS.replace('batch_size 6', 'batch_size 16').replace('7B', '1.5B')} {SERVED}", "8xRTX4090"),
    "its own reference": ("run.sh", f"trl grpo {PAIRS.replace('batch_size 6', 'batch_size 16').replace('7B', '1.5B')} {SERVED} --beta 0.1", "8xRTX4090"),
    "marked and long": ("run.sh", f"trl kto {PAIRS.replace('batch_size 6', 'batch_size 16').replace('7B', '1.5B')}", "1xRTX4090"),
    "a student": ("run.sh", f"python examples/scripts/gkd.py {PAIRS.replace('7B', '1.5B')} --teacher_model_name_or_path {MODEL}", "2xRTX4090"),
    **{script: ("run.sh", f"{EXAMPLES}/{script}.py {SMALLER} --reward_model_path {REWARDS} --max_new_tokens 256", "2xRTX4090") for script in ("dpo_online", "xpo", "nash_md")},
    **{script: ("run.sh", f"{EXAMPLES}/{script}.py {SMALLER}", "2xRTX4090") for script in ("tpo", "bco", "cpo")},
    "two students": ("run.sh", f"{EXAMPLES}/gold.py {SMALLER} --teacher_model_name_or_path {MODEL} --use_vllm true --vllm_mode colocate", "2xA100-40GB"),
    "policy and critic as one": ("run.sh", f"{EXAMPLES}/ppo/ppo.py {SMALLER} --sft_model_path {REWARDS} --reward_model_path {REWARDS} --response_length 256", "2xA100-40GB"),
    "leave one out": ("run.sh", f"trl rloo {PAIRS.replace('batch_size 6', 'batch_size 8')} {SERVED} --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.3", "8xA100-80GB"),
    "axolotl with a server": ("axo.yml", AXOLOTL.replace("METHOD", "grpo") + "trl: {use_vllm: true, vllm_mode: colocate, num_generations: 8, max_completion_length: 1024}\nvllm: {gpu_memory_utilization: 0.3}\n", "4xA100-80GB"),
    "a critic": ("lf.yaml", FACTORY.replace("stage: dpo", "stage: ppo").replace("pref_loss: METHOD", f"reward_model: {MODEL}"), "4xA100-80GB"),
    "a reward model": ("lf.yaml", FACTORY.replace("stage: dpo", "stage: rm").replace("pref_loss: METHOD\n", ""), "4xA100-80GB"),
    "swift over Megatron": ("run.sh", f"NPROC_PER_NODE=2 megatron rlhf --rlhf_type dpo --model {MODEL} --dataset x --micro_batch_size 4 --global_batch_size 16 --max_length 4096 --tensor_model_parallel_size 2 --tuner_type full", "2xA100-80GB"),
    "a script of pairs": ("train.py", DPO, "4xA100-80GB"),
    "a script with a server": ("train.py", GRPO, "8xA100-80GB"),
    "a recipe": ("dpo.yaml", f"model_name_or_path: {MODEL}\ndataset_name: x/y\nbeta: 0.1\nbf16: true\nmax_length: 2048\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 8\n", "8xA100-80GB"),
    **{f"axolotl {method}": ("axo.yml", AXOLOTL.replace("METHOD", method), "4xA100-40GB") for method in ("dpo", "ipo", "orpo", "kto")},
    **{f"llamafactory {loss}": ("lf.yaml", FACTORY.replace("METHOD", loss), "4xA100-80GB") for loss in ("sigmoid", "orpo")},
    **{f"swift {method}": ("run.sh", f"NPROC_PER_NODE=4 swift rlhf --rlhf_type {method} --tuner_type full {SWIFT}", "4xA100-80GB") for method in ("dpo", "kto", "orpo")},
    "swift with a server": ("run.sh", f"NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --tuner_type full {SWIFT} --max_completion_length 1024 --num_generations 8 --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.4", "8xA100-80GB"),
    "verl": ("run.sh", VERL.replace("actor_rollout_ref.rollout.n=5", "actor_rollout_ref.rollout.n=5 actor_rollout_ref.rollout.free_cache_engine=False"), "8xA100-80GB"),
    "beside a critic": ("run.sh", BESIDE_CRITIC, "4xH100-80GB"),
    "beside a critic of a newer release": ("run.sh", f"{BESIDE_CRITIC} critic.fsdp.forward_prefetch=False", "4xH100-80GB"),
    "beside a critic over Megatron": ("run.sh", PIPELINED, "8xH100-80GB"),
    "verl's log-probabilities": ("run.sh", f"{LOGITS} actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32", "8xH100-80GB"),
    "verl's reference": ("run.sh", f"{LOGITS} actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32", "8xH100-80GB"),
    "verl's older batch": ("run.sh", f"{LOGITS} actor_rollout_ref.rollout.log_prob_micro_batch_size=256", "8xH100-80GB"),
    "verl's packed log-probabilities": ("run.sh", f"{LOGITS} actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=262144", "8xH100-80GB"),
    "verl's update": ("run.sh", f"{LOGITS.replace('ppo_micro_batch_size_per_gpu=2', 'ppo_micro_batch_size_per_gpu=32')} actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1", "8xH100-80GB"),
    "verl's packed update": ("run.sh", f"{LOGITS} actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=262144", "8xH100-80GB"),
    "verl's critic": ("run.sh", f"{BESIDE_CRITIC.replace('critic.ppo_micro_batch_size_per_gpu=2', 'critic.ppo_micro_batch_size_per_gpu=256').replace('n_gpus_per_node=4', 'n_gpus_per_node=8')} critic.forward_micro_batch_size_per_gpu=1", "8xH100-80GB"),
    "areal's tokens": ("grpo.yaml", (WILD / "ar-gsm8k-grpo.yaml").read_text().replace("max_tokens_per_mb: 10240", "max_tokens_per_mb: 131072"), "8xH200"),
    "roll's rows": ("rlvr.yaml", SHARDED.replace("infer_batch_size: 4", "infer_batch_size: 64", 1), "16xA100-80GB"),
    "openrlhf": ("run.sh", OPENRLHF, "2xA100-80GB"),
    "slime": ("run.sh", SLIME, "2xA100-40GB"),
    "nemo-rl's pairs": ("dpo.yaml", NEMO, "1xRTX4090"),
    "nemo-rl's rows": ("grpo.yaml", POLICY.replace("BACKEND", "vllm"), "2xA100-80GB"),
    **{f"nemo-rl's {backend}": ("grpo.yaml", SERVES.replace("BACKEND", backend), "2xA100-40GB") for backend in ("vllm", "sglang")},
    "nemo-rl's server awake": ("grpo.yaml", AWAKE.replace("BACKEND", "sglang").replace("micro_batch_size: 16", "micro_batch_size: 4"), "2xA100-80GB"),
    "prime-rl's logits": ("rl.toml", PRIME.replace("[trainer.optim]", WHOLE).replace("seq_len = 2048", "seq_len = 32768"), "2xA100-40GB"),
    "prime-rl's share": ("rl.toml", PRIME.replace("[inference]", "[inference.vllm]\ngpu_memory_utilization = 0.99"), "2xA100-40GB"),
    "a script in sixteen bits": ("train.py", DPO.replace("bf16=True", "bf16=True, gradient_accumulation_steps=4"), "4xA100-80GB"),
    "adapters": ("run.sh", f"trl dpo {PAIRS.replace('7B', '32B')} --use_peft true --dtype bfloat16", "4xA100-80GB"),
    "weights in sixteen bits": ("run.sh", f"trl dpo {PAIRS} --dtype bfloat16 --gradient_accumulation_steps 4", "2xA100-80GB"),
}  # fmt: skip
OVERRIDE = re.compile(r"[\w.]+=\S+")
STARTED = {"dpo.yaml": "trl/scripts/dpo.py --config", "lf.yaml": "src/train.py"}
SMALL = 2e-2
"""Part of the need by which it may differ: a change of a plan leaves the bytes of a logit, and its
allocations are played anew.
"""


def nested_change(held: dict[str, Any], words: str) -> None:
    """Set what stands under a path of keys with points between them, by an override."""
    path, _, value = words.partition("=")
    *groups, key = path.strip().split(".")
    for name in groups:
        held = held.setdefault(name, {})
    held[key] = yaml.safe_load(value)


def pairs_of(words: str) -> list[tuple[str, str]]:
    """Keys and values of words as flags, or as arguments and overrides."""
    if words.startswith("--"):
        flags = (part.split() for part in words[2:].split(" --"))
        return [(key, " ".join(held) or "true") for key, *held in flags]
    return [(key, held) for key, _, held in (one.strip(",").partition("=") for one in words.split())]


def changed_text(file: str, text: str, words: str) -> str:
    """The file with the words written where its own say otherwise, else behind them."""
    if file.endswith(".toml"):
        path, _, value = words.partition(" = ")
        text, times = re.subn(
            rf"(?m)^{path.rpartition('.')[2]} = .*$", f"{path.rpartition('.')[2]} = {value}", text
        )
        assert times == 1
        return text
    if file.endswith((".yaml", ".yml")) and OVERRIDE.fullmatch(words):
        held = yaml.safe_load(text)
        nested_change(held, words)
        return str(yaml.safe_dump(held))
    if file.endswith((".yaml", ".yml")):
        held = yaml.safe_load(text)
        for key, value in yaml.safe_load(f"{{{words}}}").items():
            held[key] = {**held.get(key, {}), **value} if isinstance(value, dict) else value
        return str(yaml.safe_dump(held))
    for key, value in pairs_of(words):
        if file.endswith(".py"):
            text, times = re.subn(rf"\b{key}=[^,)\s]+", f"{key}={value}", text)
            text = text if times else text.replace("Config(", f"Config({key}={value}, ", 1)
        else:
            flag = f"--{key} {value}" if words.startswith("--") else f"{key}={value}"
            text, times = re.subn(rf"(?<!\S)(--)?{re.escape(key)}[= ][^\s\\-]\S*", flag, text)
            text = text if times else f"{text.rstrip()} {flag}\n"
    return text


def read_back(folder: Path, file: str, text: str, words: str, gpus: str) -> Checked:
    """What is told with a change as it is printed."""
    launch, _, rest = words.partition("accelerate launch ")
    if rest:  # a launcher's line: in place of the file's own, or as the one that starts it
        assert not launch
        if file.endswith(".sh"):
            text = re.sub(r"^(accelerate launch( --num_processes \d+)?|python)(?= )", words, text)
        else:
            target = words if file.endswith(".py") else f"{words} {STARTED[file]} {file}"
            (folder / file).write_text(text)
            (folder / "start.sh").write_text(f"{target}\n")
            return memsheet.check(folder / "start.sh", folder / file, gpus=gpus)
    else:
        text = changed_text(file, text, words)
    (folder / file).write_text(text)
    return memsheet.check(folder / file, gpus=gpus)


@cache
def checked(case: str) -> Checked:
    """What is told of a job as it stands: once for all that is asked of it."""
    file, text, gpus = CASES[case]
    with TemporaryDirectory() as folder:
        (Path(folder) / file).write_text(text)
        return memsheet.check(Path(folder) / file, gpus=gpus)


def needed(found: Checked) -> int:
    assert found.answer is not None
    assert found.answer.job is not None, found.why_not
    return max(int(sheet.device.value) for sheet in found.answer.sheets)


@pytest.mark.parametrize("case", CASES)
def test_a_change_written_as_it_is_printed_gives_what_it_promised(tmp_path: Path, case: str) -> None:
    file, text, gpus = CASES[case]
    found = checked(case)
    before = needed(found)
    cures: list[tuple[str, FoundMistake]] = [
        (rule.id, one)
        for rule, one in found.mistakes
        if rule.id.startswith("job-") and rule.id != "job-together"
    ]
    assert cures, found.doubt
    for kind, one in cures:
        after = read_back(tmp_path, file, text, str(one.cure), gpus)
        told: dict[str, Any] = {
            "case": case,
            "kind": kind,
            "cure": one.cure,
            "before": before,
            "after": needed(after),
        }
        assert needed(after) != before, told
        assert one.saves_bytes is not None
        assert abs(before - one.saves_bytes - needed(after)) <= SMALL * before, {
            **told,
            "saves": one.saves_bytes,
        }


OWN_BATCHES = {
    "verl's log-probabilities": "rollout.log_prob_micro_batch_size_per_gpu=", "verl's reference": "ref.log_prob_micro_batch_size_per_gpu=",
    "verl's older batch": "rollout.log_prob_micro_batch_size=null actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=",
    "verl's packed log-probabilities": "rollout.log_prob_max_token_len_per_gpu=", "verl's update": "actor.ppo_micro_batch_size_per_gpu=",
    "verl's packed update": "actor.ppo_max_token_len_per_gpu=", "verl's critic": "critic.ppo_micro_batch_size_per_gpu=",
    "areal's tokens": "actor.mb_spec.max_tokens_per_mb=", "roll's rows": "actor_train.infer_batch_size=",
}  # fmt: skip


@pytest.mark.parametrize("case", OWN_BATCHES)
def test_a_batch_of_one_pass_alone_is_told_and_changes_the_verdict(tmp_path: Path, case: str) -> None:
    """A pass that is too large is not mended by another's option: none was offered."""
    file, text, gpus = CASES[case]
    found = checked(case)
    assert found.result is not memsheet.Result.FITS
    own = [str(one.cure) for rule, one in found.mistakes if rule.id in ("job-rows", "job-tokens")]
    assert [one for one in own if OWN_BATCHES[case] in one], (own, found.mistakes)
    after = [read_back(tmp_path, file, text, one, gpus).answer for one in own]
    assert any(
        max(int(sheet.device.high) for sheet in one.sheets) <= one.cluster.device.framework_low_bytes
        for one in after
        if one is not None and one.cluster is not None
    )


@pytest.mark.parametrize("case", CASES)
def test_a_jobs_range_is_that_of_its_phases_and_its_doubt_is_told_first(case: str) -> None:
    """The rows' ends were those of one instant alone, and without what the files leave open."""
    found = checked(case)
    assert found.answer is not None
    verdict = found.answer.verdict
    assert verdict is not None
    sheet = next(one for one in found.answer.sheets if one.rank == verdict.rank)
    needs = list(phase_needs(sheet, found.answer.cluster, verdict.device))
    for end in ("low", "high"):
        ends = [int(getattr(need.device, end)) for need in needs]
        assert max(ends) == int(getattr(verdict.device, end)), (end, ends, verdict.device)
    parts = render_checked(found, Look(width=100)).split("\n\n")
    told = parts[1].startswith("Because")
    assert told is (verdict.result is memsheet.Result.UNCERTAIN), parts[:2]


@pytest.mark.parametrize("case", CASES)
def test_no_mistake_stays_that_its_own_cure_mended(tmp_path: Path, case: str) -> None:
    """Of a job whose loss was told to make no whole logits, nothing says that it makes them."""
    file, text, gpus = CASES[case]
    mended = [str(one.cure) for rule, one in checked(case).mistakes if rule.id == "job-logits"]
    for words in mended:
        left = {rule.id for rule, _ in read_back(tmp_path, file, text, words, gpus).mistakes}
        assert not left & {"job-logits", "whole-logits"}, (case, words)


@pytest.mark.parametrize("launch", ["", "--accelerate_config fsdp2"])
@pytest.mark.parametrize("gpus", ["1xH200", "8xA100-80GB", "8xH100-80GB"])
def test_a_kernel_that_saves_does_not_raise_the_high_end(tmp_path: Path, gpus: str, launch: str) -> None:
    """Doubts about releases are of the command with it and of that without it."""
    beside = (
        "--use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.3 --vllm_enable_sleep_mode true"
    )
    told = []
    for kernel in ("", "--use_liger_kernel true"):
        text = f"trl grpo --model_name_or_path {MODEL} --dataset_name x {SERVED} {beside} {launch} {kernel}\n"
        (tmp_path / "run.sh").write_text(text)
        found = memsheet.check(tmp_path / "run.sh", gpus=gpus)
        assert found.answer is not None
        assert found.answer.verdict is not None
        told.append((found.answer.verdict.device.high, "which releases run" in found.doubt))
    (plain, doubted), (fused, doubted_too) = told
    assert fused <= plain
    assert doubted == doubted_too
