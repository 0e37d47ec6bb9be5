"""Tables that a release holds twice, beside layers in eight bits."""

from __future__ import annotations

from memsheet.plan.dtypes import FP8, FP8_BLOCK
from memsheet.plan.model import ModelSpec, Role
from memsheet.plan.plan import Plan
from memsheet.references import TRANSFORMERS, formula
from memsheet.sheet import NOTHING, Bytes

EIGHT_BITS = (FP8, FP8_BLOCK)


@formula(
    cites=TRANSFORMERS,
    at=(
        "4.51.3 modeling_utils.py:4345, 4418 tie_weights: one matrix where the config of the file ties it, "
        "else two"
    ),
)
def untied_bytes(spec: ModelSpec, plan: Plan) -> Bytes:
    """A second copy of a tied table, at the high end: a release in eight bits comes with a config and a head
    of its own, and whether it ties them is not the model's to say.
    """
    if (
        plan.quantization is None
        or plan.quantization.weights not in EIGHT_BITS
        or not spec.head.tied
        or spec.head.kind == "none"
    ):
        return NOTHING
    tables = (
        w.elements for w in spec.embeddings.weights if w.role is Role.EMBEDDING and w.shape[0] >= spec.vocab
    )
    return Bytes(0, 0, plan.precision.parameters.nbytes(sum(tables)))
