"""Weights that are quantized while the server starts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from memsheet.arith import Count, maximum
from memsheet.formulas.states.held import HeldTensor
from memsheet.plan.dtypes import FP8
from memsheet.plan.hardware import version_of
from memsheet.plan.model import ModelSpec, Role
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes, Cited, Component, Instant, Item

STREAMED_SINCE = (0, 15)
"""From when on a layer's weights are made when they are read (pull request 31914, uses_meta_device)."""
AT_LOADING = Cited(
    PAGED_SERVER_CODE,
    (
        "v0.14.0 docs/features/quantization/fp8.md: loaded at the original precision before they are "
        "quantized to eight bits"
    ),
)


def quantizes_online(part: ModelSpec, plan: Plan) -> bool:
    """Whether a checkpoint in more bits is put into eight while the server starts."""
    return plan.quantization is not None and plan.quantization.weights is FP8 and part.quantization is None


def unquantized_items(part: ModelSpec, plan: Plan, held: Iterable[HeldTensor]) -> list[Item]:
    """What weights take beyond their eight bits until all are loaded, where a release quantizes them then."""
    if not quantizes_online(part, plan) or version_of(plan.engine_version) >= STREAMED_SINCE:
        return []
    size = unquantized_bytes(plan, held)
    return [Item(Component.TEMPORARIES, "unquantized", {Instant.LOAD: size}, AT_LOADING)]


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 model_executor/layers/quantization/fp8.py create_weights: the model's dtype unless the "
        "checkpoint is in fp8; process_weights_after_loading, a layer after another once all are loaded"
    ),
)
def unquantized_bytes(plan: Plan, held: Iterable[HeldTensor]) -> Bytes:
    """Bytes of the matrices in the model's dtype less those in eight bits, which the sheet has; at the most
    with one matrix in both.
    """
    matrices = [one for one in held if one.dtype is FP8 and one.role in (Role.LINEAR, Role.EXPERT)]
    whole = plan.precision.parameters
    more: Count = sum(one.times * (whole.nbytes(one.elements) - FP8.nbytes(one.elements)) for one in matrices)
    largest: Count = reduce(maximum, (FP8.nbytes(one.elements) for one in matrices), 0)
    return Bytes(more, more, more + largest)
