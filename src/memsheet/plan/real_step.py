"""How a plan's real step is run (``run``), as far as what may be asked of it depends on that."""

from __future__ import annotations

from memsheet.plan.dtypes import FP16
from memsheet.plan.engine import Runner
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import Plan, RecomputeMode


def scales_loss(plan: Plan) -> bool:
    """Whether its loss is made larger, so that small gradients are no zeros: fp16 under autocast."""
    return engine_of(plan).autocast and plan.precision.casts and plan.precision.compute is FP16


def offloads_inputs_alone(plan: Plan) -> bool:
    """Whether of a layer nothing can wait on the host but what it was handed: no gathered parameter is
    saved.
    """
    full = plan.recompute.mode is RecomputeMode.FULL
    return engine_of(plan).runner is Runner.SHARDED_UNITS and full and bool(plan.mesh.pp == 1)


def asks_embeddings(plan: Plan) -> bool:
    """Whether what frozen embeddings return is asked for a gradient, which checkpoints of whole layers begin
    with: where adapters train and the library's own switch is on. Modules that are wrapped one by one leave
    it off (peft 0.21.2 peft_model.py:184, is_gradient_checkpointing; transformers 5.23
    modeling_utils.py:3189).
    """
    return plan.adapter is not None and plan.recompute.mode is RecomputeMode.FULL
