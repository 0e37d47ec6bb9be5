"""Gradients between backward and the optimizer's step: what stays of them, and what a step of copies
makes.
"""

from __future__ import annotations

from memsheet.arith import Count, agreed
from memsheet.formulas.states.held import HeldTensor, gradient_dtype, module_of
from memsheet.formulas.states.optimizers import step_temporaries
from memsheet.formulas.tapes.bytes_by_path import BytesByPath, Key
from memsheet.plan.engine import Engine
from memsheet.plan.plan import GradientSync, Plan
from memsheet.plan.torch_versions import gradients_stay
from memsheet.references import MEGATRON_MASTER, formula
from memsheet.sheet import Component

UNSYNCED: Key = (Component.GRADIENTS, "no_sync")
UNSYNCED_NOTE = (
    "gradients are reduced after every micro-batch; accelerate and the Trainer keep them "
    "whole until the last one (no_sync): the high end"
)


def accumulates_gradients(plan: Plan, engine: Engine) -> bool:
    """Whether a micro-batch finds gradients of an earlier one, or of the step before."""
    return agreed(plan.accumulation > 1) or (engine.older_releases and gradients_stay(plan.engine_version))


def reduces_surely_last(plan: Plan, engine: Engine) -> bool:
    """Whether only a step's last micro-batch reduces gradients: where the plan says so or nobody does and the
    engine's own loop waits, and in some pipelines (torch 2.13 distributed/pipelining/stage.py,
    backward_maybe_with_nosync).
    """
    if (plan.gradient_sync or engine.gradient_sync) is GradientSync.LAST:
        return agreed(plan.accumulation > 1)
    return engine.torch_pipelining and agreed(plan.mesh.pp > 1)


def reduces_surely_every(plan: Plan, engine: Engine) -> bool:
    """Whether every micro-batch's gradients are reduced: where the plan says so, and where the engine's own
    loop does.
    """
    if plan.gradient_sync is None:
        return engine.gradient_sync is GradientSync.EVERY and not reduces_surely_last(plan, engine)
    return plan.gradient_sync is GradientSync.EVERY


def unreduced_gradients(resident: BytesByPath) -> BytesByPath:
    """Of gradients between micro-batches, those that no rank has reduced: they go to no host."""
    return BytesByPath.of(pair for pair in resident.held.items() if pair[0] == UNSYNCED)


def gradient_bag(parameters: tuple[tuple[HeldTensor, Count], ...], plan: Plan) -> BytesByPath:
    """All gradients as they stand before the optimizer's step."""
    return BytesByPath.of(
        ((Component.GRADIENTS, module_of(h.path)), h.times * gradient_dtype(h, plan).nbytes(elements))
        for h, elements in parameters
    )


@formula(
    cites=MEGATRON_MASTER,
    at="_copy_model_grads_to_main_grads: a gradient is cast, then let go, one parameter after another",
)
def master_copy_step_moments(
    parameters: tuple[tuple[HeldTensor, Count], ...], plan: Plan
) -> list[BytesByPath]:
    """Moments of an optimizer with copies in higher precision: each gradient beside its own copy, then all
    copies while they are stepped.

    Tensors of layers are taken as they stand in the last one.
    """
    assert plan.precision.master_weights is not None
    wide, own = plan.precision.master_weights, plan.precision.gradients
    moments, done, repeated = list[BytesByPath](), 0, sum((h.times - 1) * n for h, n in parameters)
    for place, (h, n) in enumerate(parameters):
        done, repeated = (done + repeated, 0) if h.times > 1 else (done, repeated)
        done = done + n
        left = [
            ((Component.GRADIENTS, module_of(other.path)), own.nbytes(size))
            for other, size in parameters[place:]
        ]
        moments.append(BytesByPath.of([((Component.TEMPORARIES, "optimizer"), wide.nbytes(done)), *left]))
    return [
        *moments,
        BytesByPath.of(
            [((Component.TEMPORARIES, "optimizer"), wide.nbytes(done) + step_temporaries(parameters, plan))]
        ),
    ]
