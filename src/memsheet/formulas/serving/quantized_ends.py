"""Output matrices beside quantized layers: of engines for which they are linear layers like any other, and of
files that hold them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from memsheet.formulas.states.held import Held
from memsheet.plan.dtypes import FP8, FP8_BLOCK, DType
from memsheet.plan.model import ModelSpec, Role
from memsheet.plan.plan import Plan
from memsheet.references import TRANSFORMERS, formula
from memsheet.sheet import NOTHING, Bytes

EIGHT_BITS = (FP8, FP8_BLOCK)


def linear_ends(held: Iterable[Held], plan: Plan, stored: DType | None = None) -> Iterator[Held]:
    """The tensors of a model, its output matrix stored as its linear layers are. ``stored``: the engine's own
    form of the plan's format.
    """
    how = plan.quantization
    for h in held:
        if how is None:
            yield h
            continue
        skipped = any(f".{name}." in f".{h.path}" for name in how.skip)
        quantized = h.dtype is how.weights or (h.role is Role.HEAD and len(h.shape) > 1 and not skipped)
        yield replace(h, dtype=stored or how.weights, role=Role.LINEAR) if quantized else h


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
