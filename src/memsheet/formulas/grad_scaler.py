"""What fp16 autocast's gradient scaler keeps and makes: a few numbers."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.plan.dtypes import FP16, FP32
from memsheet.plan.engine import Engine
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_SCALER, formula
from memsheet.sheet import Component

_STATES, _AT_STEP = 2, 4


def uses_grad_scaler(plan: Plan, engine: Engine) -> bool:
    """Whether the loss is scaled: fp32 parameters under fp16 autocast."""
    return engine.autocast and plan.precision.casts and plan.precision.compute is FP16


@formula(
    cites=TORCH_SCALER,
    at="_lazy_init_scale_growth_tracker: the scale and the steps since it grew, four bytes each",
)
def scaler_bytes() -> Count:
    """Bytes kept between steps."""
    return _STATES * FP32.nbytes(1)


@formula(
    cites=TORCH_SCALER,
    at="unscale_, step: the inverse in double and single precision, whether a gradient overflowed",
)
def unscaling_bytes() -> Count:
    """Bytes while gradients are brought back to scale."""
    return _AT_STEP * FP32.nbytes(1)


def scaler_states(plan: Plan, engine: Engine) -> BytesByPath:
    return (
        BytesByPath.of([((Component.OPTIMIZER_STATES, "grad_scaler"), scaler_bytes())])
        if uses_grad_scaler(plan, engine)
        else EMPTY
    )


def grad_unscale_rows(plan: Plan, engine: Engine) -> BytesByPath:
    return (
        BytesByPath.of([((Component.TEMPORARIES, "optimizer"), unscaling_bytes())])
        if uses_grad_scaler(plan, engine)
        else EMPTY
    )
