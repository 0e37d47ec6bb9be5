"""States of a bare parameter count: what is known of a job without a model's configuration.

All parameters are taken as one tensor, and go the way that the engine's rule of sharding sends any tensor.
Not included: activations, the loss, layers gathered one at a time, communication buckets and the padding of
single tensors.
"""

from __future__ import annotations

from dataclasses import replace

from memsheet.arith import Count, agreed, ceil_div
from memsheet.errors import Problem, raise_if_problems
from memsheet.formulas.sharding.partitioned import accumulated_gradient_rows
from memsheet.formulas.sharding.partitioned_states import (
    PARTITION,
    Zero,
    at_step,
    check_deepspeed,
    host_memory,
    zero_of,
    zero_state_rows,
)
from memsheet.formulas.sharding.per_parameter_sizes import unsynced_gradient_bytes
from memsheet.formulas.sharding.resident_state import Host
from memsheet.formulas.states.held import Held, gradient_dtype, parameter_shard
from memsheet.formulas.states.held_shapes import dim0_gathered
from memsheet.formulas.states.optimizers import WHOLE_SHAPES, optimizer_bytes, step_temporaries
from memsheet.formulas.step import UNSYNCED, accumulates_gradients
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Key, merge_moment
from memsheet.plan.engine import Engine, Sharding
from memsheet.plan.model import Role
from memsheet.plan.plan import Implementation, Plan
from memsheet.references import ZERO, formula
from memsheet.sheet import STATES, Component, Instant

C = Component
NAME = "parameters"
Steps = dict[Instant, BytesByPath]


@formula(
    cites=ZERO,
    at="section 3.1 and figure 1; tensor- and pipeline-parallel ranks divide the parameters evenly",
)
def rank_parameters(parameters: int, plan: Plan) -> Count:
    """Parameters of one tensor- and pipeline-parallel rank."""
    return ceil_div(parameters, plan.mesh.tp * plan.mesh.pp)


def bare_weights(parameters: int, plan: Plan) -> BytesByPath:
    """Weights of a bare count on one rank that serves, as they are stored."""
    tensor = _bare_parameter_tensor(parameters, plan)
    dtype = plan.quantization.weights if plan.quantization else tensor.dtype
    return BytesByPath.of([((C.PARAMETERS, NAME), dtype.nbytes(tensor.elements))])


def bare_states(parameters: int, plan: Plan, engine: Engine) -> Steps:
    """States at each instant of a training step, for a model of which only the number of parameters is known.

    Raises InputError naming what follows from the shapes of tensors, which a count does not have.
    """
    _check_countable(plan, engine)
    match engine.sharding:
        case Sharding.DEEPSPEED:
            check_deepspeed(plan)
            return _deepspeed_states(_bare_zero_partition(parameters, plan))
        case Sharding.MEGATRON:
            return _megatron_states(parameters, plan)
        case Sharding.INTERNEVO:
            return _internevo_states(parameters, plan)
        case Sharding.FSDP2 | Sharding.FSDP1 | Sharding.REPLICATED:
            return _fsdp_states(parameters, plan, engine)


def bare_host(parameters: int, plan: Plan, engine: Engine) -> Host:
    """Host memory of one rank."""
    return (
        host_memory(_bare_zero_partition(parameters, plan))
        if engine.sharding is Sharding.DEEPSPEED
        else Host(*_offloaded_host_bytes(parameters, plan, engine))
    )


def _check_countable(plan: Plan, engine: Engine) -> None:
    """Raises InputError for what a count alone says nothing of, and for states on the host in a form that the
    engine does not have.
    """
    found = list[Problem]()

    def wrong(field: str, value: object, reason: str, hint: str) -> None:
        found.append(Problem(field=field, value=value, reason=reason, hint=hint))

    if plan.optimizer and plan.optimizer.name in WHOLE_SHAPES:
        why = "keeps what follows from the shapes of tensors, and a count has none"
        wrong("optimizer.name", plan.optimizer.name.value, why, "give a model, or adamw")
    if plan.adapter is not None:
        wrong(
            "adapter.rank",
            plan.adapter.rank,
            "adds matrices to the layers of a model, and a count has none",
            "give a model",
        )
    if plan.offload.activations:
        wrong(
            "offload.activations",
            True,
            "moves activations, and a count has none",
            "leave it out, or give a model",
        )
    whole = plan.offload.optimizer == 1 and plan.offload.parameters == 1
    moves = plan.offload.optimizer or plan.offload.parameters
    if engine.sharding is not Sharding.DEEPSPEED and moves and not whole:
        why = f"{engine.name} moves parameters, gradients and optimizer states together"
        wrong(
            "offload",
            plan.offload.optimizer or plan.offload.parameters,
            why,
            "--offload optimizer,parameters",
        )
    raise_if_problems(found)


def _bare_parameter_tensor(parameters: int, plan: Plan) -> Held:
    return Held(
        f"{NAME}.weight",
        (rank_parameters(parameters, plan),),
        plan.precision.parameters,
        True,
        Role.LINEAR,
        1,
    )


# ---- DeepSpeed ---------------------------------------------------------------------------------------------


def _bare_zero_partition(parameters: int, plan: Plan) -> Zero:
    """All parameters as one tensor; what grows with the widest tensor is left out."""
    return replace(zero_of(plan, (_bare_parameter_tensor(parameters, plan),)), widest=0)


def _only_states(bag: BytesByPath) -> BytesByPath:
    return BytesByPath.of((key, size) for key, size in bag.held.items() if key[0] in STATES)


def _deepspeed_states(zero: Zero) -> Steps:
    always, earlier = zero_state_rows(zero), _only_states(accumulated_gradient_rows(zero))
    late = EMPTY if zero.accumulates and zero.plan.zero < 2 else _deepspeed_gradient_rows(zero)
    return {
        Instant.LOAD: always,
        Instant.FORWARD: merge_moment([(1, always), (1, earlier)]),
        Instant.BACKWARD: merge_moment([(1, always), (1, earlier), (1, late)]),
        Instant.OPTIMIZER_STEP: merge_moment([(1, always), (1, at_step(zero))]),
    }


def _deepspeed_gradient_rows(zero: Zero) -> BytesByPath:
    """Gradients at the end of a backward, beside those that are among the states."""
    if zero.plan.zero == 3 or (zero.plan.zero == 2 and zero.plan.offload.optimizer):
        return EMPTY
    if zero.plan.zero == 2:
        return BytesByPath.of([(PARTITION, zero.width * zero.shard)])
    return BytesByPath.of([((C.GRADIENTS, NAME), zero.width * zero.total)])


# ---- Megatron, InternEvo -----------------------------------------------------------------------------------


def _megatron_states(parameters: int, plan: Plan) -> Steps:
    """Parameters and gradients in two buffers that stay, the distributed optimizer's parts, and gradients
    raised for its step.
    """
    from memsheet.formulas.sharding.distributed_optimizer import buffers_and_shards, widened_gradients

    tensors = (_bare_parameter_tensor(parameters, plan),)
    always, scratch = (
        buffers_and_shards(tensors, plan),
        BytesByPath.of([((C.TEMPORARIES, "optimizer"), widened_gradients(tensors, plan))]),
    )
    return _over_the_step(always, always, always, merge_moment([(1, always), (1, scratch)]))


def _internevo_states(parameters: int, plan: Plan) -> Steps:
    """An even share of the copies and moments: which rank is dealt more follows from the shapes."""
    from memsheet.formulas.sharding.whole_parameter_owners import own_states, step_of_share, whole_gradients

    total, ranks = rank_parameters(parameters, plan), plan.mesh.dp_shard
    share = ceil_div(total, ranks)
    always = merge_moment(
        [(1, _bare_parameter_rows(parameters, total, plan)), (1, BytesByPath.of(own_states(share, plan)))]
    )
    gradients = whole_gradients(total, plan)
    before = gradients if agreed(plan.accumulation > 1) else EMPTY
    return _over_the_step(
        always,
        merge_moment([(1, always), (1, before)]),
        merge_moment([(1, always), (1, gradients)]),
        merge_moment([(1, always), (1, step_of_share(share, plan))]),
    )


# ---- fully sharded, or replicated --------------------------------------------------------------------------


def _over_the_step(
    load: BytesByPath, forward: BytesByPath, backward: BytesByPath, step: BytesByPath
) -> Steps:
    return {
        Instant.LOAD: load,
        Instant.FORWARD: forward,
        Instant.BACKWARD: backward,
        Instant.OPTIMIZER_STEP: step,
    }


def _bare_parameter_rows(parameters: int, elements: Count, plan: Plan) -> BytesByPath:
    return BytesByPath.of(
        [((C.PARAMETERS, NAME), _bare_parameter_tensor(parameters, plan).dtype.nbytes(elements))]
    )


def _fsdp_states(parameters: int, plan: Plan, engine: Engine) -> Steps:
    """What a rank keeps of every tensor, whole or a shard; FSDP2 at zero 2 keeps what it gathered until
    backward ends.
    """
    tensor, precision = _bare_parameter_tensor(parameters, plan), plan.precision
    gathered = _unsharded_parameter_rows(tensor, plan, engine)
    shard = parameter_shard(tensor, plan, engine.sharding)
    if plan.offload.parameters:  # a flat parameter's reduced gradients stay until backward is over
        left = gradient_dtype(tensor, plan).nbytes(shard) if engine.sharding is Sharding.FSDP1 else 0
        return _over_the_step(
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
            (1, _bare_parameter_rows(parameters, shard, plan)),
            (1, BytesByPath.of((key, size) for key, size in rows if size)),
        ]
    )
    if (
        plan.optimizer_in_backward
    ):  # a gradient is used up when it arrives: of how many parameters at a time is not known
        return _over_the_step(always, always, always, always)
    gradients = BytesByPath.of([((C.GRADIENTS, NAME), gradient_dtype(tensor, plan).nbytes(shard))])
    waiting = _unsynced_gradient_rows(tensor, plan, engine)
    last = agreed(plan.mesh.pp > 1) and engine.whole_in_pipelines  # reduces with the last micro-batch
    before = EMPTY if last or not accumulates_gradients(plan, engine) else gradients
    return _over_the_step(
        always,
        merge_moment([(1, always), (1, before), (1, waiting), (1, gathered)]),
        merge_moment([(1, always), (1, gradients), (1, waiting), (1, gathered)]),
        merge_moment([(1, always), (1, _at_step(tensor, shard, gradients, plan, engine))]),
    )


def _unsynced_gradient_rows(tensor: Held, plan: Plan, engine: Engine) -> BytesByPath:
    """Whole gradients that wait for the last micro-batch: surely in some pipelines, else perhaps
    (``bare_ranges``).
    """
    if engine.sharding is not Sharding.FSDP2 or not accumulates_gradients(plan, engine):
        return EMPTY
    surely = agreed(plan.mesh.pp > 1) and engine.whole_in_pipelines
    return BytesByPath.of([(UNSYNCED, unsynced_gradient_bytes((tensor,), plan) if surely else 0)])


def bare_ranges(parameters: int, plan: Plan, engine: Engine) -> dict[Key, tuple[Count, Count]]:
    """What the engine's configuration leaves open: gradients that are reduced after every micro-batch, or
    wait whole for the last.
    """
    tensor = _bare_parameter_tensor(parameters, plan)
    if UNSYNCED not in _unsynced_gradient_rows(tensor, plan, engine).held or (
        agreed(plan.mesh.pp > 1) and engine.whole_in_pipelines
    ):
        return {}
    return {UNSYNCED: (0, unsynced_gradient_bytes((tensor,), plan))}


def _unsharded_parameter_rows(tensor: Held, plan: Plan, engine: Engine) -> BytesByPath:
    """Parameters that stay whole from forward to backward."""
    if engine.sharding is not Sharding.FSDP2 or plan.reshard_after_forward:
        return EMPTY
    size = plan.precision.compute.nbytes(dim0_gathered(tensor.shape, plan.mesh.sharded))
    return BytesByPath.of([((C.UNSHARDED_PARAMETERS, f"{NAME}/unsharded"), size)])


def _at_step(tensor: Held, shard: Count, gradients: BytesByPath, plan: Plan, engine: Engine) -> BytesByPath:
    """Gradients and the optimizer's scratch; an optimizer that works on one tensor at a time has as much of
    it as that tensor.
    """
    assert plan.optimizer is not None
    whole = plan.optimizer.implementation is not Implementation.LOOP
    scratch = step_temporaries(((tensor, shard),), plan) if whole else 0
    wide = plan.precision.master_weights if engine.sharding is Sharding.REPLICATED else None
    if (
        wide is not None
    ):  # every gradient is raised to the copies' precision and let go, before they are stepped
        return BytesByPath.of([((C.TEMPORARIES, "optimizer"), wide.nbytes(shard) + scratch)])
    return merge_moment([(1, gradients), (1, BytesByPath.of([((C.TEMPORARIES, "optimizer"), scratch)]))])


def _optimizer_moment_bytes(tensor: Held, shard: Count, plan: Plan) -> Count:
    return optimizer_bytes(tensor, shard, plan) - optimizer_bytes(
        tensor, 0, plan
    )  # less what each tensor has: how many is not known


def _offloaded_host_bytes(parameters: int, plan: Plan, engine: Engine) -> tuple[tuple[Count, ...], Count]:
    """Parameters and gradients pinned, optimizer states pageable, where the plan keeps them on the host."""
    if not plan.offload.parameters:
        return (), 0
    tensor = _bare_parameter_tensor(parameters, plan)
    shard = parameter_shard(tensor, plan, engine.sharding)
    return (tensor.dtype.nbytes(shard), gradient_dtype(tensor, plan).nbytes(shard)), _optimizer_moment_bytes(
        tensor, shard, plan
    )
