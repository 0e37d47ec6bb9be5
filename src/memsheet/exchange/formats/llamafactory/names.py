"""LLaMA-Factory's other keys: those that change no byte of a step, and those that do and are not accounted
(``hparams`` at ff6d4d1).

Rotary embeddings of another length (``rope_scaling``) are among the first: their table is as long as the
sequence.
"""

from __future__ import annotations

from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.trainers import comma_separated_names, parse_switch

TRANSFORMERS = find_format("transformers")
_Z = "zero_optimization"
_COMMON = {
    f"{_Z}.contiguous_gradients": True,
    f"{_Z}.overlap_comm": False,
    "bf16.enabled": "auto",
    "fp16.enabled": "auto",
}
_FLAT = {**_COMMON, f"{_Z}.reduce_bucket_size": 5e8, f"{_Z}.round_robin_gradients": True}
_THIRD = {
    **_COMMON, f"{_Z}.stage": 3, f"{_Z}.sub_group_size": 1e9, f"{_Z}.reduce_bucket_size": "auto", f"{_Z}.stage3_prefetch_bucket_size": "auto",
    f"{_Z}.stage3_param_persistence_threshold": "auto", f"{_Z}.stage3_max_live_parameters": 1e9, f"{_Z}.stage3_max_reuse_distance": 1e9,
}  # fmt: skip
_STATES, _PARAMETERS = {f"{_Z}.offload_optimizer.device": "cpu"}, {f"{_Z}.offload_param.device": "cpu"}
SHIPPED: dict[str, Values] = {
    "ds_z0_config.json": {**_FLAT, f"{_Z}.stage": 0}, "ds_z2_config.json": {**_FLAT, f"{_Z}.stage": 2},
    "ds_z2_offload_config.json": {**_FLAT, f"{_Z}.stage": 2, **_STATES}, "ds_z3_config.json": _THIRD,
    "ds_z3_offload_config.json": {**_THIRD, **_STATES, **_PARAMETERS},
}  # fmt: skip
"""Of its repository (examples/deepspeed at ff6d4d1)."""
LIGER = "enable_liger_kernel"
FUSED = f"{LIGER} (RoPE, norms, SwiGLU)"
"""What it switches on beside the loss (model/model_utils/liger_kernel.py:98-110)."""
MASKED = "neat_packing (a mask of each pair of tokens)"
"""Kept from packed rows to every layer, but with flash_attention_2 (data/collator.py:535)."""
OTHER_WAY = "finetuning_type (accounted as LoRA, and freeze as the whole model)"
TOWERS = ("freeze_vision_tower", "freeze_multi_modal_projector")
"""On unless a file says otherwise (hparams/finetuning_args.py, FinetuningArguments)."""
OPEN_TOWER = "freeze_vision_tower (what pictures keep in a tower that trains)"
"""The sheet is of text, and of a tower's states where the whole model trains; adapters stand beside the
language model (model/model_utils/visual.py, patch_target_modules).
"""
PARALLEL = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size", "context_parallel_size",
    "virtual_pipeline_model_parallel_size",
)  # fmt: skip
"""Of Megatron, which runs under USE_MCA or USE_MEGATRON_BRIDGE (hparams/megatron_bridge_args.py:32-48)."""
BNB = ("bnb", "bitsandbytes")
"""The second is how older releases spell it (extras/constants.py, QuantizationMethod)."""
UNMODELLED: dict[str, tuple[Any, ...]] = {
    **TRANSFORMERS.unmodelled,
    **dict.fromkeys((
        "upcast_layernorm", "upcast_lmhead_output", "use_unsloth", "use_unsloth_gc", FUSED, MASKED, "shift_attn", "resize_vocab", "use_llama_pro",
        "use_kt", "use_v1_kernels", "use_apollo", "use_badam", "galore_layerwise", "use_mca", "use_megatron_bridge", "use_hyper_parallel",
        "fp8", "fp8_enable_fsdp_float8_all_gather", "use_dft_loss", "use_asft_loss", "use_eaft_loss", "freeze_language_model", "sequence_parallel",
    ), (False,)),
    **dict.fromkeys(PARALLEL, (1, None)), "hyper_parallel_cp_size": (1,), "stage": ("sft", "pt"), "quantization_method": BNB,
    OTHER_WAY: (), "do_train": (True,), "mixture_of_depths": (), "adapter_name_or_path": (), "moe_aux_loss_coef": (), "recompute_granularity": (),
    "reward_model": (), "ref_model": (), "export_dir": (), "infer_backend": (), OPEN_TOWER: (),
}  # fmt: skip


TABLES = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out", "word_embeddings")
NORMS = ("norm", "ln_f", "final_layernorm")
"""Embeddings and heads, and the last norm, by the names that families have for them."""
OF_FREEZING = 2
"""Layers that train by themselves (hparams/finetuning_args.py, FreezeArguments: freeze_trainable_layers)."""


def trained_layers(values: Values) -> int | None:
    """How many layers train where the others are frozen, the last of them or the first
    (hparams/finetuning_args.py:37; model/adapter.py, _setup_freeze_tuning); None where nobody says it
    plainly.
    """
    told = values.get("freeze_trainable_layers", OF_FREEZING)
    plain = type(told) is int and told != 0 and not parse_switch(values.get("use_llama_pro"))
    plain = plain and all(name in (*TABLES, *NORMS) for name in extra_modules(values))
    return abs(told) if plain else None


def extra_modules(values: Values) -> list[str]:
    """Modules outside the layers that train beside them."""
    told = values.get("freeze_extra_modules")
    return comma_separated_names(told) if told else []


def factory_implied_keys(values: Values) -> dict[str, Any]:
    """Nothing trains where it is not said (transformers' do_train is off); what comes with a fused loss, and
    with packed rows.
    """
    told = values.get("do_train", False)
    found: dict[str, Any] = {"do_train": parse_switch(told)}
    freezes = values.get("finetuning_type") == "freeze" and trained_layers(values) is None
    if values.get("finetuning_type") == "oft" or freezes:
        found[OTHER_WAY] = values["finetuning_type"]
    tower, projector = (parse_switch(values.get(at, True)) is False for at in TOWERS)
    if tower or (projector and values.get("finetuning_type", "lora") in ("lora", "oft")):
        found[OPEN_TOWER] = True
    if parse_switch(values.get("neat_packing")) and values.get("flash_attn") != "fa2":
        found[MASKED] = True
    return {**found, FUSED: True} if parse_switch(values.get(LIGER)) else found


KNOWN = TRANSFORMERS.known | frozenset({
    *TOWERS,
    # transformers' arguments from 4.55 to 5.8, which newer ones have not, and those of its Seq2SeqTrainingArguments
    "logging_dir", "warmup_ratio", "sortish_sampler", "predict_with_generate", "generation_max_length", "generation_num_beams",
    "generation_config", "overwrite_output_dir", "save_safetensors", "include_tokens_per_second", "group_by_length", "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params",
    # data
    "template", "dataset", "eval_dataset", "dataset_dir", "media_dir", "train_on_prompt", "mask_history", "streaming", "buffer_size",
    "mix_strategy", "interleave_probs", "overwrite_cache", "preprocessing_batch_size", "preprocessing_num_workers", "max_samples",
    "eval_num_beams", "ignore_pad_token_for_loss", "val_size", "eval_on_each_dataset", "packing", "neat_packing", "tool_format",
    "default_system", "enable_thinking", "preserve_thinking", "tokenized_path", "data_shared_file_system",
    # the model by name, its tokenizer and its pictures, which are cut to cutoff_len with the words
    "adapter_folder", "cache_dir", "use_fast_tokenizer", "split_special_tokens", "add_tokens", "add_special_tokens",
    "new_special_tokens_config", "init_special_tokens", "model_revision", "low_cpu_mem_usage", "rope_scaling", "train_from_scratch",
    "offload_folder", "use_kv_cache", "infer_dtype", "hf_hub_token", "ms_hub_token", "om_hub_token", "print_param_status",
    "trust_remote_code", "quantization_device_map", "image_max_pixels", "image_min_pixels", "image_do_pan_and_scan", "crop_to_patches",
    "video_max_pixels", "video_min_pixels", "video_fps", "video_maxlen", "use_audio_in_video", "audio_sampling_rate",
    *(f"export_{name}" for name in (
        "size", "device", "quantization_bit", "quantization_dataset", "quantization_nsamples", "quantization_maxlen", "legacy_format",
        "hub_model_id",
    )),
    *(f"vllm_{name}" for name in ("maxlen", "gpu_util", "enforce_eager", "max_lora_rank", "config")),
    *(f"sglang_{name}" for name in ("maxlen", "mem_fraction", "tp_size", "config", "lora_backend")),
    *(f"kt_{name}" for name in (
        "cpu_activation", "weight_path", "non_expert_weight_path", "expert_checkpoint_path", "use_lora_experts", "lora_expert_num",
        "lora_expert_intermediate_size", "config", "config.*",
    )),
    # what other keys have to switch on first, each of them told by name
    *(f"freeze_{name}" for name in ("trainable_layers", "trainable_modules", "extra_modules")), "module_dropout", "oft_rank",
    "oft_block_size", "oft_target", *(f"galore_{name}" for name in ("target", "rank", "update_interval", "scale", "proj_type")),
    *(f"apollo_{name}" for name in ("target", "rank", "update_interval", "scale", "proj", "proj_type", "scale_type", "layerwise", "scale_front")),
    *(f"badam_{name}" for name in (
        "mode", "start_block", "switch_mode", "switch_interval", "update_ratio", "mask_mode", "verbose",
    )),
    "asft_alpha", "eaft_alpha", "fp8_backend", "hyper_parallel_args", *(f"pref_{name}" for name in (
        "beta", "ftx", "bco_weight", "loss",
    )),
    "dpo_label_smoothing", "kto_chosen_weight", "kto_rejected_weight", "simpo_gamma", *(f"ppo_{name}" for name in (
        "buffer_size", "epochs", "score_norm", "target", "whiten_rewards",
    )),
    "ref_model_adapters", "ref_model_quantization_bit", "reward_model_adapters", "reward_model_quantization_bit", "reward_model_type",
    "ld_alpha", *(f"recompute_{name}" for name in ("method", "num_layers")), "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split", "bias_activation_fusion", "apply_rope_fusion", "masked_softmax_fusion",
    "cross_entropy_loss_fusion", "moe_grouped_gemm", "moe_token_dispatcher_type", "calculate_per_token_loss",
    "use_distributed_optimizer", "overlap_param_gather", "overlap_grad_reduce", "use_packed_sequences", "mixed_precision",
    "megatron_pretrained_checkpoint", "export_hf_on_finish", "extra_config",
    # adapters: scales and starts
    "lora_alpha", "loraplus_lr_ratio", "loraplus_lr_embedding", "use_rslora", "pissa_init", "pissa_iter", "pissa_convert", "create_new_adapter",
    # generation, evaluation, logging, processes
    "do_sample", "temperature", "top_p", "top_k", "num_beams", "max_length", "max_new_tokens", "repetition_penalty", "length_penalty",
    "skip_special_tokens", "compute_accuracy", "disable_shuffling", "early_stopping_steps", "plot_loss",
    "include_effective_tokens_per_second", "use_swanlab", *(f"swanlab_{name}" for name in (
        "project", "workspace", "run_name", "mode", "api_key", "logdir", "lark_webhook_url", "lark_secret",
    )),
    "ray_num_workers", "ray_init_kwargs", "ray_init_kwargs.*", "master_addr", "master_port", "enable_torch_profiler", "profile_modules",
    *(f"profiler_{name}" for name in (
        "output_dir", "wait_steps", "warmup_steps", "active_steps", "repeat", "record_shapes", "profile_memory", "with_stack",
    )),
})  # fmt: skip
