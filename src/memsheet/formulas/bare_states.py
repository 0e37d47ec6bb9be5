"""States of a bare parameter count: what is known of a job without a model's configuration.

All parameters are taken as one tensor, and go the way that the engine's rule of sharding sends any tensor.
Not included: activations, the loss, layers gathered one at a time, communication buckets and the padding of
single tensors.
"""

from __future__ import annotations

from memsheet.errors import Problem, raise_if_problems
from memsheet.formulas.sharding.algorithm import Ranges, Steps, algorithm_of
from memsheet.formulas.sharding.bare_tensor import NAME, bare_parameter_tensor
from memsheet.formulas.sharding.resident_state import Host
from memsheet.formulas.states.optimizers import WHOLE_SHAPES
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.plan.engine import Engine
from memsheet.plan.plan import Plan
from memsheet.sheet import Component


def bare_weights(parameters: int, plan: Plan) -> BytesByPath:
    """Weights of a bare count on one rank that serves, as they are stored."""
    tensor = bare_parameter_tensor(parameters, plan)
    dtype = plan.quantization.weights if plan.quantization else tensor.dtype
    return BytesByPath.of([((Component.PARAMETERS, NAME), dtype.nbytes(tensor.elements))])


def bare_states(parameters: int, plan: Plan, engine: Engine) -> Steps:
    """States at each instant of a training step, for a model of which only the number of parameters is known.

    Raises InputError naming what follows from the shapes of tensors, which a count does not have.
    """
    _check_countable(plan, engine)
    algorithm = algorithm_of(engine.sharding)
    algorithm.check(plan)
    return algorithm.bare_states(parameters, plan, engine)


def bare_host(parameters: int, plan: Plan, engine: Engine) -> Host:
    """Host memory of one rank."""
    return algorithm_of(engine.sharding).bare_host(parameters, plan)


def bare_ranges(parameters: int, plan: Plan, engine: Engine) -> Ranges:
    """What the engine's configuration leaves open, low and high."""
    return algorithm_of(engine.sharding).bare_ranges(parameters, plan, engine)


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
    if moves and not whole and not algorithm_of(engine.sharding).offloads_apart:
        why = f"{engine.name} moves parameters, gradients and optimizer states together"
        wrong(
            "offload",
            plan.offload.optimizer or plan.offload.parameters,
            why,
            "--offload optimizer,parameters",
        )
    raise_if_problems(found)
