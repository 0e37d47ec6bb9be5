"""What an engine's sharding adds around the layers: shards, buckets, gathered parameters, host memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from golden.symbols import TENSOR, Cases, call, group, plan, spec, staged, symbol
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.sharding.algorithm import algorithm_of
from memsheet.formulas.sharding.distributed_optimizer import Part
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.sharding.partitioned_buckets import BUCKETS
from memsheet.formulas.sharding.partitioned_flow import Flush
from memsheet.formulas.sharding.partitioned_states import Zero, zero_of
from memsheet.formulas.sharding.resident_state import ResidentState
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.plan.dtypes import BF16, NF4, UINT8
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Role
from memsheet.plan.plan import (
    AttentionKind,
    Gathers,
    Implementation,
    Loss,
    Offload,
    Plan,
    Quantization,
    Routing,
    Schedule,
)
from memsheet.sheet import Component

KNOWN = replace(TENSOR, shape=(8192, 1024))
"""A tensor in numbers: what chooses by its size asks it."""
SHARDED = replace(TENSOR, dtype=BF16)
PART = Part.of(SHARDED, symbol("ranks"))
PARTITION = BytesByPath.of([((Component.GRADIENTS, "partition"), symbol("partition"))])
MOE, SEEING = "qwen3-30b-a3b", "qwen2-vl-2b"


def zero(stage: int, tensor: Any = TENSOR, **shares: Any) -> Zero:
    """The counts of a plan of ZeRO's stage that holds one tensor."""
    made = replace(plan("deepspeed", zero=stage), offload=Offload(**shares))
    return zero_of(made, (replace(tensor, dtype=BF16),))


def packed() -> Zero:
    """Of stage 3, its weights in four bits."""
    found = zero(3)
    return replace(found, plan=replace(found.plan, quantization=Quantization(weights=NF4, storage=UINT8)))


def stages(*numbers: int, **shares: Any) -> Cases:
    return {f"stage {stage}": call(zero(stage, KNOWN, **shares)) for stage in numbers}


def megatron(model: str = "llama-tiny", **changes: Any) -> Plan:
    return replace(plan("megatron", model), **changes)


def low_gradients() -> Plan:
    made = megatron()
    return replace(made, precision=replace(made.precision, gradients=BF16))


KEPT = ResidentState(states=EMPTY, around=ShardingOverhead(), resident=EMPTY, at_step=EMPTY)


def piped() -> Plan:
    """A plan of a pipeline of two stages, with symbols for the rest."""
    made = plan("torchtitan", mesh=False, mesh__pp=2, schedule="1f1b", global_batch=16)
    return replace(made, workload=replace(made.training, microbatch=1))


def middle_of(walk: StageLayers, *, ends: bool) -> StageLayers:
    """A stage without embeddings and head, or with both."""
    return walk if ends else replace(walk, embeddings=None, head=None, loss=None)


ZERO: dict[str, Callable[[], Cases]] = {
    "partitioned_overhead._all_reduce": lambda: {"stage 0": call(zero(0))},
    "partitioned_overhead._around_one": lambda: {"stage 1": call(zero(1), staged()), "offload": call(zero(1, optimizer=1.0), staged())},
    "partitioned_overhead._around_fp32_gradients": lambda: {"stage 1": call(zero(1))},
    "partitioned_overhead._last_flush": lambda: {"stage 2": call(zero(2), [Flush((0, 0), 8, symbol("copied"), 8)], PARTITION)},
    "partitioned_overhead._offload_buffers": lambda: {"stage 2": call(zero(2, optimizer=1.0))},
    "partitioned_overhead._offload_scratch": lambda: {f"stage {n}": call(zero(n, optimizer=1.0), symbol("widest")) for n in (2, 3)},
    "partitioned_overhead.shared_reduction_bytes": lambda: {
        f"stage {stage}": ((plan("deepspeed", zero=stage), symbol("elements")), {}) for stage in (1, 3)
    },
    "partitioned_overhead.bucket_bytes": lambda: {
        f"stage {n}": call(replace(zero(n), buckets=replace(BUCKETS, reduce_bucket=symbol("reduce_bucket")))) for n in (2, 3)
    },
    "partitioned_flow.bucket_flushes": lambda: {"one bucket": call(staged(), 10**9, symbol("shard"), cuts=True)},
    "partitioned_flow.prefetched_elements": lambda: {"": call(symbol("remaining"), symbol("largest"), BUCKETS)},
    "partitioned_flow.stays_gathered": lambda: {"": call(TENSOR, BUCKETS)},
    "partitioned_states.host_memory": lambda: {
        "stage 2": call(zero(2, optimizer=1.0)), "stage 3": call(zero(3, KNOWN, optimizer=1.0, parameters=1.0)),
    },
    "partitioned_states.master_bytes": lambda: {f"stage {n}": call(zero(n), symbol("elements")) for n in (1, 3)},
    "partitioned_states.of_parts": lambda: {"stage 3": call(zero(3), symbol("size"))},
    "partitioned_states.offloaded_partition_elements": lambda: {
        f"stage {n}": call(symbol("shard"), zero(n, optimizer=1.0).plan, BUCKETS) for n in (2, 3)
    },
    "partitioned_states.optimizer_scratch": lambda: {
        how.value: call(symbol("elements"), replace(plan("deepspeed"), optimizer=replace(plan("deepspeed").optimizer, implementation=how)))  # type: ignore[type-var]
        for how in (Implementation.FOREACH, Implementation.LOOP)
    },
    "partitioned_states.partition_scratch": lambda: {"stage 2": call(zero(2))},
    "partitioned_states.persistent_parameter_rows": lambda: {"stage 3": call(zero(3, replace(TENSOR, shape=(8, 8), times=symbol("layers"))))},
    "partitioned_overhead.packed_copies": lambda: {"stage 3": call(packed(), (replace(TENSOR, dtype=UINT8, apart=symbol("scales")),))},
    "partitioned_states.secondary_bytes": lambda: {"8 ranks": call(replace(zero(3), plan=replace(zero(3).plan, gathers=Gathers(secondary_shard=8))))},
    "partitioned_states.sub_group_scratch": lambda: {"stage 3": call(zero(3))},
    "partitioned_states.unsharded_scratch": lambda: {"stage 0": call(zero(0))},
}  # fmt: skip
MEGATRON: dict[str, Callable[[], Cases]] = {
    "_attention_score_buffer": lambda: {"eager": call(spec(), megatron(attention=AttentionKind.EAGER))},
    "_buffer_padding_rows": lambda: {"one tensor": call((PART,), megatron())},
    "_dummy_wgrad_rows": lambda: {"llama-tiny": call(spec(), plan("megatron", mesh=False))},
    "_model_state_rows": lambda: {"one tensor": call(PART, megatron())},
    "_sequence_gather_buffer": lambda: {"": call(spec(), megatron(sequence_parallel=True))},
    "dispatch_buffers": lambda: {"flex": call(spec(MOE), megatron(MOE, routing=Routing(dispatch="flex")))},
    "state_ranks": lambda: {role.value: call(megatron().mesh, role, 1) for role in (Role.LINEAR, Role.EXPERT)},
    "widened_gradients": lambda: {"bf16": call((SHARDED,), low_gradients())},
}  # fmt: skip
FSDP: dict[str, Callable[[], Cases]] = {
    **{f"per_parameter_sizes.{name}": lambda: {"one tensor": call(group(), plan())} for name in ("gathered_bytes", "reduce_input_bytes", "sharded_gradients")},
    "flat_offload.host_memory": lambda: {"llama-tiny": call(plan("fsdp1"), staged(), (TENSOR,))},
    "ddp_buckets": lambda: {"one tensor": call((TENSOR,), plan())},
    "per_parameter_sizes.root_group_tensors": lambda: {SEEING: call(spec(SEEING), plan("fsdp2", SEEING))},
    "idle_towers.trained_bytes": lambda: {
        SEEING: call(spec(SEEING), plan("fsdp2", SEEING), algorithm_of(engine_of(plan()).sharding).parameter_shard, lambda _, elements: 8 * elements),
    },
    "pipelined_overhead": lambda: {"llama-tiny": call(plan(), staged(), joined=True)},
    "with_stage_buffers": lambda: {
        place: call(KEPT, middle_of(staged(), ends=ends), piped(), symbol("stage")) for place, ends in (("inner", False), ("whole", True))
    },
}  # fmt: skip
NAIVE: dict[str, Callable[[], Cases]] = {
    "device_map.returned_logits": lambda: {"first card": call(spec(), replace(piped(), schedule=Schedule.NAIVE, loss=Loss.PLAIN), 0)},
}  # fmt: skip
CASES = {**ZERO, **MEGATRON, **FSDP, **NAIVE}
