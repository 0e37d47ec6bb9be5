"""One operator of a block: its arithmetic, what it moves, whose kernel it is and how ranks share it.

Sizes are of the whole layer and of one row (a token; a copy of one where experts are meant), in elements,
without a plan: training multiplies them by a micro-batch and its backward, a server by its sequences and the
share of a tensor that a rank holds, and each multiplies by the bytes of its own dtypes. So they stand beside
the tapes and not on them. A tape is of an engine's training code with autograd's storages; the servers timed
here have none, and one decoded token reads a cache and eight-bit matrices that no training code has.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import prod
from types import MappingProxyType

from memsheet.arith import Count
from memsheet.frozen import dataclass
from memsheet.plan.model import FeedForward, Mixer, Norm, Weight
from memsheet.references import TRANSFORMER, formula

Module = Mixer | FeedForward | Norm
"""A part of a block that operators run for."""


class Kind(Enum):
    """Whose kernel an operator is."""

    PRODUCT = "product"
    ROUTER = "router"
    EXPERTS = "experts"  # a matrix of each routed expert
    SCORES = "scores"  # scores and values of attention, together
    SCAN = "scan"  # of recurrent states
    NORM = "norm"
    ROTATION = "rotation"
    STORE = "store"  # into a cache, where there is one
    GATE = "gate"  # activated and multiplied
    ACTIVATION = "activation"
    DISPATCH = "dispatch"  # copies of tokens put in the order of their experts and back
    RESIDUAL = "residual"

    __hash__ = object.__hash__


class Cut(Enum):
    """How tensor-parallel ranks share an operator."""

    NONE = "none"  # each has all rows; with sequence parallelism its share of them
    COLUMNS = "columns"  # all rows, a share of what is written
    ROWS = "rows"  # all rows, a share of what is read; results are summed
    INNER = "inner"  # all rows, a share of each
    EXPERTS = "experts"  # ranks share the experts

    __hash__ = object.__hash__


TRAFFIC: Mapping[Kind, tuple[int, int, int]] = MappingProxyType(
    {
        Kind.NORM: (1, 1, 1),
        Kind.ROTATION: (1, 1, 0),
        Kind.STORE: (1, 1, 0),
        Kind.GATE: (2, 1, 2),
        Kind.ACTIVATION: (1, 1, 1),
        Kind.DISPATCH: (3, 3, 0),  # into rows of experts, after the exchange once more, and back
        Kind.RESIDUAL: (2, 1, 0),
    }
)
"""Times that one kernel reads and writes each element it passes over, and reads it again in backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """``name``: of its matrix, or what it is. ``part``: the module it belongs to, as recompute names it.
    ``width``: elements of a row that a pass over memory goes through. ``flops``: of a row (of ``SCORES`` for
    each key it sees); ``reads``, ``writes``, ``saves``: elements of a row, beside the ``weights``, which are
    read whole. ``module``: of the model, that it runs for. ``joins``: what it is one product with where code
    keeps matrices of one input as one.
    """

    name: str
    kind: Kind
    part: str
    cut: Cut
    width: Count = 0
    flops: Count = 0
    reads: Count = 0
    writes: Count = 0
    saves: Count = 0
    weights: tuple[Weight, ...] = ()
    module: Module | None = None
    joins: str = ""


def memory_operator(
    kind: Kind, part: str, width: Count, cut: Cut = Cut.NONE, module: Module | None = None
) -> Operator:
    """A pass over memory."""
    reads, writes, saves = TRAFFIC[kind]
    return Operator(
        name=kind.value,
        kind=kind,
        part=part,
        cut=cut,
        width=width,
        reads=reads * width,
        writes=writes * width,
        saves=saves * width,
        module=module,
    )


@formula(cites=TRANSFORMER, at="2 m n k of a product: a row times a matrix of n by k takes 2 n k")
def product_operator(
    part: str, weights: tuple[Weight, ...], joins: str = "", module: Module | None = None
) -> Operator:
    """A product of one input with matrices, whose results lie side by side."""
    first = weights[0]
    inner, out = prod(first.shape[1:]), sum(weight.shape[0] for weight in weights)
    cut = Cut.NONE if first.cut is None else Cut.COLUMNS if first.cut == 0 else Cut.ROWS
    return Operator(
        name=first.path,
        kind=Kind.PRODUCT,
        part=part,
        cut=cut,
        flops=2 * inner * out,
        reads=inner,
        writes=out,
        saves=inner,
        weights=weights,
        module=module,
        joins=joins,
    )
