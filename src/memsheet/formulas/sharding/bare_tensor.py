"""A bare parameter count as one tensor, which goes the way that an algorithm sends any tensor."""

from __future__ import annotations

from memsheet.arith import Count, ceil_div
from memsheet.formulas.sharding.algorithm import Steps
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.plan.model import Role
from memsheet.plan.plan import Plan
from memsheet.references import ZERO, formula
from memsheet.sheet import STATES, Component, Instant

NAME = "parameters"


@formula(
    cites=ZERO,
    at="section 3.1 and figure 1; tensor- and pipeline-parallel ranks divide the parameters evenly",
)
def rank_parameters(parameters: int, plan: Plan) -> Count:
    """Parameters of one tensor- and pipeline-parallel rank."""
    return ceil_div(parameters, plan.mesh.tp * plan.mesh.pp)


def bare_parameter_tensor(parameters: int, plan: Plan) -> HeldTensor:
    """All parameters of a rank as one tensor."""
    return HeldTensor(
        f"{NAME}.weight",
        (rank_parameters(parameters, plan),),
        plan.precision.parameters,
        True,
        Role.LINEAR,
        1,
    )


def bare_parameter_rows(parameters: int, elements: Count, plan: Plan) -> BytesByPath:
    """Of so many elements of it."""
    return BytesByPath.of(
        [((Component.PARAMETERS, NAME), bare_parameter_tensor(parameters, plan).dtype.nbytes(elements))]
    )


def steps_at_instants(
    load: BytesByPath, forward: BytesByPath, backward: BytesByPath, step: BytesByPath
) -> Steps:
    return {
        Instant.LOAD: load,
        Instant.FORWARD: forward,
        Instant.BACKWARD: backward,
        Instant.OPTIMIZER_STEP: step,
    }


def only_states(bag: BytesByPath) -> BytesByPath:
    """Rows of states alone, without buffers."""
    return BytesByPath.of((key, size) for key, size in bag.held.items() if key[0] in STATES)
