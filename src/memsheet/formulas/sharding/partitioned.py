"""DeepSpeed's engine around a transformers model, put together: its walk through the model and everything it
keeps.
"""

from __future__ import annotations

from memsheet.arith import Count, agreed, minimum
from memsheet.formulas.activations import end_parts
from memsheet.formulas.groups import StageLayers, head_group, walk_stage_layers
from memsheet.formulas.inputs import microbatch_inputs
from memsheet.formulas.sharding.algorithm import Algorithm, Steps, Traffic
from memsheet.formulas.sharding.bare_tensor import NAME, bare_parameter_tensor, only_states, steps_at_instants
from memsheet.formulas.sharding.partitioned_buckets import BUCKETS, Buckets
from memsheet.formulas.sharding.partitioned_checks import check_partitioned
from memsheet.formulas.sharding.partitioned_flow import prefetched_elements, stays_gathered, tensor_shard
from memsheet.formulas.sharding.partitioned_overhead import (
    BUCKET,
    FLUSH,
    GATHERED,
    bucket_bytes,
    holds_packed,
    zero_overhead,
)
from memsheet.formulas.sharding.partitioned_states import (
    PARTITION,
    Zero,
    at_step,
    flat_tensor,
    host_memory,
    of_parts,
    whole_gradients,
    zero_of,
    zero_state_rows,
)
from memsheet.formulas.sharding.resident_state import (
    Host,
    ResidentState,
    with_added_states,
    with_hosted_activations,
)
from memsheet.formulas.sharding.states_of_plan import RecentStates, plan_of_any_length
from memsheet.formulas.states.held import held_tensors, parameter_bytes
from memsheet.formulas.states.optimizers import paged_bytes
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Key, merge_moment
from memsheet.frozen import replace
from memsheet.plan.engine import Engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.sheet import Component

C = Component
AUTO = (
    'DeepSpeed\'s own bucket sizes; transformers writes others where its configuration says "auto": '
    "reduce_bucket_size h·h, prefetch 0.9·h·h, persistence 10·h"
)

HELD = (
    "products in four bits hold the weights that were gathered for them until backward "
    "(zero/held_by_products), as they are packed; "
    "under a reentrant checkpoint (use_reentrant: true) they do not"
)


def partitioned_walk(spec: ModelSpec, plan: Plan, engine: Engine) -> StageLayers:
    """The model's groups. From stage 2 on a gradient leaves for the bucket as soon as it is made, unless it
    is wider than that.
    """
    added = agreed(plan.accumulation > 1)  # to gradients that are there already
    stage = walk_stage_layers(spec, plan, engine, release=plan.zero > 1 or added)
    if (
        plan.zero > 1
        and stage.head
        and (stage.tied or any(h.elements > BUCKETS.reduce_bucket for h in stage.head.parameters))
    ):
        ends = end_parts(spec, plan, engine, release=False, head_alone=True)
        return replace(stage, head=head_group(spec, plan, ends))
    return stage


def partitioned_state(
    spec: ModelSpec, plan: Plan, stage: StageLayers, buckets: Buckets = BUCKETS
) -> ResidentState:
    """Everything DeepSpeed keeps on a rank through a step."""
    return _states_around(spec, plan, stage, buckets)[1]


def _states_around(
    spec: ModelSpec, plan: Plan, stage: StageLayers, buckets: Buckets = BUCKETS
) -> tuple[Zero, ResidentState]:
    """What DeepSpeed divides, and what it keeps of that."""
    zero = zero_of(plan, tuple(held_tensors(spec, plan)), buckets)
    fixed = BytesByPath.of(parameter_bytes(spec, plan, ()).items())  # buffers
    return zero, ResidentState(
        states=merge_moment([(1, zero_state_rows(zero)), (1, fixed)]),
        around=zero_overhead(zero, stage),
        resident=accumulated_gradient_rows(zero),
        at_step=at_step(zero),
        host=host_memory(zero),
        paged=paged_bytes(flat_tensor(zero.shard), zero.shard, plan),
        gradients=ended_gradients(zero),
        ranges=_flush_and_gather_ranges(zero),
        notes=(*((AUTO,) if plan.zero else ()), *((HELD,) if holds_packed(plan) else ())),
    )


def accumulated_gradient_rows(zero: Zero) -> BytesByPath:
    """What earlier micro-batches have left when the next one starts."""
    if not zero.accumulates or zero.plan.zero == 3:
        return EMPTY
    if (
        zero.keeps_fp32_gradients
    ):  # zeroed before each backward, freed after the step (bf16_optimizer.py:348-349, engine.py:3362-3363)
        return BytesByPath.of(whole_gradients(zero))
    if zero.plan.zero == 2:
        return (
            EMPTY
            if zero.plan.offload.optimizer
            else BytesByPath.of([((C.GRADIENTS, "zero/all_grad_tensors"), zero.width * zero.shard)])
        )
    bucket = [(BUCKET, bucket_bytes(zero))] if zero.plan.zero == 1 else []
    return BytesByPath.of([*whole_gradients(zero), *bucket])


def ended_gradients(zero: Zero) -> BytesByPath:
    """Gradients at the end of the last backward, beside those that are among the states."""
    earlier = BytesByPath.of(
        (key, size) for key, size in accumulated_gradient_rows(zero).held.items() if key[0] is C.GRADIENTS
    )
    if zero.plan.zero == 3 or (zero.plan.zero == 2 and zero.plan.offload.optimizer):
        return earlier
    if zero.plan.zero == 2:
        return merge_moment([(1, earlier), (1, BytesByPath.of([(PARTITION, zero.width * zero.shard)]))])
    return earlier if zero.accumulates else BytesByPath.of(whole_gradients(zero))


def _flush_and_gather_ranges(zero: Zero) -> dict[Key, tuple[Count, Count]]:
    """What depends on the order of events and was derived from the code."""
    copy = zero.width * minimum(zero.total, zero.buckets.reduce_bucket)
    if zero.plan.zero == 2:
        return {FLUSH: (0, copy)}
    if zero.plan.zero != 3:
        return {}
    open_ = [h for h in zero.parameters if not stays_gathered(h, zero.buckets)]
    all_ = sum(h.times * zero.ranks * tensor_shard(h, zero.ranks) for h in open_)
    size = prefetched_elements(all_, max((h.elements for h in open_), default=0), zero.buckets)
    narrow = min((h.dtype.nbytes(1) for h in open_), default=zero.width)
    return {
        GATHERED: (of_parts(zero, narrow * size.low), of_parts(zero, zero.width * size.high)),
        FLUSH: (0, 2 * copy),
    }


def _state_with_inputs(spec: ModelSpec, plan: Plan, engine: Engine, stage: StageLayers) -> ResidentState:
    """With what is as large as a micro-batch. Of what is around the layers, stage 3's alone is not."""
    zero, kept = _recent.made_of(spec, plan, lambda own: _states_around(spec, own, stage), engine)
    kept = kept if plan.zero == 3 else replace(kept, around=zero_overhead(zero, stage))
    return with_added_states(with_hosted_activations(kept, stage), microbatch_inputs(spec, plan))


_recent: RecentStates[tuple[Zero, ResidentState]] = RecentStates(16, 1 << 15, plan_of_any_length)


# ---- a bare count ------------------------------------------------------------------------------------------


def _bare_zero_partition(parameters: int, plan: Plan) -> Zero:
    """All parameters as one tensor; what grows with the widest tensor is left out."""
    return replace(zero_of(plan, (bare_parameter_tensor(parameters, plan),)), widest=0)


def _bare_states(parameters: int, plan: Plan, _: Engine) -> Steps:
    zero = _bare_zero_partition(parameters, plan)
    always, earlier = zero_state_rows(zero), only_states(accumulated_gradient_rows(zero))
    late = EMPTY if zero.accumulates and zero.plan.zero < 2 else _bare_gradient_rows(zero)
    return steps_at_instants(
        always,
        merge_moment([(1, always), (1, earlier)]),
        merge_moment([(1, always), (1, earlier), (1, late)]),
        merge_moment([(1, always), (1, at_step(zero))]),
    )


def _bare_gradient_rows(zero: Zero) -> BytesByPath:
    """Gradients at the end of a backward, beside those that are among the states."""
    if zero.plan.zero == 3 or (zero.plan.zero == 2 and zero.plan.offload.optimizer):
        return EMPTY
    if zero.plan.zero == 2:
        return BytesByPath.of([(PARTITION, zero.width * zero.shard)])
    return BytesByPath.of([((C.GRADIENTS, NAME), zero.width * zero.total)])


def _bare_host(parameters: int, plan: Plan) -> Host:
    return host_memory(_bare_zero_partition(parameters, plan))


ALGORITHM = Algorithm(
    check=check_partitioned,
    walk=partitioned_walk,
    resident_state=_state_with_inputs,
    bare_states=_bare_states,
    bare_host=_bare_host,
    offloads_apart=True,
    # overlap_comm of stages 1 and 2 is off unless one asks for it; stage 2 reduces every micro-batch
    traffic=Traffic(beside_backward=False, reduces_each=True, adds_on_device=True),
)
