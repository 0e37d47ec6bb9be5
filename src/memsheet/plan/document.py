"""A plan as JSON, ``memsheet/plan/1``, as ``resolve.reread`` takes it back."""

from __future__ import annotations

import math
from typing import Any

from memsheet.frozen import fields
from memsheet.plan.device import Cluster
from memsheet.plan.dtypes import FP4_BNB_DOUBLE, FP8_BLOCK, NF4, NF4_SINGLE, DType, dtype_named
from memsheet.plan.engine_options import option_keys
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import (
    Adapter,
    Offload,
    Optimizer,
    Plan,
    Precision,
    Quantization,
    Recompute,
    Routing,
    ServedAdapters,
    Speculative,
)
from memsheet.plan.workload import Serving, Training, Workload

PLAN_SCHEMA = "memsheet/plan/1"
PLAN, SHEET = "plan.json", "sheet.json"
"""The files that a plan and its sheet are written to beside an engine's."""


def model_reference(model: ModelSpec) -> str:
    """What a plan names its model by, so that reading it back finds the same one: the file, the hub's name or
    the name of a release that it was read from, else its name.
    """
    return (
        model.source.path
        if model.source.kind in ("bundled", "file", "safetensors", "gguf", "hub") and model.source.path
        else model.name
    )


def plan_document(plan: Plan, *, model: str | None = None, cluster: Cluster | None = None) -> dict[str, Any]:
    """A whole plan such that reading it back (flatten, resolve) gives the same plan."""
    served = plan.workload if isinstance(plan.workload, Serving) else None
    return {
        "schema": PLAN_SCHEMA, "model": model or None, "gpus": f"{cluster.count}x{cluster.device.name}" if cluster else None,
        "task": plan.task, "phase": served.phase if served else None, "engine": plan.engine, "engine_version": plan.engine_version,
        "mesh": {field.name: int(getattr(plan.mesh, field.name)) for field in fields(plan.mesh) if field.name != "attn_dp" or _writes_attention_dp(plan)},
        "zero": plan.zero, "reshard_after_forward": plan.reshard_after_forward,
        "schedule": plan.schedule.value if plan.schedule else None,
        "layers_per_stage": list(plan.layers_per_stage) if plan.layers_per_stage else None,
        **({"end_stages": list(plan.end_stages)} if plan.end_stages else {}),
        **_sequence_keys(plan.workload),
        "vocab_multiple": plan.vocab_multiple, "precision": _precision_document(plan.precision),
        "optimizer": _optimizer_document(plan.optimizer) if plan.optimizer else None,
        "recompute": _recompute_document(plan.recompute), "attention": plan.attention.value,
        "loss": None if served else plan.loss.value, "dropout": plan.dropout,
        "adapter": _adapter_document(plan.adapter) if plan.adapter else _served_adapters(plan.served_adapters),
        "quantization": _quantization_document(plan.quantization) if plan.quantization else None,
        "offload": _offload_document(plan.offload), "allocator": {"expandable_segments": plan.expandable_segments},
        "serving": _serving_document(plan, served) if served else None, **({"speculative": _speculative_document(plan.speculative)} if plan.speculative else {}),
        **({"optimizer_in_backward": True} if plan.optimizer_in_backward else {}),
        **({"secondary_shard": plan.gathers.secondary_shard} if plan.gathers.secondary_shard > 1 else {}),
        **_optional_switch_keys(plan),
    }  # fmt: skip


def _sequence_keys(workload: Workload) -> dict[str, Any]:
    """Sequences at once, under training's name for them, and their length."""
    if isinstance(workload, Serving):
        return {
            "microbatch": _optional_int(workload.max_sequences), "global_batch": None, "seq_len": workload.seq_len,
        }  # fmt: skip
    return {
        "microbatch": int(workload.microbatch), "global_batch": _optional_int(workload.global_batch), "seq_len": int(workload.seq_len) or None,
    }  # fmt: skip


def _writes_attention_dp(plan: Plan) -> bool:
    """Whether data-parallel attention is said: where it is on, and of a server's replicas, which are none of
    its groups.
    """
    return bool(plan.mesh.attn_dp > 1 or (isinstance(plan.workload, Serving) and plan.mesh.dp_replicate > 1))


def _optional_switch_keys(plan: Plan) -> dict[str, Any]:
    """What only some engines offer, where it is on."""
    routing, fp8, gathers = plan.routing, plan.fp8, plan.gathers
    held = {
        "sequence_parallel": plan.sequence_parallel or None, "compile": plan.compile or None, "async_tp": plan.async_tp or None,
        **(_optional_training_keys(plan.workload) if isinstance(plan.workload, Training) else {}),
        "context_parallel_comm": plan.context_parallel.value if plan.context_parallel else None,
        "gradient_sync": plan.gradient_sync.value if plan.gradient_sync else None,
        "backward_prefetch": gathers.backward.value if gathers.backward else None, "forward_prefetch": gathers.forward or None,
        "limit_all_gathers": None if gathers.limited else False,
        "cuda_graphs": list(plan.cuda_graphs) or None,
        "moe": _routing_document(routing) if routing and routing != Routing() else None,
        "fp8": {"recipe": fp8.recipe, "param_storage": fp8.stored, "all_gather": fp8.gathered, "skip": list(fp8.skip)} if fp8 else None,
    }  # fmt: skip
    return {key: value for key, value in held.items() if value is not None}


def _optional_training_keys(workload: Training) -> dict[str, Any]:
    return {
        "image_tokens": int(workload.image_tokens) or None,
        "seq_len_kind": "maximum" if workload.varied else None,
    }


def _routing_document(routing: Routing) -> dict[str, Any]:
    """The usual dispatch is not said: an engine that offers no other takes none."""
    dispatch = None if routing.dispatch == Routing().dispatch else routing.dispatch
    return {
        "dispatch": dispatch, "capacity_factor": routing.capacity_factor, "pad_to_capacity": routing.padded or None,
        "balanced": routing.balanced,
    }  # fmt: skip


def _optional_int(count: Any) -> int | None:
    return None if count is None else int(count)


def _precision_document(precision: Precision) -> dict[str, str | None]:
    held = {field.name: getattr(precision, field.name) for field in fields(precision)}
    return {key: dtype.name if isinstance(dtype, DType) else None for key, dtype in held.items()}


def _recompute_document(recompute: Recompute) -> dict[str, Any]:
    """``every`` of 1 is what nobody needs to say, and beside ``layers`` or ``segments`` it would contradict
    them.
    """
    every = recompute.every if recompute.every != 1 else None
    named: dict[str, Any] = {"modules": list(recompute.modules)} if recompute.modules else {}
    named |= {"reentrant": True} if recompute.reentrant else {}
    return {
        "mode": recompute.mode.value,
        "every": every,
        "layers": recompute.layers,
        "segments": recompute.segments,
        **named,
    }


def _optimizer_document(optimizer: Optimizer) -> dict[str, Any]:
    rank = {"rank": int(optimizer.rank)} if optimizer.rank else {}
    return {"name": optimizer.name.value, "implementation": optimizer.implementation.value, **rank}


def _adapter_document(adapter: Adapter) -> dict[str, Any]:
    own = {
        "full_modules": list(adapter.full_modules) or None, "prompt_length": adapter.prompt_length or None,
        "start_layer": adapter.start_layer or None, "encoder_width": adapter.encoder_width or None, "block_size": adapter.block_size or None,
    }  # fmt: skip
    return {
        "kind": adapter.kind.value, "rank": int(adapter.rank) or None, "targets": list(adapter.targets), "dtype": adapter.dtype.name,
        "dropout": adapter.dropout, **{key: value for key, value in own.items() if value},
    }  # fmt: skip


def _served_adapters(served: ServedAdapters | None) -> dict[str, Any] | None:
    """What is said of adapters that a server keeps room for, but how many."""
    if served is None:
        return None
    targets = None if served.targets is None else list(served.targets)
    return {"kind": "lora", "rank": int(served.rank), "targets": targets, "dtype": served.dtype.name}


def _quantization_document(quantization: Quantization) -> dict[str, Any]:
    weights = quantization.weights
    name = {NF4_SINGLE.name: NF4.name, FP4_BNB_DOUBLE.name: "fp4"}.get(weights.name, weights.name)
    found = dtype_named(weights.name)
    own_group = weights.scales[0].block if weights.scales and found != weights else None
    if own_group and name == FP8_BLOCK.name:
        own_group = math.isqrt(own_group)  # the side of a square block
    double = weights.name in (NF4.name, FP4_BNB_DOUBLE.name) if name in (NF4.name, "fp4") else None
    experts = {"experts": True} if quantization.experts else {}
    kept = {"storage": quantization.storage.name} if quantization.storage else {}
    said = {"weights": name, "group_size": own_group, "double_quant": double, "skip": list(quantization.skip)}
    return {**said, **experts, **kept}


def _offload_document(offload: Offload) -> dict[str, Any]:
    return {
        "optimizer": _plain_share(offload.optimizer),
        "parameters": _plain_share(offload.parameters),
        "activations": offload.activations,
    }


def _plain_share(value: float) -> float | int:
    return int(value) if value in (0, 1) else value


def _serving_document(plan: Plan, serving: Serving) -> dict[str, Any]:
    cache = plan.cache
    batched = (
        {} if serving.max_batched_tokens is None else {"max_batched_tokens": int(serving.max_batched_tokens)}
    )
    pooled = {
        "max_batched_tokens": None, **batched, "page_tokens": cache.page_tokens, "memory_fraction": cache.memory_fraction,
        "cuda_graphs": plan.options.captures,
    }  # fmt: skip
    said = {"output_tokens": int(serving.output_tokens)} if serving.output_tokens is not None else {}
    said |= {"shared_prefix_tokens": serving.shared_prefix_tokens} if serving.shared_prefix_tokens else {}
    return {
        "max_model_len": _optional_int(serving.max_model_len), "max_sequences": _optional_int(serving.max_sequences),
        "kv_dtype": cache.kv_dtype.name if cache.kv_dtype else None, "prompt_tokens": _optional_int(serving.prompt_tokens),
        **said, **(batched if cache.memory_fraction is None else pooled), **option_keys(plan.options), **_room_for_adapters(plan.served_adapters),
    }  # fmt: skip


def _room_for_adapters(served: ServedAdapters | None) -> dict[str, Any]:
    if served is None:
        return {}
    host = {"max_cpu_loras": int(served.host)} if served.host else {}
    return {
        "max_loras": int(served.slots),
        **host,
        **({"fully_sharded_loras": True} if served.sharded else {}),
    }


def _speculative_document(how: Speculative) -> dict[str, Any]:
    return {
        "method": how.method.value,
        "tokens": int(how.tokens),
        **({"model": how.model} if how.model else {}),
    }
