"""What a shell's script gives a program of OpenRLHF: dotted flags (``--actor.num_nodes 1``), those of older
releases by their new names, and the processes of its launcher. Read as text, never run.

Lines are of OpenRLHF/OpenRLHF at 3c3be62, under openrlhf. A flag's dots are places (utils/config.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.launched_script import PROGRAM
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

if TYPE_CHECKING:
    from memsheet.exchange.shared.started_programs import Started
with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import flags_of
    from memsheet.exchange.shared.started_programs import module_index, started_programs


RL, SFT, DPO, REWARD, KTO, KD = "train_ppo_ray", "train_sft", "train_dpo", "train_rm", "train_kto", "train_kd"
PRM = "train_prm"
PROGRAMS = (RL, SFT, DPO, REWARD, KTO, KD, PRM)
"""Programs that train (cli); the last three are of releases before 0.10 (0366071 cli/train_kto.py;
OpenRLHF/OpenRLHF-M 2bf6337 openrlhf/cli/train_{kd,prm}.py: whole logits, of which marks are learnt from).
"""
MODULE = late_pattern(r"openrlhf\.cli\.\w+")
FILE = late_pattern(rf"(?:.*/)?(?:{'|'.join(PROGRAMS)})\.py")
COUNTS = {"nproc_per_node": "--nproc-per-node", "nnodes": "--nnodes", "num_gpus": "--nproc-per-node", "num_nodes": "--nnodes"}  # fmt: skip
LAUNCHES = "$.launches"
OLDER: Mapping[str, str] = {
    "pretrain": "{own}.model_name_or_path", "reward_pretrain": "reward.model_name_or_path", "critic_pretrain": "critic.model_name_or_path",
    "ref_pretrain": "ref.model_name_or_path", "remote_rm_url": "reward.remote_url", "agent_func_path": "train.agent_func_path",
    **{f"{role}_{name}": f"{role}.{name}" for role in ("actor", "ref", "critic", "reward") for name in ("num_nodes", "num_gpus_per_node")},
    "colocate_all_models": "train.colocate_all", "colocate_actor_ref": "train.colocate_actor_ref", "colocate_critic_reward": "train.colocate_critic_reward",
    **{f"vllm_{name}": f"vllm.{name}" for name in ("num_engines", "tensor_parallel_size", "gpu_memory_utilization", "enable_sleep", "sync_backend", "sync_with_ray")},
    "enforce_eager": "vllm.enforce_eager", "enable_prefix_caching": "vllm.enable_prefix_caching", "deepspeed_enable_sleep": "ds.enable_sleep",
    "zero_stage": "ds.zero_stage", "adam_offload": "ds.adam_offload", "zpg": "ds.zpg", "grad_accum_dtype": "ds.grad_accum_dtype",
    "overlap_comm": "ds.overlap_comm", "deepcompile": "ds.deepcompile", "attn_implementation": "ds.attn_implementation", "load_in_4bit": "ds.load_in_4bit",
    "use_liger_kernel": "ds.use_liger_kernel", "packing_samples": "ds.packing_samples", "ring_attn_size": "ds.ring_attn_size",
    "ring_head_stride": "ds.ring_attn_head_stride", "ds_tensor_parallel_size": "ds.tensor_parallel_size", "lora_rank": "ds.lora.rank",
    "lora_alpha": "ds.lora.alpha", "lora_dropout": "ds.lora.dropout", "target_modules": "ds.lora.target_modules",
    "gradient_checkpointing": "{own}.gradient_checkpointing_enable", "gradient_checkpointing_use_reentrant": "{own}.gradient_checkpointing_reentrant",
    "micro_train_batch_size": "train.micro_batch_size", "train_batch_size": "train.batch_size", "micro_rollout_batch_size": "rollout.micro_batch_size",
    "rollout_batch_size": "rollout.batch_size", "n_samples_per_prompt": "rollout.n_samples_per_prompt", "use_dynamic_batch": "train.dynamic_batch_enable",
    "train_max_tokens_per_gpu": "train.max_tokens_per_gpu", "rollout_max_tokens_per_gpu": "rollout.max_tokens_per_gpu", "max_len": "data.max_len",
    "async_train": "train.async_enable", "enable_ema": "train.enable_ema", "init_kl_coef": "algo.kl.init_coef", "use_kl_loss": "algo.kl.use_loss",
    "advantage_estimator": "algo.advantage.estimator", "entropy_loss_coef": "actor.entropy_coef", "temperature": "rollout.temperature",
    "teacher_model": "teacher.model_name_or_path", "teacher_offload": "teacher.offload", "ref_offload": "ref.offload", "ref_reward_offload": "ref.offload", "freeze_visual_encoder": "actor.freeze_visual_encoder",
    "enable_vllm_is_correction": "algo.advantage.is_correction_enable", "beta": "model.beta",
}  # fmt: skip
"""Flags of releases before 0.10 and what they became (f5b3f08 cli/train_ppo_ray.py; utils/config.py)."""
LENGTHS = ("prompt_max_len", "generate_max_len")
"""The two parts of a row there, 1,024 each where nothing is said (f5b3f08 cli/train_ppo_ray.py)."""
PART, OLDER_ROWS, OLDER_READ = 1024, 4, 8
"""And rows of a micro-batch of the update and of the passes that read."""


def openrlhf_values(text: str) -> dict[str, Any]:
    """The values of the first training that a text starts, by their places; nothing where there is none."""
    if "openrlhf" not in text.lower() and not any(f"{name}.py" in text for name in PROGRAMS):
        return {}
    found = list(_started_trainings(text))
    several = {} if len(found) < 2 else {LAUNCHES: f"{len(found)} (the first is read)"}
    return {**found[0], **several} if found else {}


def _started_trainings(text: str) -> Iterator[dict[str, Any]]:
    for started in started_programs(text, _trainer_index):
        values = _launch_values(started)
        if values[PROGRAM] in PROGRAMS and any(".model_name_or_path" in at for at in values):
            yield values


def _trainer_index(words: Sequence[str]) -> int | None:
    return module_index(words, MODULE, FILE)


def _launch_values(started: Started) -> dict[str, Any]:
    name = started.program.removesuffix(".py").rpartition("/")[2].rpartition(".")[2]
    launcher = flags_of([word for word in started.before if word not in ("-m", "--module")])[0]
    counts = {COUNTS[at]: held for at, held in launcher.items() if at in COUNTS}
    given = _by_new_names(flags_of(started.given)[0], name)
    return {PROGRAM: name, **counts, **given}


def own_place(program: str) -> str:
    """The group of the model that trains."""
    return "actor" if program == RL else "model"


def _by_new_names(given: Mapping[str, Any], program: str) -> dict[str, Any]:
    """Flags by the names of this release, with what an older one takes where nothing is said."""
    own = own_place(program)
    found = {OLDER.get(at, at).format(own=own): held for at, held in given.items() if at not in LENGTHS}
    if not any(at in OLDER for at in given):
        return found
    if program == RL:
        found = {"train.micro_batch_size": OLDER_ROWS, "rollout.micro_batch_size": OLDER_READ, **found}
        sizes = [PART if given.get(part) is None else given[part] for part in LENGTHS]
        whole = sum(sizes) if all(type(size) is int for size in sizes) else UNSET
        found = {"data.max_len": whole, **found}
    found.setdefault("ds.param_dtype", "bf16" if found.pop("bf16", None) is True else UNSET)
    if found.pop("flash_attn", None) is True:
        found["ds.attn_implementation"] = "flash_attention_2"
    if given.get("ref_reward_offload") is True:
        found["reward.offload"] = True
    return found
