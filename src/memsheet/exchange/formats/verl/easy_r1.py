"""EasyR1's places by verl's: a fork of it with a configuration of its own (``python3 -m verl.trainer.main
config=config.yaml worker.actor.model.model_path=…``), whose learner is FSDP's first.

Lines are of hiyouga/EasyR1 at b44b311, under verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import MORE, UNSET
from memsheet.exchange.shared.launched_script import PROGRAM

OF_FORK = "worker.actor."
SAYS = "of EasyR1, a fork of verl: its places are read as verl's"
CONFIG_GIVEN = "config"
"""trainer/main.py:112: the file that the command's words go before."""
W, A, M, R = "worker.actor", "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.rollout"
PLACES = {
    f"{W}.model.model_path": f"{M}.path", f"{W}.model.tokenizer_path": f"{M}.tokenizer_path", f"{W}.model.trust_remote_code": f"{M}.trust_remote_code",
    f"{W}.model.enable_gradient_checkpointing": f"{M}.enable_gradient_checkpointing", f"{W}.model.freeze_vision_tower": f"{A}.freeze_vision_tower",
    f"{W}.model.lora.rank": f"{M}.lora_rank", f"{W}.model.lora.alpha": f"{M}.lora_alpha", f"{W}.model.lora.target_modules": f"{M}.target_modules",
    f"{W}.model.lora.exclude_modules": f"{M}.exclude_modules",
    f"{W}.global_batch_size": f"{A}.ppo_mini_batch_size", f"{W}.micro_batch_size_per_device_for_update": f"{A}.ppo_micro_batch_size_per_gpu",
    f"{W}.micro_batch_size_per_device_for_experience": f"{R}.log_prob_micro_batch_size_per_gpu", f"{W}.padding_free": f"{M}.use_remove_padding",
    f"{W}.ulysses_size": f"{A}.ulysses_sequence_parallel_size", f"{W}.ulysses_sequence_parallel_size": f"{A}.ulysses_sequence_parallel_size",
    f"{W}.ppo_epochs": f"{A}.ppo_epochs", f"{W}.max_grad_norm": f"{A}.grad_clip", f"{W}.use_torch_compile": f"{A}.use_torch_compile",
    f"{W}.fsdp.enable_full_shard": f"{A}.fsdp_config.reshard_after_forward", f"{W}.fsdp.fsdp_size": f"{A}.fsdp_config.fsdp_size", f"{W}.fsdp.torch_dtype": f"{A}.fsdp_config.model_dtype",
    f"{W}.fsdp.mp_param_dtype": f"{A}.fsdp_config.mixed_precision.param_dtype", f"{W}.fsdp.mp_reduce_dtype": f"{A}.fsdp_config.mixed_precision.reduce_dtype",
    f"{W}.fsdp.mp_buffer_dtype": f"{A}.fsdp_config.mixed_precision.buffer_dtype", f"{W}.fsdp.use_orig_params": f"{A}.fsdp_config.use_orig_params",
    f"{W}.offload.offload_params": f"{A}.fsdp_config.param_offload", f"{W}.offload.offload_optimizer": f"{A}.fsdp_config.optimizer_offload",
    f"{W}.optim.lr": f"{A}.optim.lr", f"{W}.optim.weight_decay": f"{A}.optim.weight_decay", f"{W}.optim.betas": f"{A}.optim.betas",
    "worker.rollout.n": f"{R}.n", "worker.rollout.gpu_memory_utilization": f"{R}.gpu_memory_utilization",
    "worker.rollout.tensor_parallel_size": f"{R}.tensor_model_parallel_size", "worker.rollout.max_num_batched_tokens": f"{R}.max_num_batched_tokens",
    "worker.rollout.max_model_len": f"{R}.max_model_len", "worker.rollout.enforce_eager": f"{R}.enforce_eager",
    "algorithm.use_kl_loss": f"{A}.use_kl_loss", "algorithm.adv_estimator": "algorithm.adv_estimator",
    "trainer.nnodes": "trainer.nnodes", "trainer.n_gpus_per_node": "trainer.n_gpus_per_node",
    "data.max_prompt_length": "data.max_prompt_length", "data.max_response_length": "data.max_response_length", "data.rollout_batch_size": "data.train_batch_size",
}  # fmt: skip
"""workers/actor/config.py, workers/rollout/config.py, trainer/config.py; what they come to in
workers/fsdp_workers.py:113-350.
"""
USUAL = {
    f"{A}.ppo_micro_batch_size_per_gpu": 4, f"{A}.ppo_mini_batch_size": 256, "algorithm.adv_estimator": "grpo", f"{R}.tensor_model_parallel_size": 2,
    f"{R}.name": "vllm", f"{R}.gpu_memory_utilization": 0.6, f"{R}.log_prob_micro_batch_size_per_gpu": 16, f"{A}.fsdp_config.reshard_after_forward": True,
}  # fmt: skip
"""What EasyR1 takes where nothing is said, and verl otherwise (workers/actor/config.py:80-137)."""
OPTIMIZERS = {"adamw": "AdamW"}


def easy_r1_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat values of EasyR1 at verl's places, with what only EasyR1 says of memory told beside."""
    found = {PLACES[at]: held for at, held in values.items() if at in PLACES and held is not None}
    optimizer = str(values.get(f"{W}.optim.strategy", "adamw"))
    told = [SAYS]
    if optimizer in OPTIMIZERS:
        found |= {
            f"{A}.optim.optimizer": OPTIMIZERS[optimizer],
            f"{A}.optim.override_optimizer_config.fused": True,
        }
    else:
        told.append(f"optim.strategy {optimizer}, which keeps its moments otherwise")
    if values.get(f"{W}.fsdp.enable_cpu_offload") is True:
        told.append("fsdp.enable_cpu_offload, which the sheet is without")
    if values.get("algorithm.disable_kl", False) is False and not values.get("algorithm.use_kl_loss"):
        found["algorithm.use_kl_in_reward"] = True
    looked = f"{W}.micro_batch_size_per_device_for_experience"
    if looked in values:  # workers/config.py:50: the reference's is the actor's
        found["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"] = values[looked]
    left = {at: held for at, held in values.items() if at in (PROGRAM, MORE) or at.startswith(("--", "$."))}
    more = [str(values[MORE])] if MORE in values else []
    own = {} if values.get(CONFIG_GIVEN) else USUAL
    return {**own, **found, **left, PROGRAM: "main_ppo", MORE: "; ".join([*told, *more])}


def is_easy_r1(values: Mapping[str, Any]) -> bool:
    """Whether flat values are EasyR1's: those of its actor, and none of verl's."""
    ours = any(at.startswith(OF_FORK) for at in values)
    return ours and not any(at.startswith("actor_rollout_ref.") for at in values)


def easy_r1_tree(tree: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The values of a configuration of EasyR1's; nothing of any other file."""
    worker = tree.get("worker")
    actor = worker.get("actor") if isinstance(worker, Mapping) else None
    if not isinstance(actor, Mapping) or not isinstance(actor.get("model"), Mapping):
        return None
    from memsheet.exchange import flatten_tree

    return {at: held for at, held in easy_r1_values(dict(flatten_tree(tree))).items() if held != UNSET}
