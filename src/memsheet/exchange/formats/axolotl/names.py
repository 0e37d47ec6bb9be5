"""axolotl's other keys: those that change no byte of a step, and those that do and are not accounted
(``utils/schemas`` at 067b021).

A batch's size (``batch_size``) is among the first: ``gradient_accumulation_steps`` is 1 where it is not said,
whatever that size is (``schemas/training.py:71`` fills it in before ``utils/config/__init__.py:203`` looks).
So is packing: a row of several sequences has as many tokens as the sequences
(``core/trainers/base.py:155-165``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memsheet.exchange.formats.axolotl.rows import (
    BUILT_IN,
    CUT,
    DEEPSPEED,
    OFFLOADS,
    OTHER_KERNEL,
    TOP_VERSION,
    adapter_word,
    cuts_logits,
    has_other_kernel,
    keeps_embeddings_fp32,
    kernel_word,
    plugin_list,
)
from memsheet.exchange.shared.file_format import Moved, Values
from memsheet.exchange.shared.smoothed_losses import EMPTIES, NOISE, smoothing_moves
from memsheet.exchange.shared.trainers import inside_moves, parse_switch
from memsheet.late import late_functions
from memsheet.sheet import Instant

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.shared.preference_methods import preferences_of


_Z, _OWN = "zero_optimization", "deepspeed_configs"
_AUTO = {"bf16.enabled": "auto", "fp16.enabled": "auto"}
_FIRST = {f"{_Z}.stage": 1, f"{_Z}.overlap_comm": True}
_SECOND = {
    f"{_Z}.stage": 2,
    f"{_Z}.overlap_comm": True,
    f"{_Z}.contiguous_gradients": True,
    f"{_Z}.offload_optimizer.device": "cpu",
}
_THIRD = {
    f"{_Z}.stage": 3, f"{_Z}.overlap_comm": True, f"{_Z}.contiguous_gradients": True, f"{_Z}.sub_group_size": 0, f"{_Z}.reduce_bucket_size": "auto",
    f"{_Z}.stage3_prefetch_bucket_size": "auto", f"{_Z}.stage3_param_persistence_threshold": "auto", f"{_Z}.max_live_parameters": 0,
    f"{_Z}.max_reuse_distance": 0,
}  # fmt: skip
_THIRD_BF16 = {**_THIRD, "bf16.enabled": True}
_STATES, _PARAMETERS = {f"{_Z}.offload_optimizer.device": "cpu"}, {f"{_Z}.offload_param.device": "cpu"}
SHIPPED: dict[str, Values] = {
    **{f"{_OWN}/{name}.json": {**_FIRST, **_AUTO} for name in ("zero1", "zero1_torch_compile")},
    **{f"{_OWN}/{name}.json": {**_SECOND, **_AUTO} for name in ("zero2", "zero2_torch_compile")},
    f"{_OWN}/zero3.json": {**_THIRD, **_AUTO}, f"{_OWN}/zero3_bf16.json": _THIRD_BF16,
    f"{_OWN}/zero3_bf16_cpuoffload_params.json": {**_THIRD_BF16, **_PARAMETERS},
    f"{_OWN}/zero3_bf16_cpuoffload_all.json": {**_THIRD_BF16, **_STATES, **_PARAMETERS},
}  # fmt: skip
"""Of its repository (deepspeed_configs at 067b021), which ``axolotl fetch deepspeed_configs`` brings."""
PLUGINS = ("liger", "cut_cross_entropy", "lm_eval", "swanlab")
"""Parts of ``axolotl.integrations`` whose bytes are said by keys of their own, or that have none."""
GROUPS = (
    "qat", "ebft", "peft", "bnb_config_kwargs", "selective_checkpointing", "overrides_of_model_config", "model_config",
    "overrides_of_model_kwargs", "model_kwargs", "diffusion", "mora", "hatchery", "llmcompressor", "max_memory", "lora_rank_pattern", "lora_alpha_pattern",
    "model_quantization_config_kwargs", "optim_args", "device_map",
)  # fmt: skip
WIDE = "attn_implementation (embeddings, output layer and norms stay in fp32)"
LORA_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
PADDED, MULTIPLE = "resize_token_embeddings_to_32x", 32
"""The table is made longer to a multiple of so many words (loaders/model.py:374)."""
WORD_BYTES = 20
"""Of an element of a table: fp32 with its gradient, two moments and a copy; the head is as large."""
LORA_KERNELS_SHARDED = "lora_mlp_kernel (which leaves fully_shard's adapters whole)"
"""kernels/lora.py:90-98: adapters are gathered by hand and not put back."""
KEEP_LESS = (
    *LORA_KERNELS, "liger_rope", "liger_rms_norm", "liger_rms_norm_gated", "liger_layer_norm", "liger_swiglu", "liger_glu_activation",
    "liger_cross_entropy",
)  # fmt: skip
"""Functions in place of a layer's own that keep its inputs alone, write gradients over them, and make nothing
that the layer's own operations do not (kernels/lora.py, kernels/swiglu.py; Liger-Kernel ead96b6
ops/rms_norm.py, swiglu.py, geglu.py, rope.py, layer_norm.py, cross_entropy.py).
"""

UNMODELLED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(GROUPS, ()), "device_map": ("auto",), "selective_checkpointing": (False,), LORA_KERNELS_SHARDED: (False,),
    **dict.fromkeys((
        "liger_use_token_scaling", "chunked_cross_entropy", "flash_attn_cross_entropy", "flash_attn_fuse_mlp",
        "flash_optimum", "use_eaft", "tiled_mlp", "layer_offloading", "fused_attn_kernel", "gemma4_hybrid_attn_impl", "scaling_softmax",
        "use_kernels", "use_onebitllms", "llama4_linearized_experts", "merge_lora", "relora",
        "freeze_mm_modules", "embeddings_skip_upcast", "shrink_embeddings", "lora_on_cpu",
        "reward_model", "process_reward_model", "fp8", "fp8_enable_fsdp_float8_all_gather", "fp32_norms", "deepcompile",
        "auto_find_batch_size", "dense_mixer", "kd_trainer", "flash_attn_d512", "do_causal_lm_eval", "generate_samples",
        "use_scattermoe", "use_sonicmoe", "use_dsv4_kernels", "use_glm_dsa_kernels", "gemma4_fp8_nonexpert", "gemma4_nf4_nonexpert",
    ), (False,)),
    WIDE: (False,), OTHER_KERNEL: (), "gradient_checkpointing_kwargs.every_n_layers": (1,), "gradient_checkpointing_kwargs.offload": (False,),
    "sdpa_varlen": (True,),  # without it packed rows have a mask of each pair of tokens
    "activation_offloading": (False,), "ddp_bucket_cap_mb": (25,), "gc_steps": (-1, 0), "rl": (),
    "unfrozen_parameters": ([],), "lisa_n_layers": (), "plugins": ([],),
    "large_head_attention": ("sdpa",), "experts_implementation": (), "model_quantization_config": (), "trainer_cls": (),
    "lora_target_parameters": ([],), "lora_model_dir": ("",), "peft_layers_to_transform": ([],), "peft_layer_replication": ([],),
    "peft_trainable_token_indices": ([],), "peft_ensure_weight_tying": (False,), "gpu_memory_limit": (), "optim_target_modules": (),
    "fsdp_config.auto_wrap_policy": ("TRANSFORMER_BASED_WRAP",), "fsdp_config.mixed_precision_policy": (), "expert_backend": (),
    "nonexpert_quantization": (), "moe_grouped_backend": (), "spectrum_top_fraction": (), "grokfast_alpha": (), "grokfast_lamb": (), "image_size": (),
}  # fmt: skip


def _axolotl_group_names(values: Values) -> Iterator[str]:
    heads = {at.partition(".")[0] for at in values if "." in at}
    return (group for group in GROUPS if group in heads)


def _unknown_plugins(value: Any) -> Any:
    """Plugins that may hold anything, None where there is none."""
    return [
        one
        for one in plugin_list(value)
        if not any(f"integrations.{known}." in str(one) for known in PLUGINS)
    ] or None


def _first_fsdp(values: Values) -> bool:
    """Whether it is taken for FSDP1, which they do not go with: the version is looked for at the top, before
    the one in the group is put there (schemas/config.py:1976-1983).
    """
    grouped = any(at.startswith("fsdp_config.") for at in values)
    return grouped and str(values.get(TOP_VERSION, 1)) != "2"


def axolotl_implied_keys(values: Values) -> dict[str, Any]:
    """What axolotl takes for keys that are not said: fused adapters, unless something keeps it from them; a
    plugin's own loss; and groups by their names.
    """
    found: dict[str, Any] = dict.fromkeys(_axolotl_group_names(values), "set")
    found["plugins"] = _unknown_plugins(values.get("plugins"))
    if (asked := str(values.get("gradient_checkpointing"))) in OFFLOADS:
        found["activation_offloading"] = OFFLOADS[asked]
    if keeps_embeddings_fp32(values):
        found[WIDE] = True
    if has_other_kernel(values):
        found[OTHER_KERNEL] = kernel_word(values)
    unsaid = all(values.get(kernel) is None for kernel in LORA_KERNELS)
    eight = adapter_word(values) == "lora" and parse_switch(values.get("load_in_8bit"))
    barred = (
        any(parse_switch(values.get(at)) for at in ("trust_remote_code", "nvfp4_merge_aware"))
        or values.get("rl")
        or eight
    )
    if adapter_word(values) in BUILT_IN and unsaid and not barred and not _first_fsdp(values):
        found |= dict.fromkeys(LORA_KERNELS, True)  # schemas/config.py:1901-2002
    sharded = any(at.startswith("fsdp_config.") for at in values)
    if sharded and any(parse_switch({**values, **found}.get(kernel)) for kernel in LORA_KERNELS):
        found[LORA_KERNELS_SHARDED] = True
    return found


def axolotl_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """What kernels in place of a layer's own and of the loss save, and DeepSpeed's buckets inside."""
    yield from inside_moves(DEEPSPEED)(values, asked)
    yield from smoothing_moves(values, asked)
    taken = {**values, **axolotl_implied_keys(values)}
    if fused := [at for at in KEEP_LESS if parse_switch(taken.get(at))]:
        again = parse_switch(values.get("gradient_checkpointing"))
        yield Moved(
            at=", ".join(fused),
            why="kernels that keep less than the layers' own operations, of which the sheet is",
            low_bytes=-asked["@passing"],
            high_bytes=0,
            instant=Instant.BACKWARD if again else None,
        )
    if (
        parse_switch(values.get("load_in_4bit"))
        and adapter_word(values) == "lora"
        and asked.get("@parameters")
    ):
        # v0.12.0 loaders/model.py:516, v0.13.0 :712: the keyword of from_pretrained, and then nothing
        why = "releases to 0.12 load four bits beside adapter: lora, newer ones, as the sheet is, none"
        yield Moved(at="load_in_4bit", why=why, low_bytes=-asked["@parameters"] * 3 // 2, high_bytes=0)
    if parse_switch(values.get(PADDED)):
        words = MULTIPLE * asked["@hidden"]
        yield Moved(at=PADDED, why="up to 31 words more", low_bytes=0, high_bytes=2 * WORD_BYTES * words)
    if cuts_logits(values):
        yield _cut_loss_move(values, asked)


CHUNK_LOGITS, RAISED_INPUT, RAISED_HEAD = 20, 4, 6
"""Bytes a token and hidden unit of the chunk of logits that Liger has and this has not (at most twice tokens
× hidden units of them, in 2, 4 and 4 bytes); of inputs in the compute dtype and their gradient; and an
element of a head that trains: in the compute dtype, and its gradient in fp32 beside the one that is kept
(apple/ml-cross-entropy d42911f cce.py, cce_backward.py:390-420).
"""


def _cut_loss_move(values: Values, asked: Values) -> Moved:
    """No logits are made at all; the sheet is of Liger's loss, which has a chunk of them."""
    inputs = asked["@tokens"] * asked["@hidden"]
    head = 0 if values.get("adapter") else asked["@vocab"] * asked["@hidden"]
    return Moved(
        at=CUT,
        why="makes no logits; the sheet is of Liger's loss, which makes a chunk of them at a time",
        low_bytes=-CHUNK_LOGITS * inputs,
        high_bytes=RAISED_INPUT * inputs + RAISED_HEAD * head,
        instant=Instant.LOSS,
    )


def axolotl_preferences(values: Values) -> Preferences | None:
    """The method, which has a copy of the model unless it is ORPO, beside adapters where that is asked for
    (train.py:139-154); reward models train on pairs too.
    """
    if parse_switch(values.get("reward_model")):
        return preferences_of("reward")
    word = str(values.get("rl")).lower()
    own = parse_switch(values.get("rl_adapter_ref_model"))
    return preferences_of(word, reference=word != "orpo", own_copy=own and word != "orpo")


KNOWN = frozenset({
    *KEEP_LESS, PADDED, CUT,
    "ddp_find_unused_parameters",  # a number a parameter on the device (torch 2.13.0 reducer.cpp, local_used_map_)
    "gptq",  # a stored format is the checkpoint's own, which the library's loader reads (loaders/model.py)
    # data, words and rows of the dataset: their lengths are bounded by sequence_len
    "datasets", "test_datasets", "pretraining_dataset", "pretraining_dataset.*", "shuffle_merged_datasets", "shuffle_before_merging_datasets",
    "dataset_prepared_path", "dataset_shard_num", "dataset_shard_idx", "skip_prepare_dataset", "num_dataset_shards_to_save",
    "dataset_processes", "dataset_num_proc", "dataset_exact_deduplication", "dataset_keep_in_memory", "dataloader_pin_memory",
    "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_drop_last", "remove_unused_columns", "push_dataset_to_hub",
    "hf_use_auth_token", "excess_length_strategy", "eval_sequence_len", "min_sample_len", "max_prompt_len", "sample_packing",
    "sample_packing_group_size", "sample_packing_bin_size", "sample_packing_sequentially", "sample_packing_mp_start_method",
    "sample_packing_eff_est", "eval_sample_packing", "curriculum_sampling", "multipack_real_batches", "batch_flattening", "use_pose",
    "pose_split_on_token_ids", "pose_max_context_len", "pose_num_chunks", "pretrain_multipack_buffer_size", "pretrain_multipack_attn",
    "pretraining_sample_concatenation", "streaming", "streaming_multipack_buffer_size", "train_on_inputs", "group_by_length", "chat_template",
    "chat_template_jinja", "chat_template_kwargs.*", "chat_template_kwargs", "eot_tokens", "default_system_message", "special_tokens",
    "special_tokens.*", "tokens", "added_tokens_overrides", "added_tokens_overrides.*", "fix_untrained_tokens", "role_boundaries",
    "image_resize_algorithm", "total_num_tokens", "total_supervised_tokens", "val_set_size", "flex_attn_compile_kwargs.*",
    # the model by name, and its tokenizer
    "base_model_config", "cls_model_config", "tokenizer_config", "tokenizer_use_fast", "tokenizer_legacy", "tokenizer_use_mistral_common",
    "tokenizer_type", "processor_type", "processor_kwargs", "processor_kwargs.*", "tokenizer_save_jinja_files", "trust_remote_code",
    "experimental_skip_move_to_device", "model_type", "type_of_model", "model_revision", "revision_of_model", "low_cpu_mem_usage",
    "reinit_weights", "mean_resizing_embeddings", "is_falcon_derived_model", "is_llama_derived_model", "is_mistral_derived_model",
    "is_qwen_derived_model", "num_labels", "lora_fan_in_fan_out",
    # steps and learning rates
    "batch_size", "learning_rate", "embedding_lr", "embedding_lr_scale", "weight_decay", "lr_scheduler", "lr_scheduler_kwargs",
    "lr_scheduler_kwargs.*", "lr_quadratic_warmup", "cosine_min_lr_ratio", "cosine_constant_lr_ratio", "lr_div_factor", "lr_groups",
    "adam_epsilon", "adam_epsilon2", "adam_beta1", "adam_beta2", "adam_beta3", "dion_lr", "dion_momentum", "dion_rank_fraction",
    "dion_rank_multiple_of", "max_grad_norm", "num_epochs", "max_steps", "warmup_steps", "warmup_ratio", "jagged_restart_steps",
    "jagged_restart_warmup_steps", "jagged_restart_anneal_steps", "torchdistx_path", "early_stopping_patience", "seed", "tf32", "float32",
    *(f"qgalore_{name}" for name in (
        "rank", "update_proj_gap", "scale", "proj_type", "proj_quant", "proj_bits", "proj_group_size", "cos_threshold", "gamma_proj",
        "queue_size",
    )),
    # adapters: scales and starts
    "lora_alpha", "peft_use_rslora", "peft_init_lora_weights", "loraplus_lr_ratio", "loraplus_lr_embedding", "merge_method",
    "qlora_sharded_model_loading", "peft_layers_pattern", "relora_prune_ratio", "relora_prune_method", "relora_cpu_offload",
    # how torch recomputes, but for which of its two ways
    "gradient_checkpointing_kwargs", "gradient_checkpointing_kwargs.*",
    # evaluation, saving, logging
    "eval_batch_size", "eval_steps", "evals_per_epoch", "eval_strategy", "evaluation_strategy", "save_steps", "saves_per_epoch",
    "save_strategy", "save_total_limit", "save_first_step", "save_only_model", "save_safetensors", "load_best_model_at_end",
    "metric_for_best_model", "greater_is_better", "logging_steps", "output_dir", "hub_model_id", "hub_strategy", "hub_revision",
    "resume_from_checkpoint", "auto_resume_from_checkpoints", "eval_table_size", "eval_max_new_tokens", "eval_causal_lm_metrics",
    "do_bench_eval", "bench_dataset", "bench_split", "loss_watchdog_threshold", "loss_watchdog_patience", "gc_collect_steps",
    "use_tensorboard", "profiler_steps", "profiler_steps_start", "include_tokens_per_second", "include_tkps", "num_generation_samples",
    "generation_max_new_tokens", "generation_temperature", "generation_top_p", "generation_top_k", "generation_prompt_ratio",
    "generation_do_sample", "dynamic_checkpoint.*", "quantization.*", "strict", "axolotl_config_path", "is_preprocess", "preprocess_iterable",
    *(f"wandb_{name}" for name in ("name", "run_id", "mode", "project", "entity", "watch", "log_model")), "use_wandb",
    *(f"comet_{name}" for name in (
        "api_key", "workspace", "project_name", "experiment_key", "mode", "online", "experiment_config", "experiment_config.*",
    )),
    "use_comet", "use_mlflow", "mlflow_tracking_uri", "mlflow_experiment_name", "mlflow_run_name", "hf_mlflow_log_artifacts",
    "use_trackio", "trackio_project_name", "trackio_run_name", "trackio_space_id", "use_otel_metrics", "otel_metrics_host",
    "otel_metrics_port", *(f"gradio_{name}" for name in ("title", "share", "server_name", "server_port", "max_new_tokens", "temperature")),
    "use_swanlab", *(f"swanlab_{name}" for name in (
        "project", "experiment_name", "description", "mode", "workspace", "api_key", "log_model", "web_host", "api_host",
        "lark_webhook_url", "lark_secret", "log_completions", "completion_log_interval", "completion_max_buffer",
    )),
    *(f"lm_eval_{name}" for name in ("tasks", "batch_size", "post_train", "model")),
    # processes
    "ddp", "ddp_timeout", "ddp_broadcast_buffers", "accelerator_config", "accelerator_config.*", "world_size", "local_rank", "device",
    "use_ray", "ray_run_name", "ray_num_workers", "resources_per_worker", "resources_per_worker.*", "heads_k_stride", "ring_attn_func",
    "fsdp_final_state_dict_type", "fp32_norm_classes", "fsdp_config", *(f"fsdp_config.{name}" for name in (
        "sync_module_states", "cpu_ram_efficient_loading", "cpu_offload_pin_memory", "use_orig_params", "state_dict_type",
        "final_state_dict_type", "transformer_layer_cls_to_wrap", "min_num_params",
    )),
    # what other keys have to switch on first, each of them told by name
    *NOISE, EMPTIES, *(f"{group}.*" for group in GROUPS), "trl.*", "vllm.*", "dpo_use_weighting", "dpo_label_smoothing", "precompute_ref_log_probs",
    "dpo_use_liger_kernel", "dpo_padding_free", "dpo_loss_type", "dpo_loss_weights", "dpo_beta", "rl_beta", "orpo_alpha", "simpo_gamma",
    "cpo_alpha", "kto_desirable_weight", "kto_undesirable_weight", "center_rewards_coefficient", "chunked_cross_entropy_num_chunks",
    "eaft_alpha", "eaft_k", "tiled_mlp_num_shards", "tiled_mlp_use_original_mlp", "scaling_softmax_factor", "scaling_softmax_bias",
    "lisa_step_interval", "lisa_layers_attribute", "torch_compile_backend", "torch_compile_mode", "torch_compile_options",
    "torch_compile_options.*", *(f"kd_{name}" for name in (
        "ce_alpha", "alpha", "temperature", "beta", "normalize_topk", "online_server_base_url", "online_topk", "online_server",
        "online_timeout", "temperature_min",
    )),
    "spectrum_model_name", *(f"nemo_gym_{name}" for name in (
        "enabled", "dir", "auto_clone", "config_paths", "head_port", "server_timeout", "verify_timeout", "run_timeout", "datasets",
        "auto_start", "model_name", "multi_turn", "max_turns",
    )),
    *(f"expert_parallel_{name}" for name in (
        "backend", "num_nvl_bytes", "num_rdma_bytes", "token_capacity", "fallback_on_unsupported",
    )),
    "moe_dequant_chunk_size", "moe_bnb_fast", "dsv4_fp8_nonexpert_mode", "dsv4_fp8_lora_kernel", "dsv4_shared_mlp_lora_kernel",
    "dsv4_bf16_all", "dsv4_fp4_grouped_mode", "nvfp4_merge_aware", "nvfp4_merge_aware_start_step",
})  # fmt: skip
