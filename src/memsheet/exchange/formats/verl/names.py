"""Keys of verl's configurations that change no byte of the trained model, and those that do and are not
accounted.

Of volcengine/verl at b178a3cd5, verl/trainer/config; older names are kept as scripts still say them.
"""

from __future__ import annotations

from typing import Any

from memsheet.exchange.formats.verl.losses import OFFLOADS, ROLES, ULYSSES
from memsheet.exchange.formats.verl.overrides import CONFIG, LAUNCHES, STOCK
from memsheet.exchange.formats.verl.pipelined import OPTIMIZER_OVERRIDES, OVERRIDES
from memsheet.exchange.formats.verl.strategies import ACTOR, GROUPS, MODEL

OTHER_ROLES = frozenset({
    "actor_rollout_ref.rollout.*", "actor_rollout_ref.ref.*", "critic.*", "reward_model.*", "reward.*", "reward_manager.*", "rollout.*", "async_training.*",
    "custom_reward_function.*", "algorithm.*", "global_profiler.*", "profiler.*", "ray_kwargs.*", "ray_init.*", "transfer_queue.*", "hydra.*", "checkpoint.*",
    "actor_rollout_ref.profiler.*", "env.*", "teacher.*", "distillation.*",
})  # fmt: skip
"""Groups of the other models and of what runs beside training; the models are told by the sheet's doubt."""
_DATA = (
    "tokenizer", "use_shm", "train_files", "val_files", "train_max_samples", "val_max_samples", "prompt_key", "reward_fn_key", "train_batch_size",
    "gen_batch_size", "val_batch_size", "tool_config_path", "return_raw_input_ids", "return_raw_chat", "return_full_prompt", "shuffle", "seed",
    "dataloader_num_workers", "image_patch_size", "validation_shuffle", "filter_overlong_prompts", "filter_overlong_prompts_workers", "truncation",
    "image_key", "video_key", "trust_remote_code", "custom_cls.*", "return_multi_modal_inputs", "sampler.*", "datagen.*", "apply_chat_template_kwargs",
    "apply_chat_template_kwargs.*", "response_key", "prompt_dict_keys", "response_dict_keys", "multiturn.*", "balance_dp_token", "chat_template",
    "messages_key", "tools_key", "enable_thinking_key", "pad_mode", "ignore_input_ids_mismatch", "micro_batch_size", "need_tools_kwargs", "path",
)  # fmt: skip
_TRAINER = (
    "balance_batch", "total_epochs", "total_training_steps", "project_name", "experiment_name", "logger", "log_val_generations", "rollout_data_dir",
    "validation_data_dir", "save_freq", "esi_redundant_time", "resume_mode", "resume_from_path", "val_before_train", "val_only", "test_freq",
    "critic_warmup", "default_hdfs_dir", "del_local_ckpt_after_load", "default_local_dir", "max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep",
    "ray_wait_register_center_timeout", "device", "use_legacy_worker_impl", "max_ckpt_to_keep", "seed", "profile_interval", "checkpoint.*",
    "npu_profile.*", "profile_steps", "controller_nsight_options.*", "worker_nsight_options.*", "max_samples", "default_hdfs_dir",
)  # fmt: skip
_ACTOR = (
    "_target_", "rollout_n", "clip_ratio", "clip_ratio_low", "clip_ratio_high", "tau_pos", "tau_neg", "policy_loss.*", "clip_ratio_c", "loss_agg_mode",
    "loss_scale_factor", "use_kl_loss", "kl_loss_coef", "kl_loss_type", "ppo_epochs", "shuffle", "data_loader_seed", "checkpoint.*", "profiler.*",
    "grad_clip", "use_torch_compile", "load_weight", "use_remove_padding", "use_fused_kernels", "router_replay._target_", "nccl_timeout", "use_rollout_log_probs",
)  # fmt: skip
_OPTIM = (
    "_target_", "lr", "lr_warmup_steps", "lr_warmup_steps_ratio", "total_training_steps", "weight_decay", "betas", "clip_grad", "min_lr_ratio", "num_cycles",
    "lr_scheduler_type", "lr_scheduler", "warmup_style", "lr_warmup_init", "lr_decay_steps", "lr_decay_style", "min_lr", "weight_decay_incr_style", "grad_clip",
    "lr_wsd_decay_style", "lr_wsd_decay_steps", "use_checkpoint_opt_param_scheduler",
)  # fmt: skip
_MODEL = (
    "_target_", "hf_config_path", "tokenizer_path", "use_shm", "trust_remote_code", "custom_chat_template", "external_lib", "lora_alpha", "load_tokenizer",
    "override_config.max_position_embeddings", "override_config.model_config.max_position_embeddings", "override_config.model_config", "override_config.moe_config.*",
    "fused_kernel_options.*", "lora.alpha", "lora.dropout_position", "lora.lora_A_init_method", "lora.lora_B_init_method", "lora.merge",
    "lora.exclude_modules", "lora.a2a_experimental", "mtp.mtp_loss_scaling_factor", "mtp.detach_encoder", "mtp.method", "mtp.num_speculative_tokens",
    "mtp._target_", "mtp.speculative_algorithm", "mtp.speculative_num_steps", "mtp.speculative_eagle_topk", "mtp.speculative_num_draft_tokens",
    "tiled_mlp.num_shards",
)  # fmt: skip
_FSDP = ("_target_", "seed", "full_determinism", "forward_only", "use_torch_compile", "strategy", "use_orig_params", "mixed_precision.buffer_dtype", "ulysses_sequence_parallel_size")  # fmt: skip
_MEGATRON = (
    "_target_", "seed", "use_dist_checkpointing", "dist_checkpointing_path", "dist_checkpointing_prefix", "use_mbridge", "vanilla_mbridge", "forward_only",
    *(f"{OVERRIDES}.{name}" for name in (
        "moe_router_dtype", "moe_aux_loss_coeff", "moe_z_loss_coeff", "persist_layer_norm", "deallocate_pipeline_outputs", "moe_router_load_balancing_type",
    )),
)  # fmt: skip


def _in_groups(names: tuple[str, ...], *groups: str) -> set[str]:
    return {f"{group}.{name}" for group in groups for name in names}


KNOWN = OTHER_ROLES | OFFLOADS | frozenset({
    *_in_groups(_DATA, "data"), *_in_groups(_TRAINER, "trainer"), *_in_groups(_ACTOR, ACTOR), *_in_groups(_OPTIM, f"{ACTOR}.optim", "optim"),
    *_in_groups(_MODEL, MODEL, "model"), *_in_groups(_FSDP, f"{ACTOR}.fsdp_config", "engine", "model.fsdp_config"),
    *_in_groups(_MEGATRON, f"{ACTOR}.megatron", "engine"), "actor_rollout_ref.hybrid_engine", "actor_rollout_ref.nccl_timeout", "optim", "defaults",
    *GROUPS, CONFIG, STOCK, "use_remove_padding", "ulysses_sequence_parallel_size", f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{MODEL}.use_remove_padding", "model.use_remove_padding", f"{MODEL}.torch_dtype",
})  # fmt: skip
_MORE_OF_MEGATRON = {
    f"{OVERRIDES}.{name}": harmless for name, harmless in {
        "num_layers_in_first_pipeline_stage": (), "num_layers_in_last_pipeline_stage": (), "account_for_embedding_in_pipeline_split": (False,),
        "account_for_loss_in_pipeline_split": (False,), "pipeline_model_parallel_layout": (), "moe_enable_deepep": (False,), "moe_shared_expert_overlap": (False,),
        "gradient_accumulation_fusion": (), "apply_rope_fusion": (), "bias_activation_fusion": (), "bias_dropout_fusion": (), "masked_softmax_fusion": (),
        "fp8": (), "fp8_recipe": (), "mtp_num_layers": (0,), "cpu_offloading": (False,),
    }.items()
}  # fmt: skip
UNMODELLED: dict[str, tuple[Any, ...]] = {
    ROLES: (), ULYSSES: (), LAUNCHES: (), "$.strategy": (),
    **{f"{place}.{name}": harmless for place in (MODEL, "model") for name, harmless in {
        "use_liger": (False,), "lora_adapter_path": (), "exclude_modules": (), "tiled_mlp.enabled": (False,), "mtp.enable": (False,), "mtp.enable_train": (False,),
        "mtp.enable_rollout": (False,), "lora.type": ("lora",), "lora.dropout": (0, 0.0), "lora.dtype": (), "lora.adapter_path": (),
        "lora.freeze_vision_model": (True,), "lora.freeze_vision_projection": (True,), "lora.freeze_language_model": (True,),
    }.items()},
    **{f"{ACTOR}.{name}": (False,) for name in ("freeze_vision_tower", "use_prefix_grouper", "calculate_sum_pi_squared", "sum_pi_squared_checkpointing")},
    f"{ACTOR}.router_replay.mode": ("disabled",), f"{ACTOR}.router_replay.record_file": (), f"{ACTOR}.router_replay.replay_file": (),
    **{f"{place}.{name}": harmless for place in (f"{ACTOR}.fsdp_config", "engine", "model.fsdp_config") for name, harmless in {
        "forward_prefetch": (False,), "wrap_policy.min_num_params": (0,), "wrap_policy.transformer_layer_cls_to_wrap": (), "wrap_policy.disable": (False,),
    }.items()},
    **{f"{place}.{name}": harmless for place in (f"{ACTOR}.megatron", "engine") for name, harmless in _MORE_OF_MEGATRON.items()},
    **{f"{place}.override_ddp_config.{name}": (False,) for place in (f"{ACTOR}.megatron", "engine") for name in ("grad_reduce_in_fp32", "overlap_grad_reduce", "overlap_param_gather")},
    **{f"{place}.{name}": (False,) for place in OPTIMIZER_OVERRIDES for name in ("use_precision_aware_optimizer", "overlap_cpu_optimizer_d2h_h2d")},
    **{f"{place.rpartition('.')[0]}.override_optimizer_config": () for place in OPTIMIZER_OVERRIDES},
}  # fmt: skip
"""Keys whose bytes nobody accounts, with the values that are harmless."""
