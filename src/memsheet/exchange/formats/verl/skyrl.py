"""SkyRL's settings in verl's keys: the same models take turns on the same cards under other names.

Lines are of NovaSky-AI/SkyRL a956457, skyrl/train/config/config.py where no other file is named. Releases
before have keys of the generator without ``inference_engine``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.verl.strategies import ACTOR, MODEL, ROLLOUT
from memsheet.exchange.shared.file_format import MORE

POLICY, REFERENCE, ENGINE, PLACES = (
    "trainer.policy",
    "trainer.ref",
    "generator.inference_engine",
    "trainer.placement",
)
MEGATRON_WORDS: Mapping[str, str] = {
    **{f"{name}_parallel_size": f"{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor")},
    **{f"transformer_config_kwargs.{name}": f"override_transformer_config.{name}" for name in ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")},
}  # fmt: skip
KEYS: Mapping[str, tuple[str, ...]] = {
    f"{POLICY}.model.path": (f"{MODEL}.path",), f"{POLICY}.model.lora.rank": (f"{MODEL}.lora_rank",),
    f"{POLICY}.fsdp_config.cpu_offload": (f"{ACTOR}.fsdp_config.offload_policy",), f"{POLICY}.fsdp_config.fsdp_size": (f"{ACTOR}.fsdp_config.fsdp_size",),
    f"{POLICY}.fsdp_config.reshard_after_forward": (f"{ACTOR}.fsdp_config.reshard_after_forward",),
    f"{POLICY}.sequence_parallel_size": (f"{ACTOR}.ulysses_sequence_parallel_size",),
    **{f"{POLICY}.megatron_config.{at}": (f"{ACTOR}.megatron.{key}",) for at, key in MEGATRON_WORDS.items()},
    **{f"{REFERENCE}.megatron_config.{at}": (f"actor_rollout_ref.ref.megatron.{key}",) for at, key in MEGATRON_WORDS.items() if at.endswith("size")},
    **{f"{POLICY}.megatron_config.optimizer_config_kwargs.{at}": (f"{ACTOR}.optim.override_optimizer_config.{at}",) for at in ("optimizer_cpu_offload", "optimizer_offload_fraction", "use_precision_aware_optimizer", "overlap_cpu_optimizer_d2h_h2d")},
    "trainer.critic.model.path": ("critic.model.path",), "trainer.gradient_checkpointing": (f"{MODEL}.enable_gradient_checkpointing", "critic.model.enable_gradient_checkpointing"),
    "trainer.remove_microbatch_padding": (f"{MODEL}.use_remove_padding", "critic.model.use_remove_padding"),
    "trainer.train_batch_size": ("data.train_batch_size",), "trainer.policy_mini_batch_size": (f"{ACTOR}.ppo_mini_batch_size",),
    "trainer.critic_mini_batch_size": ("critic.ppo_mini_batch_size",),
    "trainer.micro_train_batch_size_per_gpu": (f"{ACTOR}.ppo_micro_batch_size_per_gpu", "critic.ppo_micro_batch_size_per_gpu"),
    "trainer.micro_forward_batch_size_per_gpu": (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu", "critic.forward_micro_batch_size_per_gpu"),
    "trainer.algorithm.advantage_estimator": ("algorithm.adv_estimator",), "trainer.algorithm.use_kl_loss": (f"{ACTOR}.use_kl_loss",),
    "trainer.algorithm.use_kl_in_reward": ("algorithm.use_kl_in_reward",),
    "generator.sampling_params.max_generate_length": ("data.max_response_length",), "generator.n_samples_per_prompt": (f"{ROLLOUT}.n",),
    f"{ENGINE}.engine_init_kwargs.max_model_len": (f"{ROLLOUT}.max_model_len",), f"{ENGINE}.backend": (f"{ROLLOUT}.name",),
    **{f"{ENGINE}.{name}_parallel_size": (f"{ROLLOUT}.{key}_parallel_size",) for name, key in (("tensor", "tensor_model"), ("pipeline", "pipeline_model"), ("expert", "expert"), ("data", "data"))},
    **{f"{ENGINE}.{name}": (f"{ROLLOUT}.{name}",) for name in ("gpu_memory_utilization", "enforce_eager", "max_num_batched_tokens", "max_num_seqs")},
    f"{PLACES}.policy_num_nodes": ("trainer.nnodes",), f"{PLACES}.policy_num_gpus_per_node": ("trainer.n_gpus_per_node",),
}  # fmt: skip
"""By an own key those of verl's that mean the same."""
EARLIER: Mapping[str, str] = {
    "generator.num_inference_engines": f"{ENGINE}.num_engines", "generator.inference_engine_tensor_parallel_size": f"{ENGINE}.tensor_parallel_size",
    "generator.inference_engine_pipeline_parallel_size": f"{ENGINE}.pipeline_parallel_size", "generator.inference_engine_data_parallel_size": f"{ENGINE}.data_parallel_size",
    "generator.inference_engine_expert_parallel_size": f"{ENGINE}.expert_parallel_size", "trainer.use_sample_packing": "trainer.remove_microbatch_padding",
    **{f"generator.{name}": f"{ENGINE}.{name}" for name in ("backend", "gpu_memory_utilization", "enforce_eager", "max_num_batched_tokens", "max_num_seqs")},
}  # fmt: skip
DEFAULTS: Mapping[str, Any] = {
    "trainer.strategy": "fsdp", "trainer.gradient_checkpointing": True, "trainer.remove_microbatch_padding": True, "trainer.train_batch_size": 1024,
    "trainer.policy_mini_batch_size": 256, "trainer.micro_train_batch_size_per_gpu": 1, "trainer.micro_forward_batch_size_per_gpu": 1,
    "trainer.algorithm.advantage_estimator": "grpo", "trainer.algorithm.use_kl_loss": True, "trainer.algorithm.use_kl_in_reward": False,
    "trainer.max_prompt_length": 512, "generator.sampling_params.max_generate_length": 1024,
    f"{ENGINE}.backend": "vllm", f"{ENGINE}.tensor_parallel_size": 1, f"{ENGINE}.gpu_memory_utilization": 0.8, f"{ENGINE}.max_num_seqs": 1024, f"{ENGINE}.num_engines": 1,
    f"{PLACES}.policy_num_nodes": 1, f"{PLACES}.policy_num_gpus_per_node": 1, f"{PLACES}.colocate_all": True,
    **{f"{POLICY}.megatron_config.transformer_config_kwargs.{at}": held for at, held in (("recompute_granularity", "full"), ("recompute_method", "uniform"), ("recompute_num_layers", 1))},
}  # fmt: skip
""":447-453, 556-557, 1099-1172, 1344-1440."""
COUNTED = "SkyRL, whose steps are counted as those of verl, which has the same"
OFFLOADED = ("param_offload", "optimizer_offload", "grad_offload")


def is_skyrl(values: Mapping[str, Any]) -> bool:
    """Whether flat values are SkyRL's."""
    return f"{POLICY}.model.path" in values


def skyrl_as_verl(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat values of SkyRL's in verl's keys, for which nothing of it is sure: keys that no byte depends on,
    or that verl has none for, are left out.
    """
    said = {EARLIER.get(at, at): held for at, held in values.items()}
    own = {**DEFAULTS, **said}
    pipelined = str(own["trainer.strategy"]) == "megatron"
    mine = {at: held for at, held in own.items() if ".megatron_config." not in at or pipelined}
    found = {key: held for at, held in mine.items() if held is not None for key in KEYS.get(at, ())}
    found[f"{ACTOR}.strategy"] = "megatron" if pipelined else "fsdp2"
    longest = (own["trainer.max_prompt_length"], own.get("generator.max_input_length"))
    found["data.max_prompt_length"] = max((at for at in longest if type(at) is int), default=longest[0])
    return {**found, **_places(own, pipelined=pipelined), MORE: f"of {COUNTED}"}


def _places(own: Mapping[str, Any], *, pipelined: bool) -> dict[str, Any]:
    """What leaves the cards where servers share them (../trainer.py:805-830), and the servers' own cards
    where they do not.
    """
    if str(own[f"{PLACES}.colocate_all"]).lower() == "true":
        place = "megatron" if pipelined else "fsdp_config"
        away = [f"{ACTOR}.{place}.{at}" for at in OFFLOADED]
        away += [f"critic.model.fsdp_config.{at}" for at in OFFLOADED[:2]]
        return dict.fromkeys((*away, f"actor_rollout_ref.ref.{place}.param_offload"), True)
    each = [
        own.get(f"{ENGINE}.{at}", 1) for at in ("num_engines", "tensor_parallel_size", "data_parallel_size")
    ]
    known = all(type(one) is int for one in each)
    cards = {"rollout.nnodes": 1, "rollout.n_gpus_per_node": each[0] * each[1] * each[2]} if known else {}
    return {"actor_rollout_ref.hybrid_engine": False, **cards}
