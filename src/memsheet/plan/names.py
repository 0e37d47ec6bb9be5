"""The short names of a plan's keys, as flags (``--lora-rank``) and as Python keywords (``lora_rank``)."""

from __future__ import annotations

from typing import Any

from memsheet.errors import Problem

SHORT: dict[str, str] = {
    "engine": "engine", "engine_version": "engine_version",
    "dp_replicate": "mesh.dp_replicate", "dp_shard": "mesh.dp_shard", "cp": "mesh.cp", "tp": "mesh.tp", "pp": "mesh.pp", "vpp": "mesh.vpp",
    "ep": "mesh.ep", "etp": "mesh.etp", "attn_dp": "mesh.attn_dp", "zero": "zero", "reshard_after_forward": "reshard_after_forward",
    "sequence_parallel": "sequence_parallel", "context_parallel_comm": "context_parallel_comm", "gradient_sync": "gradient_sync", "schedule": "schedule",
    "layers_per_stage": "layers_per_stage", "end_stages": "end_stages", "seq_len": "seq_len", "image_tokens": "image_tokens", "microbatch": "microbatch", "global_batch": "global_batch",
    "vocab_multiple": "vocab_multiple", "precision": "precision.name", "optimizer": "optimizer.name",
    "optimizer_implementation": "optimizer.implementation", "optimizer_in_backward": "optimizer_in_backward", "secondary_shard": "secondary_shard",
    "backward_prefetch": "backward_prefetch", "forward_prefetch": "forward_prefetch", "limit_all_gathers": "limit_all_gathers",
    "recompute": "recompute.mode", "recompute_every": "recompute.every", "recompute_layers": "recompute.layers",
    "recompute_segments": "recompute.segments", "recompute_modules": "recompute.modules", "attention": "attention", "loss": "loss",
    "compile": "compile", "dropout": "dropout", "lora_rank": "adapter.rank", "lora_targets": "adapter.targets",
    "quantize": "quantization.weights", "expandable_segments": "allocator.expandable_segments",
    "max_model_len": "serving.max_model_len", "sequences": "serving.max_sequences", "max_batched_tokens": "serving.max_batched_tokens",
    "kv_dtype": "serving.kv_dtype", "page_tokens": "serving.page_tokens", "memory_fraction": "serving.memory_fraction",
    "k_dtype": "serving.k_dtype", "gpu_layers": "serving.gpu_layers", "host_experts": "serving.host_experts", "tensor_split": "serving.tensor_split", "tensor_overrides": "serving.tensor_overrides", "split_mode": "serving.split_mode", "main_gpu": "serving.main_gpu", "kv_unified": "serving.kv_unified", "swa_full": "serving.swa_full", "host_cache": "serving.host_cache", "mla_mode": "serving.mla_mode", "attn_max_batch": "serving.attn_max_batch", "dp_lm_head": "serving.dp_lm_head", "dp_dense": "serving.dp_dense", "expert_dispatch": "serving.dispatch", "offline_inference": "serving.offline_inference", "graph_sequences": "serving.graph_sequences", "state_slots": "serving.state_slots", "state_ratio": "serving.state_ratio", "host_weights_gib": "serving.host_weights_gib",
    "dcp": "serving.dcp", "host_kv_gib": "serving.host_kv_gib", "host_kv_ratio": "serving.host_kv_ratio", "kv_connector": "serving.kv_connector",
    "kv_cache_bytes": "serving.kv_cache_bytes", "kv_blocks": "serving.kv_blocks", "pool_tokens": "serving.pool_tokens", "attention_kernels": "serving.attention_kernels",
    "max_loras": "serving.max_loras", "max_cpu_loras": "serving.max_cpu_loras", "fully_sharded_loras": "serving.fully_sharded_loras", "lora_dtype": "adapter.dtype",
    "moe_dispatch": "moe.dispatch", "moe_capacity_factor": "moe.capacity_factor", "moe_pad_to_capacity": "moe.pad_to_capacity",
    "moe_balanced": "moe.balanced", "speculative": "speculative.method", "draft_model": "speculative.model", "speculative_tokens": "speculative.tokens",
    "draft_tp": "speculative.tp", "cuda_graphs": "cuda_graphs", "prompt_tokens": "serving.prompt_tokens", "output_tokens": "serving.output_tokens",
    "shared_prefix_tokens": "serving.shared_prefix_tokens",
}  # fmt: skip
"""Short name → dotted key of ``memsheet/plan/1``. ``offload`` is a list of what to offload and stands apart.
"""

NOWHERE = "none"
OFFLOADABLE = {"optimizer": 1, "parameters": 1, "activations": True}


def parse_offload(value: Any) -> dict[str, int | bool] | Problem:
    """Keys of what is offloaded, of a list or a text with commas between, or what of it cannot be."""
    wanted = (
        value.split(",")
        if isinstance(value, str)
        else list(value)
        if isinstance(value, list | tuple | set | frozenset)
        else [value]
    )
    if wanted == [NOWHERE]:
        return {f"offload.{name}": type(most)(0) for name, most in OFFLOADABLE.items()}
    strange = [name for name in wanted if not isinstance(name, str) or name not in OFFLOADABLE]
    if strange:
        return Problem(
            field="offload",
            value=", ".join(map(str, strange)),
            reason="cannot be offloaded",
            hint=f"choose from {', '.join(OFFLOADABLE)}, or {NOWHERE}",
        )
    return {f"offload.{name}": OFFLOADABLE[name] for name in wanted}
