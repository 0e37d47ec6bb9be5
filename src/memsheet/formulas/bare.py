"""States of a bare parameter count: what is known of a job without a model's configuration.

Not included: activations, the loss, gathered layers, communication buckets and the padding of single tensors.
"""

from __future__ import annotations

from dataclasses import replace

from memsheet.arith import Count, ceil_div
from memsheet.errors import refuse
from memsheet.formulas.around.deepspeed import resident
from memsheet.formulas.around.kept import Host
from memsheet.formulas.around.zero_states import PARTITION, Zero, at_step, check_deepspeed, host_memory, states, zero_of
from memsheet.formulas.states.held import Held, parameter_shard
from memsheet.formulas.states.optimizers import WHOLE_SHAPES, optimizer_bytes, step_temporaries
from memsheet.formulas.tapes.evaluate import EMPTY, Bag, merge
from memsheet.references import ZERO, formula
from memsheet.sheet import STATES, Component, Instant
from memsheet.spec.engine import Engine, Sharding
from memsheet.spec.model import Role
from memsheet.spec.plan import Implementation, Plan

C = Component
NAME = "parameters"
Steps = dict[Instant, Bag]


@formula(cites=ZERO, at="section 3.1 and figure 1; tensor- and pipeline-parallel ranks divide the parameters evenly")
def rank_parameters(parameters: int, plan: Plan) -> Count:
    """Parameters of one tensor- and pipeline-parallel rank."""
    return ceil_div(parameters, plan.mesh.tp * plan.mesh.pp)


def bare_states(parameters: int, plan: Plan, engine: Engine) -> Steps:
    """States at each instant of a training step, for a model of which only the number of parameters is known."""
    if engine.sharding is Sharding.DEEPSPEED:
        check_deepspeed(plan)
        return _deepspeed(_zero(parameters, plan))
    return _even(parameters, plan, engine)


def bare_host(parameters: int, plan: Plan, engine: Engine) -> Host:
    """Host memory of one rank."""
    return host_memory(_zero(parameters, plan)) if engine.sharding is Sharding.DEEPSPEED else Host(*_moved(parameters, plan, engine))


def _tensor(parameters: int, plan: Plan) -> Held:
    return Held(f"{NAME}.weight", (rank_parameters(parameters, plan),), plan.precision.parameters, True, Role.LINEAR, 1)


# ---- DeepSpeed -----------------------------------------------------------------------------------------------------------------


def _zero(parameters: int, plan: Plan) -> Zero:
    """All parameters as one tensor; what grows with the widest tensor is left out."""
    return replace(zero_of(plan, (_tensor(parameters, plan),)), widest=0)


def _only_states(bag: Bag) -> Bag:
    return Bag.of((key, size) for key, size in bag.held.items() if key[0] in STATES)


def _deepspeed(zero: Zero) -> Steps:
    always, earlier = states(zero), _only_states(resident(zero))
    late = EMPTY if zero.accumulates and zero.plan.zero < 2 else _gradients(zero)
    return {
        Instant.LOAD: always,
        Instant.FORWARD: merge([(1, always), (1, earlier)]),
        Instant.BACKWARD: merge([(1, always), (1, earlier), (1, late)]),
        Instant.OPTIMIZER_STEP: merge([(1, always), (1, at_step(zero))]),
    }


def _gradients(zero: Zero) -> Bag:
    """Gradients at the end of a backward, beside those that are among the states."""
    if zero.plan.zero == 3 or (zero.plan.zero == 2 and zero.plan.offload.optimizer):
        return EMPTY
    if zero.plan.zero == 2:
        return Bag.of([(PARTITION, zero.width * zero.shard)])
    return Bag.of([((C.GRADIENTS, NAME), zero.width * zero.total)])


# ---- fully sharded, or replicated ----------------------------------------------------------------------------------------------


def _even(parameters: int, plan: Plan, engine: Engine) -> Steps:
    tensor = _tensor(parameters, plan)
    shard = parameter_shard(tensor, plan, engine.sharding)
    precision = plan.precision
    if plan.offload.parameters or plan.offload.optimizer:
        return dict.fromkeys((Instant.LOAD, Instant.FORWARD, Instant.BACKWARD, Instant.OPTIMIZER_STEP), EMPTY)
    owned = ceil_div(shard, plan.mesh.dp_shard) if engine.sharding is Sharding.INTERNEVO else shard  # whose optimizer states a rank keeps
    master = precision.master_weights.nbytes(owned) if precision.master_weights else 0
    always = Bag.of(
        (key, size)
        for key, size in (
            ((C.PARAMETERS, NAME), precision.parameters.nbytes(shard)),
            ((C.MASTER_WEIGHTS, NAME), master),
            ((C.OPTIMIZER_STATES, NAME), _moments(tensor, owned, plan)),
        )
        if size
    )
    gradients = Bag.of([((C.GRADIENTS, NAME), precision.gradients.nbytes(shard))])
    before = gradients if plan.accumulation > 1 else EMPTY
    assert plan.optimizer is not None
    whole = plan.optimizer.implementation is not Implementation.LOOP  # which works on one tensor at a time
    scratch = Bag.of([((C.TEMPORARIES, "optimizer"), step_temporaries(((tensor, owned),), plan) if whole else 0)])
    return {
        Instant.LOAD: always,
        Instant.FORWARD: merge([(1, always), (1, before)]),
        Instant.BACKWARD: merge([(1, always), (1, gradients)]),
        Instant.OPTIMIZER_STEP: merge([(1, always), (1, gradients), (1, scratch)]),
    }


def _moments(tensor: Held, shard: Count, plan: Plan) -> Count:
    assert plan.optimizer is not None
    if plan.optimizer.name in WHOLE_SHAPES:
        why = "keeps what follows from the shapes of tensors, and a count has none"
        raise refuse("optimizer.name", plan.optimizer.name.value, why, "give a model, or adamw")
    return optimizer_bytes(tensor, shard, plan) - optimizer_bytes(tensor, 0, plan)  # less what each tensor has: how many is not known


def _moved(parameters: int, plan: Plan, engine: Engine) -> tuple[tuple[Count, ...], Count]:
    """Parameters and gradients pinned, optimizer states pageable, where the plan keeps them on the host."""
    if not (plan.offload.parameters or plan.offload.optimizer):
        return (), 0
    tensor = _tensor(parameters, plan)
    shard = parameter_shard(tensor, plan, engine.sharding)
    return (plan.precision.parameters.nbytes(shard), plan.precision.gradients.nbytes(shard)), _moments(tensor, shard, plan)
