"""Adapters whose factors are multiplied into a matrix as large as the frozen layer's before what enters is
(peft 0.21.2 tuners/loha/layer.py, tuners/lokr/layer.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.plan.dtypes import DType
from memsheet.plan.plan import AdapterKind

if TYPE_CHECKING:
    from memsheet.formulas.tapes.recorder import Recorder
    from memsheet.formulas.tapes.tape import Axis, Shape


HADAMARD = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")


def near_factors(size: int) -> tuple[int, int]:
    """Two factors of a size as near to one another as it has them, the smaller first (tuners/lokr/layer.py
    factorization, decompose_factor -1).
    """
    small = next(one for one in range(int(size**0.5), 0, -1) if size % one == 0)
    return small, size // small


def whole_factors(
    kind: AdapterKind, out: int, width: int, rank: int
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and shapes of what trains beside a matrix of ``out`` times ``width``."""
    if kind is AdapterKind.LOHA:
        yield from zip(HADAMARD, ((out, rank), (rank, width)) * 2, strict=True)
        return
    (above, inside), (left, right) = near_factors(out), near_factors(width)
    yield "lokr_w1", (above, left)
    if rank < max(inside, right) / 2:
        yield "lokr_w2_a", (inside, rank)
        yield "lokr_w2_b", (rank, right)
    else:
        yield "lokr_w2", (inside, right)


def whole_product(
    r: Recorder, x: Tensor, kind: AdapterKind, name: str, factors: tuple[tuple[str, tuple[int, int]], ...],
    shape: tuple[Axis, Axis], dtype: DType,
) -> Tensor:  # fmt: skip
    """``x`` times the matrix that the factors make, which is kept for the gradient of what enters."""
    matrices = [r.parameter(f"{name}.{one}", size, dtype) for one, size in factors]
    made = (_hadamard_product if kind is AdapterKind.LOHA else _kronecker_product)(r, name, matrices, shape)
    x = r.cast(x, made.dtype, f"{name}/whole_input")
    return r.linear(x, made, shape[0], f"{name}/whole")


def _hadamard_product(r: Recorder, name: str, matrices: list[Tensor], shape: Shape) -> Tensor:
    """``(A1 B1) * (A2 B2) * scaling`` in one function, which saves the factors and makes both products anew
    for their gradients.
    """
    low = [r.autocast(one, f"{name}.{at}") for one, at in zip(matrices, HADAMARD, strict=True)]
    kept = low[0].dtype
    first, second = (r.tensor(f"{name}/whole_factor", shape, kept) for _ in range(2))
    product = r.tensor(f"{name}/whole_product", shape, kept)
    del first, second, low
    result = r.tensor(f"{name}/whole_weight", shape, kept)
    del product
    metas = [(one.shape, one.dtype) for one in matrices]
    wide = matrices[0].dtype

    def gradients_of_factors(_: Grad) -> list[Grad | None]:
        scaled, made = r.grad(shape, wide), list[Grad | None]()
        for pair in (metas[:2], metas[2:]):
            other = r.grad(shape, wide)
            both = r.grad(shape, wide)
            del other
            made += [r.grad(*one) for one in pair]
        del scaled, both
        return made

    return r.apply(result, tuple(matrices), tuple(matrices), gradients_of_factors)


def _kronecker_product(r: Recorder, name: str, matrices: list[Tensor], shape: Shape) -> Tensor:
    """``scaling * kron(w1, w2)``, of which w2 may be a product of two: a broadcast product, whose gradients
    are as large as the matrix before they are summed.
    """
    first, *rest = matrices
    if len(rest) > 1:
        left, right = rest
        second = r.product(left, right, (left.shape[0], right.shape[1]), f"{name}/whole_factor")
    else:
        second = rest[0]
    dtype = first.dtype
    product = r.tensor(f"{name}/whole_product", shape, dtype)

    def gradients_of_both(_: Grad) -> list[Grad | None]:
        return [r.grad(shape, dtype), r.grad(shape, dtype)]

    product = r.apply(product, (first, second), (first, second), gradients_of_both)
    return r.scale(product, f"{name}/whole_weight")
