"""What fully_shard keeps around the layers of a pipeline's stage: units are gathered by the first micro-batch
and stay until the last one's gradients have been reduced (torch 2.13 distributed/pipelining/stage.py,
backward_maybe_with_nosync and perform_reduce_grad).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from memsheet.arith import Count, agreed, maximum, minimum
from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.pipeline import in_flight
from memsheet.formulas.sharding.overhead import ShardingOverhead, single_row
from memsheet.formulas.sharding.per_parameter_sizes import (
    gathered_bytes,
    last_gradient_row,
    reduce_input_bytes,
    unsynced_gradient_bytes,
)
from memsheet.formulas.sharding.resident_state import ResidentState
from memsheet.formulas.states.gradients import UNSYNCED
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, merge_moment
from memsheet.formulas.training_step import Step
from memsheet.frozen import replace
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_FSDP2, formula
from memsheet.sheet import Component

RECEIVED = "pipeline/received"
OUTPUTS = "pipeline/outputs"


@formula(
    cites=TORCH_FSDP2,
    at=(
        "_fsdp_param_group.py, unshard and post_backward: what is gathered is not gathered again, and without "
        "reshard_after_backward it stays; at the end one group after another is reduced"
    ),
)
def pipelined_overhead(plan: Plan, walk: StageLayers) -> ShardingOverhead:
    """Every unit gathered through the step, and the first one's gradients beside the buffer that they are
    reduced in, in bytes. No gathered buffer is there any more when gradients wait.
    """
    layers = [(run.count, group) for run in walk.layers for group in run.pattern]
    ends = [(1, group) for group in (walk.embeddings, walk.head) if group]
    groups = [*ends, *layers]
    whole = merge_moment([(times, _unsharded_row(group, plan)) for times, group in groups])
    first = walk.embeddings or layers[0][1] if groups else None
    end = EMPTY if first is None else BytesByPath.of(
        [
            ((Component.COMMUNICATION, f"{first.name}/reduce_scatter"), reduce_input_bytes(first, plan)),
            ((Component.UNSHARDED_PARAMETERS, f"{first.name}/unsharded"), -gathered_bytes(first, plan)),
        ]
    )  # fmt: skip
    waits = partial(_waiting_gradients, plan)
    return ShardingOverhead(through=whole, leaving=_made_gradients, leaves=waits, end=end)


def _unsharded_row(group: Group, plan: Plan) -> BytesByPath:
    return single_row(
        Component.UNSHARDED_PARAMETERS, f"{group.name}/unsharded", gathered_bytes(group, plan)
    )


def _made_gradients(before: Group | None, group: Group) -> BytesByPath:
    """A unit's gradients, until each has been added to what waits."""
    del before
    return group.gradients


def _waiting_gradients(plan: Plan, group: Group) -> BytesByPath:
    """What the first micro-batch leaves of a unit's."""
    return single_row(*UNSYNCED, unsynced_gradient_bytes(group.parameters, plan))


def warm_and_steady(step: Step, others: Count) -> Iterator[tuple[Step, Count]]:
    """A stage's step beside so many ``others``. Where gradients wait whole, two of them: up to the end of the
    first backward, when the first of them come, and what follows, with one less beside it where all that
    there are have run forward.
    """
    if UNSYNCED not in step.resident_gradients.held:
        yield step, others
        return
    around = replace(step.around, leaving=partial(_first_gradients, step.plan))
    yield replace(step, resident_gradients=EMPTY, around=around), others
    yield step, maximum(0, minimum(others, step.plan.accumulation - 2))


def _first_gradients(plan: Plan, before: Group | None, group: Group) -> BytesByPath:
    """A unit's gradients as they wait, and the last of them as it was made (torch 2.13 _fsdp_param.py,
    to_accumulated_grad_if_needed).
    """
    del before
    return BytesByPath.of([*_waiting_gradients(plan, group).held.items(), last_gradient_row(group, plan)])


@formula(
    cites=TORCH_FSDP2,
    at=(
        "distributed/pipelining/stage.py, _setup_forward_recv_info and _setup_backward_recv_info: a buffer for "
        "each micro-batch of a step, of what comes from either side; forward_one_chunk keeps outputs until "
        "their backward"
    ),
)
def with_stage_buffers(kept: ResidentState, walk: StageLayers, plan: Plan, stage: Count) -> ResidentState:
    """With what a stage receives of all micro-batches of a step, and what it has sent on of those in flight,
    in bytes. What the first layer keeps of those in flight is received already.
    """
    if agreed(plan.mesh.pp == 1) or not walk.layers:
        return kept
    size = walk.layers[-1].pattern[-1].part.output
    count = plan.accumulation
    flying = in_flight(plan.schedule, plan.mesh.pp, stage, count)
    received: Count = 0
    handed = 0 if walk.embeddings else walk.layers[0].pattern[0].part.keeps_input
    if walk.embeddings is None:
        received = received + (count - flying * handed) * size
    if walk.head is None:
        received = received + count * size
    around = kept.around
    always = single_row(Component.COMMUNICATION, RECEIVED, received)
    around = replace(around, always=merge_moment([(1, around.always), (1, always)]))
    around = _with_outputs(around, flying * size) if walk.head is None else _with_named(around, walk)
    at_step = single_row(Component.COMMUNICATION, RECEIVED, flying * handed * size)
    return replace(kept, around=around, at_step=merge_moment([(1, kept.at_step), (1, at_step)]))


def _with_outputs(around: ShardingOverhead, size: Count) -> ShardingOverhead:
    """With what was sent on."""
    outputs = single_row(Component.COMMUNICATION, OUTPUTS, size)
    return replace(around, through=merge_moment([(1, around.through), (1, outputs)]))


def _with_named(around: ShardingOverhead, walk: StageLayers) -> ShardingOverhead:
    """With what the schedule names of the last stage until the next micro-batch's forward is over; while the
    loss is taken that is what it is taken of (schedules.py, Schedule1F1B._step_microbatches).
    """
    if walk.head is None or walk.loss is None:
        return around
    paths = {path for _, path in walk.loss.arriving.held}

    def counted(bag: BytesByPath) -> BytesByPath:
        there = [size for (_, path), size in bag.held.items() if path in paths]
        return single_row(Component.COMMUNICATION, OUTPUTS, -there[0] if there else 0)

    def beside(
        found: Callable[[Group], BytesByPath], less: BytesByPath
    ) -> Callable[[Group], BytesByPath]:
        return lambda group: merge_moment([(1, found(group)), (int(group is walk.head), less)])

    return replace(
        _with_outputs(around, walk.head.part.output),
        at_loss=beside(around.at_loss or around.holds, counted(walk.loss.forward)),
        holds=beside(around.holds, counted(walk.loss.backward)),
    )
