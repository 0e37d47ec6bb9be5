"""What a model state holds at the peak beside what its dtype and its share come to, in words that make both
close to the size that is shown.
"""

from __future__ import annotations

from memsheet.budget import Answer
from memsheet.formulas.model_code import engine_for, model_code
from memsheet.formulas.states.optimizers import keeps_wide_moments
from memsheet.formulas.states.params import parameter_count, tower_tensors
from memsheet.plan.dtypes import FP32
from memsheet.plan.plan import GradientSync, OptimizerName, Plan
from memsheet.report.shared.look import Look
from memsheet.report.shared.plan_phrases import format_parameter_count
from memsheet.report.shared.state_words import waits_whole
from memsheet.sheet import Bytes, Component, Instant, Sheet, Witness

MOMENTS_EACH = {OptimizerName.ADAMW: 2, OptimizerName.LION: 1, OptimizerName.SGD_MOMENTUM: 1}
"""Numbers that an optimizer keeps of every element in one dtype."""
CLOSES = 200
"""Sizes that differ by less than this part of them are padding of shards, counts of steps and alike."""


def closing_words(component: Component, answer: Answer, sheet: Sheet, look: Look, shares: int) -> str:
    """Where a size is more or less than its dtype over ``shares`` ranks: what it is of, or by how much."""
    if sheet.witness is not Witness.PREDICTED or answer.trace is not None:
        return ""
    size, each = int(sheet.of(component).value), _bytes_each(component, answer.plan)
    if each and _is_whole_model(answer.plan):
        spec = model_code(engine_for(answer.model, answer.plan).layers).built(answer.model, answer.plan)
        own = parameter_count(spec) or answer.parameters  # a bare count of them has no layers
        text = own - sum(times * weight.elements for _, weight, times in tower_tensors(spec))
        if text < own and not _sizes_close(size, each * own // shares):
            return _joined_words("of the text model", _difference_words(size, each * text // shares, look))
        of = "" if _sizes_close(own, answer.parameters) else f"of {format_parameter_count(own)} as built"
        return _joined_words(of, _difference_words(size, each * own // shares, look))
    if component is Component.GRADIENTS and isinstance(sheet.gradients, Bytes):
        waits = waits_whole(component, answer.plan) and sheet.peak_instant is not Instant.OPTIMIZER_STEP
        whole = int((sheet.states.get(component, sheet.gradients) if waits else sheet.gradients).value)
        if not whole and answer.plan.offload.optimizer:
            return f"kept on the host, {look.cell(size)} on the way there"
        return _difference_words(size, whole, look)
    return ""


def _joined_words(*words: str) -> str:
    return ", ".join(filter(None, words))


def _difference_words(size: int, plain: int, look: Look) -> str:
    if _sizes_close(size, plain):
        return ""
    return f"and {look.cell(size - plain)} beside them" if size > plain else f"of {look.cell(plain)} so far"


def _sizes_close(size: int, plain: int) -> bool:
    return abs(size - plain) * CLOSES <= max(size, plain)


def _bytes_each(component: Component, plan: Plan) -> int:
    """Bytes of an element of a state; 0 where they are not of one kind."""
    precision, optimizer = plan.precision, plan.optimizer
    match component:
        case Component.PARAMETERS:
            return int(precision.parameters.nbytes(1))
        case Component.MASTER_WEIGHTS if precision.master_weights is not None:
            return int(precision.master_weights.nbytes(1))
        case Component.GRADIENTS if plan.gradient_sync is not GradientSync.LAST:
            return int(precision.gradients.nbytes(1))
        case Component.OPTIMIZER_STATES if optimizer is not None:
            dtype = FP32 if keeps_wide_moments(plan) else precision.moments
            return MOMENTS_EACH.get(optimizer.name, 0) * int(dtype.nbytes(1))
    return 0


def _is_whole_model(plan: Plan) -> bool:
    """Whether a rank has a share of every parameter, all of one kind, on the device."""
    mesh, moved = plan.mesh, plan.offload
    return (
        max(mesh.tp, mesh.pp, mesh.ep) == 1
        and plan.adapter is None
        and plan.quantization is None
        and not (moved.parameters or moved.optimizer)
    )
