"""EasyR1's settings in verl's keys: the program that it was made from has the same parts under other names.

Lines are of hiyouga/EasyR1 b44b311, under verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.verl.overrides import CONFIG, verl_values
from memsheet.exchange.formats.verl.skyrl import is_skyrl, skyrl_as_verl
from memsheet.exchange.formats.verl.strategies import ACTOR, MODEL, ROLLOUT
from memsheet.exchange.shared.dotted_places import flatten_tree
from memsheet.exchange.shared.file_format import MORE

WORKER, CONFIG_WORD = "worker", "config"
"""The group that no file of verl's own has, and the override that names the file of settings."""
OF_REFERENCE = "actor_rollout_ref.ref"
OF_FSDP: Mapping[str, str] = {
    "fsdp.enable_full_shard": "reshard_after_forward", "fsdp.fsdp_size": "fsdp_size", "fsdp.torch_dtype": "model_dtype",
    "fsdp.enable_cpu_offload": "offload_policy", "offload.offload_params": "param_offload", "offload.offload_optimizer": "optimizer_offload",
}  # fmt: skip
"""workers/actor/config.py:74-93."""
OF_STEPS: Mapping[str, str] = {
    "global_batch_size": "ppo_mini_batch_size", "micro_batch_size_per_device_for_update": "ppo_micro_batch_size_per_gpu",
    "ppo_epochs": "ppo_epochs", "ulysses_size": "ulysses_sequence_parallel_size",
}  # fmt: skip
"""workers/actor/config.py:97-141, as its own file of settings tells (../examples/config.yaml:36-38)."""
KEYS: Mapping[str, tuple[str, ...]] = {
    **{f"worker.actor.{at}": (f"{ACTOR}.fsdp_config.{key}",) for at, key in OF_FSDP.items()},
    **{f"worker.critic.{at}": (f"critic.model.fsdp_config.{key}",) for at, key in OF_FSDP.items()},
    **{f"worker.actor.{at}": (f"{ACTOR}.{key}",) for at, key in OF_STEPS.items()},
    **{f"worker.critic.{at}": (f"critic.{key}",) for at, key in OF_STEPS.items()},
    "worker.actor.micro_batch_size_per_device_for_experience": (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", f"{OF_REFERENCE}.log_prob_micro_batch_size_per_gpu"),
    "worker.critic.micro_batch_size_per_device_for_experience": ("critic.forward_micro_batch_size_per_gpu",),
    "worker.actor.model.model_path": (f"{MODEL}.path",), "worker.critic.model.model_path": ("critic.model.path",),
    "worker.actor.model.enable_gradient_checkpointing": (f"{MODEL}.enable_gradient_checkpointing",),
    "worker.critic.model.enable_gradient_checkpointing": ("critic.model.enable_gradient_checkpointing",),
    "worker.actor.model.lora.rank": (f"{MODEL}.lora_rank",), "worker.actor.model.lora.target_modules": (f"{MODEL}.target_modules",),
    "worker.actor.padding_free": (f"{MODEL}.use_remove_padding",), "worker.critic.padding_free": ("critic.model.use_remove_padding",),
    "worker.ref.fsdp.enable_cpu_offload": (f"{OF_REFERENCE}.fsdp_config.param_offload",), "worker.ref.fsdp.torch_dtype": (f"{OF_REFERENCE}.fsdp_config.model_dtype",),
    "worker.rollout.tensor_parallel_size": (f"{ROLLOUT}.tensor_model_parallel_size",),
    **{f"worker.rollout.{at}": (f"{ROLLOUT}.{at}",) for at in ("name", "n", "gpu_memory_utilization", "enforce_eager", "max_model_len", "max_num_batched_tokens", "dtype")},
    "data.rollout_batch_size": ("data.train_batch_size",),
    **{at: (at,) for at in ("data.max_prompt_length", "data.max_response_length", "algorithm.adv_estimator", "trainer.nnodes", "trainer.n_gpus_per_node")},
}  # fmt: skip
"""By an own key those of verl's that mean the same."""
KL, NO_KL = "algorithm.use_kl_loss", "algorithm.disable_kl"
DEFAULTS: Mapping[str, Any] = {
    "worker.actor.fsdp.enable_full_shard": True, "worker.actor.global_batch_size": 256, "worker.actor.micro_batch_size_per_device_for_update": 4,
    "worker.actor.micro_batch_size_per_device_for_experience": 16, "worker.actor.padding_free": True, "worker.ref.fsdp.torch_dtype": "bf16",
    "worker.critic.micro_batch_size_per_device_for_update": 4, "worker.critic.micro_batch_size_per_device_for_experience": 16,
    "worker.rollout.name": "vllm", "worker.rollout.gpu_memory_utilization": 0.6, "worker.rollout.tensor_parallel_size": 2,
    "algorithm.adv_estimator": "grpo", KL: False, NO_KL: False, "data.rollout_batch_size": 512,
}  # fmt: skip
"""workers/actor/config.py:97-141, workers/critic/config.py, workers/rollout/config.py:22-50,
workers/fsdp_workers.py:198 (the reference's dtype), trainer/config.py:36-90.
"""
ADAMW: Mapping[str, Any] = {
    f"{ACTOR}.optim.optimizer": "AdamW",
    f"{ACTOR}.optim.override_optimizer_config.fused": True,
}
"""workers/fsdp_workers.py:113-350, of the strategy adamw."""
COUNTED = "EasyR1, whose steps are counted as those of verl, from which it was made"


def is_easy_r1(values: Mapping[str, Any]) -> bool:
    """Whether flat values are EasyR1's."""
    return any(at.startswith((f"{WORKER}.actor.", f"{WORKER}.rollout.")) for at in values)


def as_verl(values: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
    """Flat values in verl's keys; keys that no byte depends on, or that verl has none for, are left out,
    for which nothing of it is sure. ``whole``: whether no file says the rest, so that defaults stand.
    """
    own = {**(DEFAULTS if whole else {}), **values}
    found = {key: held for at, held in own.items() if held is not None for key in KEYS.get(at, ())}
    if KL in own or NO_KL in own:
        off = str(own.get(NO_KL)).lower() == "true"
        in_loss = str(own.get(KL)).lower() == "true"
        found |= {f"{ACTOR}.use_kl_loss": in_loss and not off}
        found |= {"algorithm.use_kl_in_reward": not (off or in_loss)} if NO_KL in own else {}
    narrow = own.get("worker.actor.optim.strategy", "adamw" if whole else None)  # else a file says it
    beside = f", and whose optimizer is {narrow}" if narrow not in ("adamw", None) else ""
    found |= ADAMW if narrow == "adamw" else {}
    return {**found, MORE: f"of {COUNTED}{beside}"}


def easy_r1_tree(tree: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values of a file of settings of EasyR1's, in verl's keys; None of any other file."""
    if not isinstance(tree.get(WORKER), Mapping):
        return None
    values = dict(flatten_tree(tree))
    return as_verl(values, whole=True) if is_easy_r1(values) else None


def launched_values(text: str) -> dict[str, Any]:
    """The values of the program that a text starts: verl's, or what others of its kind say in verl's keys,
    EasyR1's beside the file that they name.
    """
    values = verl_values(text)
    kept = {at: held for at, held in values.items() if at[:1] in ("$", "-", "@")}
    if is_skyrl(values):
        return {**kept, **skyrl_as_verl(values)}
    if not is_easy_r1(values):
        return values
    named = values.get(CONFIG_WORD)
    file = {CONFIG: named} if isinstance(named, str) else {}
    return {**kept, **as_verl(values, whole=not file), **file}
