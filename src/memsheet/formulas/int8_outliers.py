"""How many columns LLM.int8() keeps unquantized, which is known when a run's data is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memsheet.arith import Count
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.int8 import OUTLIERS
from memsheet.formulas.sharding.resident_state import ResidentState
from memsheet.formulas.states.held import HeldTensor, held_tensors, module_of
from memsheet.formulas.tapes.bytes_by_path import Key
from memsheet.frozen import replace
from memsheet.plan.defaults import OUTLIER_COLUMNS
from memsheet.plan.dtypes import INT8
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan, RecomputeMode
from memsheet.references import LLM_INT8, formula
from memsheet.sheet import Component

NOTE = (
    "LLM.int8() keeps columns of a layer's input that have an outlier (6.0 and above) beside it; how "
    f"many is up to the data: {OUTLIER_COLUMNS} a "
    "layer are expected (arXiv:2208.07339), none to all of them is the range"
)

# hiyouga/LLaMA-Factory ff6d4d1 src/llamafactory/hparams/model_args.py:149-152 (use_reentrant_gc), which FSDP2
# and KTransformers switch off
# (model/model_utils/checkpointing.py:43-60, 177-182)
REENTRANT = (
    "its layers hold their input in attributes, which a checkpoint does not drop unless it is reentrant "
    "(LLaMA-Factory's default but with FSDP2, and transformers' "
    "before version 5): the low end"
)


def with_outliers(
    kept: ResidentState, walks: Iterable[StageLayers], model: ModelSpec, plan: Plan
) -> ResidentState:
    """The columns with an outlier are known when a run's data is: from none to all of each layer's input.
    What layers hold past a checkpoint is dropped where its kind runs forward without a graph.
    """
    columns = {
        (Component.SAVED_ACTIVATIONS, f"{module_of(h.path)}/{OUTLIERS}"): (0, input_bytes(h, plan))
        for h in _int8_tensors(model, plan)
    }
    if not columns:
        return kept
    full = plan.recompute.mode is RecomputeMode.FULL
    past: dict[Key, tuple[Count, Count]] = dict.fromkeys(_held_past(walks), (0, 0)) if full else {}
    return replace(
        kept,
        ranges={**kept.ranges, **past, **columns},
        notes=(*kept.notes, NOTE, *([REENTRANT] if full else [])),
    )


def _held_past(walks: Iterable[StageLayers]) -> Iterator[Key]:
    groups = (group for walk in walks for layers in walk.layers for group in layers.pattern)
    yield from (key for group in groups for key in group.part.lingers.held)


def _int8_tensors(model: ModelSpec, plan: Plan) -> Iterator[HeldTensor]:
    if plan.quantization is not None and plan.quantization.weights is INT8:
        yield from (h for h in held_tensors(model, plan) if h.dtype is INT8)


@formula(
    cites=LLM_INT8,
    at=(
        "section 3.2: outliers are all values of a column in which one is 6 or more; bitsandbytes keeps "
        "them for backward"
    ),
)
def input_bytes(held: HeldTensor, plan: Plan) -> Count:
    """Bytes of the whole input of all layers with such a matrix."""
    wider = max(
        plan.precision.compute, plan.precision.parameters, key=lambda dtype: dtype.bits
    )  # norms in autocast hand on the latter
    return held.times * wider.nbytes(plan.training.microbatch * plan.training.seq_len * held.shape[-1])
