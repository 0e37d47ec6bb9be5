"""What is on a card besides its layers where one process has several: copies of what the model hands its
layers, and what its forward returns to the card where it began. Of a final norm whose head is elsewhere the
parameters alone are counted: what it keeps has gone when the first layer runs backward, which holds more.
"""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.formulas.sharding.resident_state import ResidentState
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32
from memsheet.plan.engine import Engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Loss, Plan, Schedule
from memsheet.references import ACCELERATE, formula
from memsheet.sheet import Component

TABLES = (Component.SAVED_ACTIVATIONS, "model.rotary_emb")
RETURNED = (Component.TEMPORARIES, "model/returned")


def copied_tables(tables: BytesByPath, plan: Plan, stage: Count, layers: Count) -> BytesByPath:
    """Tables that all layers share, as a card has them. The module that makes them follows the layers, so
    that it is where the last of these is; every layer on another card has a copy.
    """
    if plan.schedule is not Schedule.NAIVE or has_tables(plan, stage):
        return tables
    return BytesByPath.of((key, size * (layers if key == TABLES else 1)) for key, size in tables.held.items())


def has_tables(plan: Plan, stage: Count) -> bool:
    """Whether a card has the last layer, and with it the module that makes tables."""
    return not any((plan.layers_per_stage or ())[int(stage) + 1 :])


@formula(
    cites=ACCELERATE,
    at=(
        "hooks.py, AlignDevicesHook.post_forward of the root (io_same_device): what the model returns is "
        "moved to where its inputs are"
    ),
)
def returned_logits(model: ModelSpec, plan: Plan, stage: Count) -> BytesByPath:
    """Logits that came back from another card, until the loss alone is named."""
    start, end = plan.end_stages or (0, plan.mesh.pp - 1)
    elsewhere = plan.schedule is Schedule.NAIVE and stage == start != end
    if not elsewhere or plan.loss is not Loss.PLAIN or model.head.kind == "none":
        return EMPTY
    shape = plan.training.shape
    size = plan.precision.compute.nbytes(shape.sequences * shape.tokens * model.head.width)
    return BytesByPath.of([(RETURNED, size)])


def with_raised_logits(
    kept: ResidentState, model: ModelSpec, plan: Plan, stage: Count, engine: Engine
) -> ResidentState:
    """With the range of what came back: a trainer that casts operations raises it to fp32 there, beside what
    it is made of (accelerate 1.15.0 accelerator.py, prepare_model: convert_outputs_to_fp32).
    """
    back = returned_logits(model, plan, stage)
    if back is EMPTY or not (engine.autocast and plan.precision.casts):
        return kept
    size = back.total
    raised = size + FP32.nbytes(size // plan.precision.compute.nbytes(1))
    return replace(kept, ranges={**kept.ranges, RETURNED: (size, raised)})
