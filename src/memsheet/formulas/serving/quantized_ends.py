"""Output matrices beside quantized layers, of engines for which they are linear layers like any other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memsheet.formulas.states.held import HeldTensor
from memsheet.frozen import replace
from memsheet.plan.dtypes import DType
from memsheet.plan.model import Role
from memsheet.plan.plan import Plan


def linear_ends(held: Iterable[HeldTensor], plan: Plan, stored: DType | None = None) -> Iterator[HeldTensor]:
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
