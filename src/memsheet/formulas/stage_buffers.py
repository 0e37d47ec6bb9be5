"""What a stage of torch's pipelining keeps beside its layers: buffers to receive in, what it has sent on, and
gradients that wait whole (torch 2.13 distributed/pipelining).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from memsheet.arith import Count, agreed, at_least, maximum, minimum, where
from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.pipeline import in_flight
from memsheet.formulas.sharding.overhead import ShardingOverhead, single_row
from memsheet.formulas.sharding.per_parameter_sizes import (
    loss_reduces_head,
    mixed_precision_dtype,
    unsynced_gradient_bytes,
)
from memsheet.formulas.sharding.pipelined_units import gathered_again
from memsheet.formulas.sharding.resident_state import ResidentState
from memsheet.formulas.states.gradients import UNSYNCED
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, largest_moment_rows, merge_moment
from memsheet.formulas.training_step import Step
from memsheet.frozen import replace
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Role
from memsheet.plan.plan import Plan, Schedule
from memsheet.references import TORCH_FSDP2, formula
from memsheet.sheet import Component

RECEIVED = "pipeline/received"
OUTPUTS = "pipeline/outputs"
SENT = "pipeline/sent"


def warm_and_steady(step: Step, others: Count) -> Iterator[tuple[Step, Count, frozenset[bool]]]:
    """A stage's step beside so many ``others``, and in which passes (backward or not). Where gradients wait
    whole, two of them: up to the end of the first backward, when the first of them come, and what follows.
    Where all that there are have run forward by then, that is backward, with one less beside it.
    """
    both = frozenset((False, True))
    if UNSYNCED not in step.resident_gradients.held:
        yield step, others, both
        return
    reduced = single_row(*UNSYNCED, _reduced_by_loss(step))
    around = replace(
        step.around,
        backward=partial(_first_backward, step),
        leaving=partial(_first_leaving, step),
        through=merge_moment([(1, step.around.through), (1, reduced)]),
    )
    yield replace(step, resident_gradients=EMPTY, around=around), others, both
    count = step.plan.accumulation
    after, lets_go = at_least(count, others + 2), step.plan.reshard_after_forward
    left = maximum(0, minimum(others, count - 2))
    if after is not False or not lets_go:
        yield step, left, frozenset((True,)) if after is False else both
    if lets_go:
        again = _backward_again(step, others=others)
        yield again, left if after is False else maximum(0, others - 1), frozenset((True,))


def _backward_again(step: Step, *, others: Count) -> Step:
    """A backward that follows another one, which has left all units whole. None does where a stage has no
    ``others`` in flight.
    """
    around, head, alone = step.around, step.walk.head, where(at_least(others, 1), 0, 1)

    def not_ahead(found: BytesByPath, before: Group | None) -> BytesByPath:
        ahead = gathered_again(before, step.plan) if before else EMPTY
        return merge_moment([(1, found), (alone - 1, ahead)])

    def holds(group: Group) -> BytesByPath:
        return merge_moment([(1 if group is head else alone, around.holds(group))])

    return replace(
        step,
        around=replace(
            around,
            backward=lambda before, group, after: not_ahead(around.backward(before, group, after), before),
            leaving=lambda before, group: not_ahead(around.leaving(before, group), before),
            holds=holds,
        ),
    )


def _reduced_by_loss(step: Step) -> Count:
    """Bytes of a head's gradient that the loss of every forward adds to."""
    head = step.walk.head if loss_reduces_head(step.plan) else None
    own = tuple(h for h in head.parameters if h.role is Role.HEAD) if head else ()
    return unsynced_gradient_bytes(own, step.plan)


def _first_backward(step: Step, before: Group | None, group: Group, after: Group | None) -> BytesByPath:
    """With a unit's own gradients, where they stay as they are made; a later backward adds to them."""
    same = step.plan.precision.reduce is step.plan.precision.compute
    made = unsynced_gradient_bytes(group.parameters, step.plan) if same else 0
    return merge_moment([(1, step.around.backward(before, group, after)), (1, single_row(*UNSYNCED, made))])


def _first_leaving(step: Step, before: Group | None, group: Group) -> BytesByPath:
    """What is there when a unit's first gradients are made wide, in place of those that are added."""
    same = step.plan.precision.reduce is step.plan.precision.compute
    moments = [(1, step.around.leaving(before, group)), (1, _first_gradients(step.plan, group))]
    return merge_moment([*moments, (-1, EMPTY if same else group.gradients)])


def _first_gradients(plan: Plan, group: Group) -> BytesByPath:
    """A unit's gradients as they are made wide one after another, each beside what it was (torch 2.13
    _fsdp_param.py, to_accumulated_grad_if_needed).
    """
    reduced = loss_reduces_head(plan)  # and there all the time
    made = [h for h in group.parameters if h.trains and not (reduced and h.role is Role.HEAD)]
    same = plan.precision.reduce is plan.precision.compute
    moments = list[BytesByPath]()
    for place in range(len(made)):
        wide = unsynced_gradient_bytes(tuple(made[: place + 1]), plan)
        left = (
            0
            if same
            else sum(h.times * mixed_precision_dtype(h, plan).nbytes(h.elements) for h in made[place:])
        )
        moments.append(BytesByPath.of([(UNSYNCED, wide), ((Component.GRADIENTS, group.name), left)]))
    return largest_moment_rows([[(1, moment)] for moment in moments]) if moments else EMPTY


@formula(
    cites=TORCH_FSDP2,
    at=(
        "distributed/pipelining/stage.py, _setup_forward_recv_info and _setup_backward_recv_info: a buffer "
        "for each micro-batch of a step, of what comes from either side; forward_one_chunk keeps outputs "
        "until their backward; schedules.py, Schedule1F1B._step_microbatches: bwd_sends names what goes back "
        "until the next backward is over"
    ),
)
def with_stage_buffers(kept: ResidentState, walk: StageLayers, plan: Plan, stage: Count) -> ResidentState:
    """With what a stage receives of all micro-batches of a step, what it has sent on of those in flight, and
    the gradient that it sent back last, in bytes. What the first layer keeps of those in flight is received
    already.
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
    if walk.embeddings is None and plan.schedule is Schedule.ONE_F_ONE_B:
        around = _with_outputs(around, where(at_least(count, 2), size, 0), SENT)
    around = (
        _with_sent_on(around, flying, size) if walk.head is None else _with_named(around, walk, flying, plan)
    )
    at_step = single_row(Component.COMMUNICATION, RECEIVED, flying * handed * size)
    return replace(
        kept,
        around=around,
        at_step=merge_moment([(1, kept.at_step), (1, at_step)]),
    )


def _with_sent_on(around: ShardingOverhead, flying: Count, size: Count) -> ShardingOverhead:
    """With what goes on to the next stage, of one micro-batch less while another runs forward."""
    own = single_row(Component.COMMUNICATION, OUTPUTS, size)

    def backward(before: Group | None, group: Group, after: Group | None) -> BytesByPath:
        return merge_moment([(1, around.backward(before, group, after)), (1, own)])

    def leaving(before: Group | None, group: Group) -> BytesByPath:
        return merge_moment([(1, around.leaving(before, group)), (1, own)])

    end = merge_moment([(1, around.end), (1, own)])
    return replace(_with_outputs(around, (flying - 1) * size), backward=backward, leaving=leaving, end=end)


def _with_outputs(around: ShardingOverhead, size: Count, path: str = OUTPUTS) -> ShardingOverhead:
    """With what was sent, on or back."""
    outputs = single_row(Component.COMMUNICATION, path, size)
    return replace(around, through=merge_moment([(1, around.through), (1, outputs)]))


def _with_named(around: ShardingOverhead, walk: StageLayers, flying: Count, plan: Plan) -> ShardingOverhead:
    """With what the last stage has returned: of micro-batches in flight; the last one until the next forward
    is over; of all, unless it is asked for none (schedules.py, _step_microbatches; stage.py,
    forward_one_chunk). While the loss is taken one of them is what it is taken of.
    """
    if walk.head is None or walk.loss is None:
        return around
    all_stay = engine_of(plan).unit_wrapping(plan.engine_version).keeps_outputs
    times = plan.accumulation if all_stay else flying
    paths = {path for _, path in walk.loss.arriving.held}

    def counted(bag: BytesByPath) -> BytesByPath:
        there = [size for (_, path), size in bag.held.items() if path in paths]
        return single_row(Component.COMMUNICATION, OUTPUTS, -there[0] if there else 0)

    def beside(found: Callable[[Group], BytesByPath], less: BytesByPath) -> Callable[[Group], BytesByPath]:
        return lambda group: merge_moment([(1, found(group)), (int(group is walk.head), less)])

    return replace(
        _with_outputs(around, times * walk.head.part.output),
        at_loss=beside(around.at_loss or around.holds, counted(walk.loss.forward)),
        holds=beside(around.holds, counted(walk.loss.backward)),
    )
