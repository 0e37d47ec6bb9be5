"""A linear layer over packed integers, which are unpacked by plain operations for its product (AutoGPTQ 0.5
qlinear_cuda_old.py:215-265).
"""

from __future__ import annotations

from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis
from memsheet.plan.dtypes import INT8, INT32


def unpacked_linear(
    r: Recorder, x: Tensor, weight: tuple[Axis, Axis], out: Axis, path: str, *, bias: Tensor | None = None
) -> Tensor:
    """Codes shifted out of 32-bit words, less their zeros, times their scales; the product saves the weight
    that comes of it. A bias is a buffer, added afterwards.
    """
    shifted = r.tensor(f"{path}/words", weight, INT32)
    codes = r.tensor(f"{path}/codes", weight, INT8)
    del shifted
    centred = r.tensor(f"{path}/centred", weight, INT8)
    matrix = r.tensor(f"{path}/unpacked", weight, x.dtype)
    del codes, centred
    result = r.linear(x, matrix, out, path)
    del matrix
    return r.scale(result, f"{path}/biased") if bias is not None else result


def add_in_place(r: Recorder, base: Tensor, branch: Tensor) -> Tensor:
    """``base += branch``: the gradient of both is the one that arrives."""
    needs = (base.needs_grad, branch.needs_grad)

    def backward(g: Grad) -> list[Grad | None]:
        return [Grad(g.storage, g.shape, g.dtype) if need else None for need in needs]

    return r.apply(Tensor(base.storage, base.shape, base.dtype), (base, branch), (), backward)
