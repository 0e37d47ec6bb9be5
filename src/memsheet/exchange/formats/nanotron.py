"""nanotron's YAML (``torchrun … run_train.py --config-file config.yaml``): a model described whole, and how
it is divided.

The sheet is of Megatron-Core, which divides it the same way: fp32 gradients beside sixteen-bit weights, fp32
copies and states that ZeRO-1 divides, regions between products cut along the sequence. nanotron's own kernels
keep other tensors, and that is told. Lines are of huggingface/nanotron at 2411b02, under src/nanotron.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from memsheet.exchange.shared.file_format import Format, Moved, Values, plan_word
from memsheet.exchange.shared.read_only_rows import (
    plan_key_row,
    positive_count,
    read_elsewhere,
    read_only_row,
)

VERSION = "nanotron 0.4"  # of its commit 2411b02
P, O, T, M = "parallelism", "optimizer", "tokens", "model.model_config"  # noqa: E741 - groups of the file
C, L = "config/config.py", "config/models_config.py"
DEGREES = (f"{P}.dp", f"{P}.tp", f"{P}.pp", f"{P}.context_parallel_size")
WHOLE, STATES, HALVES, STAGES = "$.gradients", "$.states", "$.schedule", "$.stages"
KERNELS, REGIONS = "activations", "$.regions"
WIDTHS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
ATTENTION = {
    "flash_attention_2": "flash",
    "sdpa": "flash",
    "flex_attention": "flash",
    "llama3_ring_attention": "flash",
}
"""Kernels that keep the output and a number a row (nn/attention.py)."""


def _degree(values: Values, at: str) -> int:
    return positive_count(values.get(at)) or 1


def _read_parallel_degrees(_: Any, values: Values) -> Mapping[str, Any]:
    """Processes, which are as many as the degrees come to (parallel/context.py:30-46)."""
    degrees = [positive_count(values.get(at) or 1) for at in DEGREES]
    return {"engine": "megatron", **({"@gpus": prod(filter(None, degrees))} if all(degrees) else {})}


def _read_stages(value: Any, _: Values) -> Mapping[str, Any]:
    return {"mesh.pp": value, **({"schedule": "1f1b"} if (positive_count(value) or 1) > 1 else {})}


def _read_tensor_mode(value: Any, values: Values) -> Mapping[str, Any]:
    """Regions outside of products cut along the sequence (config/parallelism_config.py:20); always so of
    experts, which the engine that stands in has no other way for.
    """
    cut = str(value).upper() == "REDUCE_SCATTER" or _has_experts(values)
    return {"sequence_parallel": cut and _degree(values, f"{P}.tp") > 1}


def _has_experts(values: Values) -> bool:
    return "num_experts" in (nanotron_described_sizes(values) or {})


def _adds_in_fp32(values: Values) -> bool:
    return values.get(f"{O}.accumulate_grad_in_fp32") is True


def _read_weight_dtype(value: Any, values: Values) -> Mapping[str, Any]:
    """Sixteen bits beside fp32 copies and sums (optim/gradient_accumulator.py:49-110); without them the
    engine that stands in has the copies all the same.
    """
    width = plan_word(WIDTHS, value)
    if width == "fp32":
        return {"precision.name": "fp32"}
    sums = "fp32" if _adds_in_fp32(values) else width
    kept = {f"precision.{name}": sums for name in ("gradients", "reduce")}
    copies = {"precision.master_weights": "fp32", "precision.moments": "fp32"}
    return {"precision.parameters": width, "precision.compute": width, **kept, **copies}


def _read_optimizer_factory(value: Any, _: Values) -> Mapping[str, Any]:
    return {"optimizer.name": {"adamw": "adamw", "sgd": "sgd"}.get(str(value).lower(), str(value))}


def _read_vocabulary_multiple(value: Any, values: Values) -> Mapping[str, Any]:
    """A multiple for each tensor-parallel rank (trainer.py, _vocab_size_with_padding)."""
    count = positive_count(value)
    return {"vocab_multiple": count * _degree(values, f"{P}.tp")} if count else {"vocab_multiple": value}


def nanotron_described_sizes(values: Values) -> Mapping[str, Any] | None:
    """The model's sizes by Megatron-LM's names; None where it is no decoder of attention and gated or plain
    feed-forwards.
    """
    own = {at.removeprefix(f"{M}."): held for at, held in values.items() if at.startswith(f"{M}.")}
    if "hidden_size" not in own or own.get("is_mamba_config"):
        return None
    heads = own.get("num_attention_heads", 32)
    groups = (
        own.get("num_key_value_heads") or own.get("num_kv_heads") or (1 if own.get("multi_query") else heads)
    )
    plain = own.get("is_starcoder2_config") is True
    kind = {} if plain else {"normalization": "RMSNorm", "swiglu": True, "disable_bias_linear": True}
    switches = {
        "group_query_attention": True, "use_rotary_position_embeddings": True, "add_qkv_bias": own.get("attention_bias") is True,
        "untie_embeddings_and_output_weights": own.get("tie_word_embeddings", plain) is not True,
    }  # fmt: skip
    sizes = {
        "num_layers": own.get("num_hidden_layers", 32), "hidden_size": own["hidden_size"], "num_attention_heads": heads, "num_query_groups": groups,
        "ffn_hidden_size": own.get("intermediate_size", 11008), "vocab_size": own.get("vocab_size", 32000),
        "max_position_embeddings": own.get("max_position_embeddings", 2048),
    }  # fmt: skip
    return {**sizes, **kind, **{name: True for name, on in switches.items() if on}, **_routed_sizes(own)}


def _routed_sizes(own: Mapping[str, Any]) -> dict[str, Any]:
    """Experts of both of its kinds (config/models_config.py:33-46, examples/moe/config_llamoe.py:27-57)."""
    if (positive_count(own.get("moe_num_experts")) or 1) > 1:
        return {"num_experts": own["moe_num_experts"], "moe_router_topk": own.get("num_experts_per_tok", 1), "moe_ffn_hidden_size": own.get("intermediate_size", 11008)}  # fmt: skip
    if not any(at.startswith("moe_config.") for at in own):
        return {}
    shared = own.get("moe_config.shared_expert_intermediate_size", 5632)
    beside = (
        {"moe_shared_expert_intermediate_size": shared}
        if own.get("moe_config.enable_shared_expert") is True
        else {}
    )
    return {
        "num_experts": own.get("moe_config.num_experts", 8), "moe_router_topk": own.get("moe_config.top_k", 2),
        "moe_ffn_hidden_size": own.get("moe_config.moe_intermediate_size", 1408), **beside,
    }  # fmt: skip


def _read_expert_ranks(value: Any, values: Values) -> Mapping[str, Any]:
    return {"mesh.ep": value, "moe.dispatch": "alltoall"} if _has_experts(values) else {}


def _half_gradient_bytes(values: Values, _: Values) -> Iterator[Moved]:
    """Gradients in sixteen bits beside their fp32 sums: DistributedDataParallel keeps its buckets whole, and
    one rank alone frees each as it is added (trainer.py:1156, optim/gradient_accumulator.py:200-260).
    """
    sizes = nanotron_described_sizes(values)
    if sizes is None or not _adds_in_fp32(values) or not all(type(sizes[at]) is int for at in COUNTED):
        return
    layers, hidden, heads, groups, wide, vocab = (int(sizes[at]) for at in COUNTED)
    gated = 3 if sizes.get("swiglu") else 2
    each = 2 * hidden * hidden + 2 * hidden * (hidden // max(heads, 1)) * groups + gated * hidden * wide
    stages = _degree(values, f"{P}.pp")
    whole = -(-layers // stages) * each + 2 * vocab * hidden
    yield Moved(
        at=WHOLE,
        why="sixteen-bit gradients beside their sums",
        low_bytes=0,
        high_bytes=2 * whole // _degree(values, f"{P}.tp"),
    )


COUNTED = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "ffn_hidden_size",
    "vocab_size",
)


def _left_to_nanotron(values: Values) -> Mapping[str, Any]:
    """Whose kernels run, what is in flight in a pipeline, and states that are not in fp32."""
    told: dict[str, Any] = {KERNELS: "are of nanotron's own layers, and the sheet is of Megatron-Core's"}
    if _has_experts(values) and _degree(values, f"{P}.tp") > 1:
        told[REGIONS] = (
            "between products are whole on each rank unless tp_mode cuts them, and the sheet's are cut"
        )
    if not _adds_in_fp32(values):
        told[STATES] = "are in the weights' dtype without copies, and the sheet has them in fp32"
    if _degree(values, f"{P}.pp") > 1:
        told[STAGES] = "are cut by the cost of each block, and the sheet's have as many layers each"
        if str(values.get(f"{P}.pp_engine") or "afab").lower() != "1f1b":
            told[HALVES] = "runs all forwards first, and the sheet's one forward, one backward"
    return told


KEYS = (
    read_only_row(f"{P}.dp", _read_parallel_degrees, "config/parallelism_config.py:33", 1), plan_key_row(f"{P}.tp", "mesh.tp", "config/parallelism_config.py:35"),
    read_only_row(f"{P}.pp", _read_stages, "config/parallelism_config.py:34"), plan_key_row(f"{P}.context_parallel_size", "mesh.cp", "config/parallelism_config.py:43"),
    read_only_row(f"{P}.expert_parallel_size", _read_expert_ranks, "config/parallelism_config.py:42", 1),
    read_only_row(f"{P}.tp_mode", _read_tensor_mode, "config/parallelism_config.py:37", "ALL_REDUCE"), read_only_row(f"{P}.pp_engine", read_elsewhere, "config/parallelism_config.py:36"),
    read_only_row(f"{P}.recompute_layer", lambda v, _: {"recompute.mode": "full" if v is True else "none"}, "config/parallelism_config.py:39", usual=False),
    plan_key_row(f"{T}.micro_batch_size", "microbatch", f"{C}:330"), plan_key_row(f"{T}.batch_accumulation_per_replica", "@accumulation", f"{C}:331"),
    plan_key_row(f"{T}.sequence_length", "seq_len", f"{C}:328"),
    read_only_row("model.dtype", _read_weight_dtype, f"{C}:294", "bfloat16"), read_only_row(f"{O}.accumulate_grad_in_fp32", read_elsewhere, f"{C}:388"),
    plan_key_row(f"{O}.zero_stage", "zero", f"{C}:385"),
    read_only_row(f"{O}.optimizer_factory.name", _read_optimizer_factory, f"{C}:370-380"),
    read_only_row("model.make_vocab_size_divisible_by", _read_vocabulary_multiple, f"{C}:295", 1),
    read_only_row(f"{M}._attn_implementation", lambda v, _: {"attention": plan_word(ATTENTION, v)}, f"{L}:95", "flash_attention_2"),
)  # fmt: skip

FORMAT = Format(
    name="nanotron", file="config.yaml", kind="yaml", tested=VERSION, engines=(), keys=KEYS, said={"task": "train"}, marks=frozenset({P}),
    needs={"general": ..., "model": ..., T: ...}, absent=_left_to_nanotron, model=nanotron_described_sizes, moves=_half_gradient_bytes, own_processes=True,
    unmodelled={
        KERNELS: (), STATES: (), STAGES: (), HALVES: (), f"{M}.z_loss_enabled": (False,), f"{M}.flex_attention_mask": (), f"{M}.moe_config.layers": ([-1],),
        f"{M}.moe_capacity_factor": (), f"{M}.moe_config.token_dispatcher_type": ("alltoall",), f"{M}.no_rope_layer": (), REGIONS: (), f"{O}.optimizer_factory.torch_adam_is_fused": (True,),
        f"{M}.resid_pdrop": (0, 0.0), f"{M}.attn_pdrop": (0, 0.0), f"{M}.embd_pdrop": (0, 0.0),
    },
    known=frozenset({
        f"{M}.*", "model.init_method.*", "model.ddp_bucket_cap_mb", f"{P}.tp_linear_async_communication", f"{P}.tp_recompute_allgather", f"{O}.learning_rate_scheduler.*",
        f"{O}.optimizer_factory.*", f"{O}.weight_decay", f"{O}.clip_grad", f"{O}.adam_beta1", f"{O}.adam_beta2", f"{O}.adam_eps", f"{O}.torch_adam_is_fused", f"{O}.weight_decay_exclude_named_params", f"{T}.train_steps", f"{T}.val_check_interval",
        f"{T}.limit_val_batches", f"{T}.limit_test_batches", "data_stages", "lighteval", "profiler", "metrics_logging", "s3_upload", "experiment_logger", "kill_switch_path",
        *(f"{table}.*" for table in (
            "checkpoints", "general", "lighteval", "logging", "profiler", "tokenizer", "metrics_logging", "s3_upload", "experiment_logger", "doremi", "data", "metrics_logger",
        )),
    }) - {key.at for key in KEYS},
)  # fmt: skip
