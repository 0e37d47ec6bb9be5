"""States of a bare parameter count where they are divided tensor by tensor, or not at all."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.formulas.sharding.algorithm import Ranges, Steps
from memsheet.formulas.sharding.bare_tensor import (
    NAME,
    bare_parameter_rows,
    bare_parameter_tensor,
    steps_at_instants,
)
from memsheet.formulas.sharding.division import Division
from memsheet.formulas.sharding.resident_state import Host
from memsheet.formulas.states.gradients import (
    UNSYNCED,
    accumulates_gradients,
    reduces_surely_every,
    reduces_surely_last,
)
from memsheet.formulas.states.held import HeldTensor, gradient_dtype
from memsheet.formulas.states.optimizers import optimizer_bytes, step_temporaries
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, merge_moment
from memsheet.plan.engine import Engine
from memsheet.plan.plan import Implementation, Plan
from memsheet.sheet import Component

C = Component


def bare_states(how: Division, parameters: int, plan: Plan, engine: Engine) -> Steps:
    """What a rank keeps of every tensor, whole or a shard; at zero 2 what it gathered, until backward
    ends.
    """
    tensor, precision = bare_parameter_tensor(parameters, plan), plan.precision
    gathered = _unsharded_parameter_rows(how, tensor, plan)
    shard = how.shard(tensor, plan)
    if plan.offload.parameters:
        left = gradient_dtype(tensor, plan).nbytes(shard) if how.keeps_reduced else 0
        return steps_at_instants(
            EMPTY,
            gathered,
            merge_moment([(1, gathered), (1, BytesByPath.of([((C.GRADIENTS, NAME), left)] if left else []))]),
            EMPTY,
        )
    master = precision.master_weights.nbytes(shard) if precision.master_weights else 0
    rows = (
        ((C.MASTER_WEIGHTS, NAME), master),
        ((C.OPTIMIZER_STATES, NAME), _optimizer_moment_bytes(tensor, shard, plan)),
    )
    always = merge_moment(
        [
            (1, bare_parameter_rows(parameters, shard, plan)),
            (1, BytesByPath.of((key, size) for key, size in rows if size)),
        ]
    )
    if (
        plan.optimizer_in_backward
    ):  # a gradient is used up when it arrives: of how many parameters at a time is not known
        return steps_at_instants(always, always, always, always)
    gradients = BytesByPath.of([((C.GRADIENTS, NAME), gradient_dtype(tensor, plan).nbytes(shard))])
    waiting = _unsynced_gradient_rows(how, tensor, plan, engine)
    last = reduces_surely_last(plan, engine)
    before = EMPTY if last or not accumulates_gradients(plan, engine) else gradients
    return steps_at_instants(
        always,
        merge_moment([(1, always), (1, before), (1, waiting), (1, gathered)]),
        merge_moment([(1, always), (1, gradients), (1, waiting), (1, gathered)]),
        merge_moment([(1, always), (1, _at_step(how, tensor, shard, gradients, plan))]),
    )


def _unsynced_gradient_rows(how: Division, tensor: HeldTensor, plan: Plan, engine: Engine) -> BytesByPath:
    """Whole gradients that wait for the last micro-batch: surely where the plan says so and in some
    pipelines, else perhaps (``bare_ranges``).
    """
    if how.waiting is None or not accumulates_gradients(plan, engine):
        return EMPTY
    surely = reduces_surely_last(plan, engine)
    return BytesByPath.of([(UNSYNCED, how.waiting((tensor,), plan) if surely else 0)])


def bare_ranges(how: Division, parameters: int, plan: Plan, engine: Engine) -> Ranges:
    """What the engine's configuration leaves open: gradients that are reduced after every micro-batch, or
    wait whole for the last.
    """
    tensor = bare_parameter_tensor(parameters, plan)
    unknown = accumulates_gradients(plan, engine) and not reduces_surely_last(plan, engine)
    if how.waiting is None or not unknown or reduces_surely_every(plan, engine):
        return {}
    return {UNSYNCED: (0, how.waiting((tensor,), plan))}


def _unsharded_parameter_rows(how: Division, tensor: HeldTensor, plan: Plan) -> BytesByPath:
    """Parameters that stay whole from forward to backward."""
    if how.gathered is None or plan.reshard_after_forward:
        return EMPTY
    size = plan.precision.compute.nbytes(how.gathered(tensor, plan))
    return BytesByPath.of([((C.UNSHARDED_PARAMETERS, f"{NAME}/unsharded"), size)])


def _at_step(
    how: Division, tensor: HeldTensor, shard: Count, gradients: BytesByPath, plan: Plan
) -> BytesByPath:
    """Gradients and the optimizer's scratch; an optimizer that works on one tensor at a time has as much of
    it as that tensor.
    """
    assert plan.optimizer is not None
    whole = plan.optimizer.implementation is not Implementation.LOOP
    scratch = step_temporaries(((tensor, shard),), plan) if whole else 0
    wide = plan.precision.master_weights if how.raises_gradients else None
    if (
        wide is not None
    ):  # every gradient is raised to the copies' precision and let go, before they are stepped
        return BytesByPath.of([((C.TEMPORARIES, "optimizer"), wide.nbytes(shard) + scratch)])
    return merge_moment([(1, gradients), (1, BytesByPath.of([((C.TEMPORARIES, "optimizer"), scratch)]))])


def _optimizer_moment_bytes(tensor: HeldTensor, shard: Count, plan: Plan) -> Count:
    return optimizer_bytes(tensor, shard, plan) - optimizer_bytes(
        tensor, 0, plan
    )  # less what each tensor has: how many is not known


def offloaded_bare_host(how: Division, parameters: int, plan: Plan) -> Host:
    """Parameters and gradients pinned, optimizer states pageable, where the plan keeps them on the host."""
    if not plan.offload.parameters:
        return Host()
    tensor = bare_parameter_tensor(parameters, plan)
    shard = how.shard(tensor, plan)
    pinned = (tensor.dtype.nbytes(shard), gradient_dtype(tensor, plan).nbytes(shard))
    return Host(pinned, _optimizer_moment_bytes(tensor, shard, plan))
