"""Flags of OpenRLHF that change no byte of the model that trains, and those that do and are not accounted.

Of OpenRLHF/OpenRLHF at 3c3be62, openrlhf/cli.
"""

from __future__ import annotations

from typing import Any

OTHER_ROLES = ("ref.*", "reward.*", "critic.*", "vllm.*", "rollout.*", "teacher.*")
"""Groups of the other models, of which the job tells."""
KNOWN = frozenset({
    *OTHER_ROLES, "ckpt.*", "eval.*", "logger.*", "algo.*", "adam.*", "muon.*", "actor.adam.*", "actor.muon.*", "local_rank", "lr_scheduler", "lr_warmup_ratio",
    "min_lr_ratio", "max_norm", "use_ms", "--nproc-per-node", "--nnodes", "bf16", "ds.use_universal_ckpt", "ds.lora.alpha", "ds.value_head_prefix", "ds.ring_attn_head_stride",
    "ds.ring_attn_size", "ds.enable_sleep",
    *(f"actor.{name}" for name in (
        "num_nodes", "num_gpus_per_node", "eps_clip", "eps_clip_low_high", "dual_clip", "policy_loss_type", "lr_scheduler", "lr_warmup_ratio", "min_lr_ratio",
        "max_norm", "entropy_coef", "gradient_checkpointing_reentrant", "aux_loss_coef",
    )),
    *(f"model.{name}" for name in (
        "beta", "ipo_enable", "label_smoothing", "aux_loss_coef", "nll_loss_coef", "pretrain_mode_enable", "gradient_checkpointing_reentrant",
        "compute_fp32_loss_enable", "margin_loss_enable", "loss_type",
    )),
    *(f"train.{name}" for name in (
        "seed", "full_determinism_enable", "max_epochs", "num_episodes", "colocate_all", "colocate_actor_ref", "colocate_critic_reward", "async_enable",
        "async_queue_size", "partial_rollout_enable", "agent_func_path", "ema_beta",
    )),
    *(f"data.{name}" for name in (
        "dataset", "dataset_probs", "dataset_split", "prompt_dataset", "prompt_probs", "prompt_split", "max_samples", "input_key", "output_key", "label_key",
        "input_template", "apply_chat_template", "tokenizer_chat_template", "disable_fast_tokenizer", "dataloader_num_workers", "image_key", "prompt_key",
        "chosen_key", "rejected_key", "multiturn",
    )),
    # of releases before 0.10
    "save_path", "save_steps", "save_hf_ckpt", "ckpt_path", "disable_ds_ckpt", "max_ckpt_num", "max_ckpt_mem", "load_checkpoint", "use_ds_universal_ckpt",
    "logging_steps", "eval_steps", "eval_dataset", "eval_split", "eval_temperature", "eval_n_samples_per_prompt", "max_epochs", "num_episodes", "max_samples",
    "learning_rate", "actor_learning_rate", "critic_learning_rate", "l2", "adam_betas", "eps_clip", "eps_clip_low_high", "dual_clip", "value_clip", "lambd", "gamma",
    "kl_target", "kl_horizon", "kl_estimator", "seed", "full_determinism", "disable_fast_tokenizer", "normalize_reward", "top_p", "freezing_actor_steps",
    "save_value_network", "reward_clip_range", "no_advantage_std_norm", "overlong_buffer_len", "overlong_penalty_factor", "value_head_prefix", "prompt_data",
    "prompt_data_probs", "prompt_split", "dataset", "dataset_probs", "dataset_split", "input_key", "output_key", "label_key", "prompt_key", "chosen_key",
    "rejected_key", "input_template", "apply_chat_template", "tokenizer_chat_template", "multiturn", "pretrain_mode", "use_wandb", "wandb_org", "wandb_group",
    "wandb_project", "wandb_run_name", "use_tensorboard", "dynamic_filtering", "dynamic_filtering_reward_range", "perf", "ipo", "label_smoothing",
    "nll_loss_coef", "aux_loss_coef", "ptx_coef", "actor_init_on_gpu", "policy_loss_type", "ema_beta", "vllm_generate_batch_size", "desirable_loss_weight",
    "undesirable_loss_weight", "kd_coef", "compute_fp32_loss", "margin_loss", "loss", "placeholder_token", "reward_tokens",
})  # fmt: skip
UNMODELLED: dict[str, tuple[Any, ...]] = {
    "ds.tensor_parallel_size": (1,), "ds.use_liger_kernel": (False,), "ds.deepcompile": (False,), "ds.grad_accum_dtype": (), "ds.experts_implementation": (),
    "train.enable_ema": (False,), "actor.freeze_visual_encoder": (False,), "data.max_images_per_prompt": (0,),
}  # fmt: skip
"""With the values that are harmless."""
