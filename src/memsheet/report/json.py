"""An answer as JSON: ``memsheet/sheet/1``, with the plan in the vocabulary of ``memsheet/plan/1``. Keys come in one fixed order."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from memsheet.budget import Answer, Change, Fix, LadderStep, OtherEngine, Verdict, WayToFit
from memsheet.sheet import Bytes, Cited, Derived, Evidence, Fitted, FromCode, Item, Measured, Sheet, Traced
from memsheet.spec.device import Cluster
from memsheet.spec.dtypes import FP4_BNB_DOUBLE, FP8_BLOCK, NF4, NF4_SINGLE, DType, dtype_named
from memsheet.spec.model import ModelSpec, Source
from memsheet.spec.plan import Adapter, Offload, Optimizer, Plan, Precision, Quantization, Recompute, Routing, ServedAdapters, Speculative

SHEET_SCHEMA, PLAN_SCHEMA = "memsheet/sheet/1", "memsheet/plan/1"


def dumps(document: Mapping[str, Any], *, indent: int | None = None) -> str:
    """One JSON object and a newline. Plain ASCII, so that any terminal and pipe takes it; NaN is never written."""
    return json.dumps(document, allow_nan=False, indent=indent) + "\n"


def sheet_document(answer: Answer) -> dict[str, Any]:
    """The whole answer as one object of plain values."""
    witness = answer.sheets[0].witness if answer.sheets else None
    return {
        "schema": SHEET_SCHEMA,
        "witness": witness.value if witness else None,
        "model": {
            "name": answer.model.name, "parameters": int(answer.parameters), "active_parameters": int(answer.active_parameters),
            "source": _source(answer.model.source),
        },
        "plan": None if "step" in (answer.trace or {}) else plan_document(answer.plan, model=asked_as(answer.model), cluster=answer.cluster),
        "assumed": list(answer.assumed),
        "device": _device(answer.cluster) if answer.cluster else None,
        "ranks": [_rank(sheet) for sheet in answer.sheets],
        "verdict": _verdict(answer.verdict) if answer.verdict else None,
        "serving": _plain(answer.serving),
        **({"trace": _plain(answer.trace)} if answer.trace is not None else {}),
        "notes": list(answer.notes),
        **({"ladder": [_ladder_step(step) for step in answer.ladder]} if answer.ladder else {}),
        **({"other_engines": [_other_engine(other) for other in answer.other_engines]} if answer.other_engines else {}),
        **({"ways_to_fit": [way_document(way) for way in answer.ways_to_fit]} if answer.ways_to_fit else {}),
    }  # fmt: skip


def way_document(way: WayToFit) -> dict[str, Any]:
    return {
        "words": way.words, "changes": dict(way.changes), "device_bytes": int(way.device.value), "device_low_bytes": int(way.device.low),
        "device_high_bytes": int(way.device.high), "host_bytes": int(way.host_bytes),
    }  # fmt: skip


def _other_engine(other: OtherEngine) -> dict[str, Any]:
    return {"engine": other.engine, "device_bytes": int(other.device.value), "result": other.result.value}


def _ladder_step(step: LadderStep) -> dict[str, Any]:
    found = {"seq_len": step.seq_len, "device_bytes": step.device_bytes, "result": step.result.value if step.result else None}
    if step.recomputed_bytes is None:
        return found
    result = step.recomputed_result.value if step.recomputed_result else None
    return {**found, "recomputed": {"device_bytes": step.recomputed_bytes, "result": result}}


def asked_as(model: ModelSpec) -> str:
    """What a plan names its model by, so that reading it back finds the same one: the file or the hub's name it was read from, else its name."""
    return model.source.path if model.source.kind in ("file", "safetensors", "gguf", "hub") and model.source.path else model.name


def plan_document(plan: Plan, *, model: str | None = None, cluster: Cluster | None = None) -> dict[str, Any]:
    """A whole plan such that reading it back (flatten, resolve) gives the same plan."""
    return {
        "schema": PLAN_SCHEMA, "model": model or None, "gpus": f"{cluster.count}x{cluster.device.name}" if cluster else None,
        "task": plan.task, "phase": plan.phase, "engine": plan.engine, "engine_version": plan.engine_version,
        "mesh": {field.name: int(getattr(plan.mesh, field.name)) for field in fields(plan.mesh) if field.name != "attn_dp" or _groups(plan)},
        "zero": plan.zero, "reshard_after_forward": plan.reshard_after_forward,
        "schedule": plan.schedule.value if plan.schedule else None,
        "layers_per_stage": list(plan.layers_per_stage) if plan.layers_per_stage else None,
        "microbatch": int(plan.microbatch), "global_batch": _whole(plan.global_batch), "seq_len": _whole(plan.seq_len) or None,
        "vocab_multiple": plan.vocab_multiple, "precision": _precision(plan.precision),
        "optimizer": _optimizer(plan.optimizer) if plan.optimizer else None,
        "recompute": _recompute(plan.recompute), "attention": plan.attention.value,
        "loss": plan.loss.value if plan.task == "train" else None, "dropout": plan.dropout,
        "adapter": _adapter(plan.adapter) if plan.adapter else _served_adapters(plan.served_adapters),
        "quantization": _quantization(plan.quantization) if plan.quantization else None,
        "offload": _offload(plan.offload), "allocator": {"expandable_segments": plan.expandable_segments},
        "serving": _serving(plan) if plan.task == "infer" else None, **({"speculative": _speculative(plan.speculative)} if plan.speculative else {}),
        **({"optimizer_in_backward": True} if plan.optimizer_in_backward else {}),
        **_switches(plan),
    }  # fmt: skip


def _groups(plan: Plan) -> bool:
    """Whether data-parallel attention is said: where it is on, and of a server's replicas, which are none of its groups."""
    return bool(plan.mesh.attn_dp > 1 or (plan.task == "infer" and plan.mesh.dp_replicate > 1))


def _switches(plan: Plan) -> dict[str, Any]:
    """What only some engines offer, where it is on."""
    routing, fp8 = plan.routing, plan.fp8
    held = {
        "sequence_parallel": plan.sequence_parallel or None, "compile": plan.compile or None, "async_tp": plan.async_tp or None,
        "image_tokens": int(plan.image_tokens) or None,
        "seq_len_kind": "maximum" if plan.varied else None,
        "context_parallel_comm": plan.context_parallel.value if plan.context_parallel else None,
        "cuda_graphs": list(plan.cuda_graphs) or None,
        "moe": _routing(routing) if routing and routing != Routing() else None,
        "fp8": {"recipe": fp8.recipe, "param_storage": fp8.stored, "all_gather": fp8.gathered, "skip": list(fp8.skip)} if fp8 else None,
    }  # fmt: skip
    return {key: value for key, value in held.items() if value is not None}


def _routing(routing: Routing) -> dict[str, Any]:
    """The usual dispatch is not said: an engine that offers no other takes none."""
    dispatch = None if routing.dispatch == Routing().dispatch else routing.dispatch
    return {
        "dispatch": dispatch, "capacity_factor": routing.capacity_factor, "pad_to_capacity": routing.padded or None,
        "balanced": routing.balanced,
    }  # fmt: skip


def _whole(count: Any) -> int | None:
    return None if count is None else int(count)


def _precision(precision: Precision) -> dict[str, str | None]:
    held = {field.name: getattr(precision, field.name) for field in fields(precision)}
    return {key: dtype.name if isinstance(dtype, DType) else None for key, dtype in held.items()}


def _recompute(recompute: Recompute) -> dict[str, Any]:
    """``every`` of 1 is what nobody needs to say, and beside ``layers`` or ``segments`` it would contradict them."""
    every = recompute.every if recompute.every != 1 else None
    named = {"modules": list(recompute.modules)} if recompute.modules else {}
    return {"mode": recompute.mode.value, "every": every, "layers": recompute.layers, "segments": recompute.segments, **named}


def _optimizer(optimizer: Optimizer) -> dict[str, Any]:
    rank = {"rank": int(optimizer.rank)} if optimizer.rank else {}
    return {"name": optimizer.name.value, "implementation": optimizer.implementation.value, **rank}


def _adapter(adapter: Adapter) -> dict[str, Any]:
    own = {
        "full_modules": list(adapter.full_modules) or None, "prompt_length": adapter.prompt_length or None,
        "start_layer": adapter.start_layer or None,
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


def _quantization(quantization: Quantization) -> dict[str, Any]:
    weights = quantization.weights
    name = {NF4_SINGLE.name: NF4.name, FP4_BNB_DOUBLE.name: "fp4"}.get(weights.name, weights.name)
    found = dtype_named(weights.name)
    own_group = weights.scales[0].block if weights.scales and found != weights else None
    if own_group and name == FP8_BLOCK.name:
        own_group = math.isqrt(own_group)  # the side of a square block
    double = weights.name in (NF4.name, FP4_BNB_DOUBLE.name) if name in (NF4.name, "fp4") else None
    return {"weights": name, "group_size": own_group, "double_quant": double, "skip": list(quantization.skip)}


def _offload(offload: Offload) -> dict[str, Any]:
    return {"optimizer": _share(offload.optimizer), "parameters": _share(offload.parameters), "activations": offload.activations}


def _share(value: float) -> float | int:
    return int(value) if value in (0, 1) else value


def _serving(plan: Plan) -> dict[str, Any]:
    pooled = {
        "max_batched_tokens": _whole(plan.max_batched_tokens), "page_tokens": plan.page_tokens, "memory_fraction": plan.memory_fraction,
        "cuda_graphs": plan.captures, **({"dp_lm_head": True} if plan.dp_lm_head else {}), **_states(plan),
    } if plan.memory_fraction is not None else {}  # fmt: skip
    said = {"output_tokens": _whole(plan.output_tokens)} if plan.output_tokens is not None else {}
    said |= {"shared_prefix_tokens": plan.shared_prefix_tokens} if plan.shared_prefix_tokens else {}
    return {
        "max_model_len": _whole(plan.max_model_len), "max_sequences": _whole(plan.max_sequences),
        "kv_dtype": plan.kv_dtype.name if plan.kv_dtype else None, "prompt_tokens": _whole(plan.prompt_tokens),
        **said, **pooled, **_on_devices(plan), **_room_for_adapters(plan.served_adapters),
    }  # fmt: skip


def _room_for_adapters(served: ServedAdapters | None) -> dict[str, Any]:
    if served is None:
        return {}
    host = {"max_cpu_loras": int(served.host)} if served.host else {}
    return {"max_loras": int(served.slots), **host, **({"fully_sharded_loras": True} if served.sharded else {})}


def _speculative(how: Speculative) -> dict[str, Any]:
    return {"method": how.method.value, "tokens": int(how.tokens), **({"model": how.model} if how.model else {})}


def _states(plan: Plan) -> dict[str, Any]:
    """What a server is told of recurrent states, of layers without experts, and of tokens on their way to experts."""
    named = {
        "state_slots": plan.state_slots, "state_ratio": plan.state_ratio, "dp_dense": plan.dp_dense or None,
        "dispatch": plan.dispatch if plan.dispatch != "gather" else None,
    }  # fmt: skip
    return {key: value for key, value in named.items() if value is not None}


def _on_devices(plan: Plan) -> dict[str, Any]:
    """What only llama.cpp's plans say."""
    named = {
        "max_batched_tokens": _whole(plan.max_batched_tokens) if plan.memory_fraction is None else None, "gpu_layers": plan.gpu_layers,
        "k_dtype": plan.k_dtype.name if plan.k_dtype else None, "host_experts": plan.host_experts or None,
        "mla_mode": plan.mla_mode or None, "attn_max_batch": plan.attn_max_batch or None,
    }  # fmt: skip
    return {key: value for key, value in named.items() if value is not None}


def _source(source: Source) -> dict[str, Any]:
    return {"kind": source.kind, "path": source.path, "revision": source.revision, "notes": list(source.notes)}


def _device(cluster: Cluster) -> dict[str, Any]:
    device = cluster.device
    return {
        "name": device.name, "capacity_bytes": device.framework_bytes, "count": cluster.count,
        "capacity_low_bytes": device.framework_low_bytes, "capacity_high_bytes": device.framework_high_bytes,
        "datasheet_bytes": device.datasheet_bytes, "evidence": device.evidence,
    }  # fmt: skip


def _rank(sheet: Sheet) -> dict[str, Any]:
    totals = {"allocated": sheet.allocated, "reserved": sheet.reserved, "device": sheet.device}
    return {
        "rank": sheet.rank, "stage": sheet.stage, "same_as": list(sheet.same_as),
        "instants": {instant.value: int(sheet.at(instant).value) for instant in sheet.instants},
        "peak_instant": sheet.peak_instant.value,
        **{key: size for name, total in totals.items() for key, size in _range(total, name).items()},
        "host_bytes": int(sheet.host_bytes), "notes": list(sheet.notes),
        "states": {component.value: int(size.value) for component, size in sheet.states.items()},
        "items": [_item(item) for item in sheet.items],
    }  # fmt: skip


def _range(size: Bytes, name: str) -> dict[str, int]:
    return {f"{name}_bytes": int(size.value), f"{name}_low_bytes": int(size.low), f"{name}_high_bytes": int(size.high)}


def _item(item: Item) -> dict[str, Any]:
    largest = item.largest.ordered
    return {
        "component": item.component.value, "path": item.path,
        "bytes": int(largest.value), "low_bytes": int(largest.low), "high_bytes": int(largest.high),
        "at": {instant.value: int(size.value) for instant, size in item.at.items()},
        "evidence": evidence_document(item.evidence),
    }  # fmt: skip


def evidence_document(evidence: Evidence) -> dict[str, Any]:
    """How a number is known, as ``{"kind": …}`` and what that kind has to say."""
    match evidence:
        case Cited(reference, at):
            return {"kind": "cited", "title": reference.title, "where": reference.where, "at": at}
        case FromCode(project, commit, file, line):
            return {"kind": "from_code", "project": project, "commit": commit, "file": file, "line": line}
        case Derived(why):
            return {"kind": "derived", "why": why}
        case Fitted(runs, hardware, date, spread):
            return {"kind": "fitted", "runs": runs, "hardware": hardware, "date": date, "spread": spread}
        case Traced(op):
            return {"kind": "traced", "op": op}
        case Measured(record):
            return {"kind": "measured", "record": record}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "result": verdict.result.value, "rank": verdict.rank, "instant": verdict.instant.value,
        **_range(verdict.device, "device"), "headroom_bytes": int(verdict.headroom_bytes),
        "host_short_bytes": int(verdict.host_short_bytes),
        "largest": [{"component": component.value, "bytes": int(size.value)} for component, size in verdict.largest],
        "cheapest_fix": fix_document(verdict.cheapest_fix) if verdict.cheapest_fix else None,
    }  # fmt: skip


def fix_document(fix: Fix) -> dict[str, Any]:
    changes = [row for change in fix.changes for row in _changes(change)]
    return {"changes": changes, **_range(fix.device, "device"), "host_bytes": int(fix.host_bytes)}


def _changes(change: Change) -> Iterator[dict[str, Any]]:
    """A row for every key; what all of them save together stands with the first."""
    keys = ((change.key, change.before, change.after), *change.also)
    for number, (key, before, after) in enumerate(keys):
        saves = 0 if number else int(change.saves_bytes)
        yield {"key": key, "from": _plain(before), "to": _plain(after), "saves_bytes": saves, "words": change.words, "needs": change.needs}


def _plain(value: Any) -> Any:
    """What JSON can hold: enums as their values, dtypes as their names, tuples as lists."""
    match value:
        case Enum():
            return _plain(value.value)
        case DType():
            return value.name
        case Mapping():
            return {str(_plain(key)): _plain(held) for key, held in value.items()}
        case list() | tuple():
            return [_plain(held) for held in value]
        case Bytes():
            return {"low": int(value.low), "value": int(value.value), "high": int(value.high)}
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
