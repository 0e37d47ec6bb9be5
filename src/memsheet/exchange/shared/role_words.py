"""Names of flags, of fields and of constants by which scripts say the same of a job."""

from __future__ import annotations

from collections.abc import Mapping

ROLES: Mapping[str, tuple[str, ...]] = {
    "model": (
        "model_name_or_path", "model_name", "model_id", "base_model", "base_model_name", "base_model_id", "model_path", "model",
        "pretrained_model_name_or_path", "pretrained_model", "pretrained_model_name", "model_checkpoint", "hf_model", "student_model_name", "full_model_name",
        "base_model_name_or_path", "checkpoint", "bert_model", "lm_model_name_or_path",
    ),
    "batch": (
        "per_device_train_batch_size", "per_device_batch_size", "micro_batch_size", "micro_batch", "microbatch_size", "train_micro_batch_size_per_gpu",
        "batch_size_per_gpu", "per_gpu_train_batch_size", "train_batch_size", "batch_size_training", "batch_size", "bsz", "bs", "mbs",
    ),
    "accumulation": (
        "gradient_accumulation_steps", "grad_accum_steps", "gradient_accumulation", "grad_accumulation_steps", "accumulation_steps", "accum_steps",
        "grad_accum", "accumulate_grad_batches", "gradient_accumulation_iters",
    ),
    "length": (
        "max_seq_length", "max_seq_len", "max_sequence_length", "sequence_length", "seq_length", "seq_len", "max_length", "max_len", "block_size",
        "context_length", "ctx_len", "model_max_length", "cutoff_len", "context_window", "tokens_per_sample", "max_context_width",
    ),
    "recompute": (
        "gradient_checkpointing", "activation_checkpointing", "use_gradient_checkpointing", "enable_gradient_checkpointing", "gradient_checkpoint",
        "use_activation_checkpointing", "checkpoint_activations", "grad_checkpointing", "fsdp_activation_checkpointing",
    ),
    "bf16": ("bf16", "use_bf16"), "fp16": ("fp16", "use_fp16", "half"),
    "dtype": ("torch_dtype", "dtype", "model_dtype", "data_type", "precision", "mixed_precision"),
    "attention": ("attn_implementation", "attn_impl", "attention_implementation"), "flash": ("use_flash_attention", "use_flash_attn", "flash_attention", "use_flash_attention_2"),
    "lora": ("use_lora", "use_peft", "lora", "peft"), "lora_rank": ("lora_rank", "lora_r", "lora_dim"),
    "4bit": ("load_in_4bit", "use_4bit", "use_qlora", "qlora", "in_4bit"), "8bit": ("load_in_8bit", "use_8bit", "in_8bit"),
    "optimizer": ("optimizer", "optim", "optimizer_name"), "compile": ("compile", "torch_compile", "use_compile"),
    "zero": ("zero_stage",),
    "shards": ("sharding_strategy", "fsdp_sharding_strategy", "enable_fsdp", "use_fsdp", "fsdp"),
    "layers": ("num_hidden_layers", "num_layers", "n_layers", "n_layer"), "hidden": ("hidden_size", "hidden_width", "hidden_dim", "d_model", "n_embd", "embed_dim"),
    "heads": ("num_attention_heads", "num_heads", "n_heads", "n_head"), "groups": ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
    "inner": ("intermediate_size", "ffn_hidden_size", "ffn_dim", "d_ff"), "vocabulary": ("vocab_size",), "family": ("model_type",),
    "prompt": ("prompt_len", "prompt_length", "input_len", "input_length", "prompt_tokens", "max_prompt_length", "max_input_length", "max_input_len"),
    "answer": ("max_new_tokens", "gen_len", "output_len", "output_length", "gen_length", "max_tokens", "max_output_len", "answer_len", "max_gen_len"),
    "sequence": ("sp_size", "sequence_parallel_size", "cp_size", "context_parallel_size", "ulysses_size", "sp_degree", "cp_degree"),
    "tensor": ("tp_size", "tensor_parallel_size", "tensor_parallel", "autotp_size", "tp"),
}  # fmt: skip
"""Of each role the names that mean it, the surest first."""
