"""A linear layer over int8 rows, LLM.int8() (bitsandbytes 0.50.2.dev0 at 95f9af3):
autograd/_functions.py:101-242 MatMul8bitLt, the kernels of backends/cuda/ops.py:171-254 and
backends/default/ops.py:64-119.
"""

from __future__ import annotations

from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis
from memsheet.plan.defaults import OUTLIER_COLUMNS
from memsheet.plan.dtypes import BOOL, FP16, FP32, INT8, INT32

OUTLIERS = "outliers"


def int8_linear(
    r: Recorder, x: Tensor, weight: tuple[Axis, Axis], out: Axis, path: str, *, bias: Tensor | None = None
) -> Tensor:
    """The input in int8, but for columns with an outlier, which are multiplied as they are. The function
    keeps its input and those columns in attributes, not as saved tensors: a checkpoint does not drop them,
    and they stay until the graph goes (:186-188).
    """
    shape, dtype, back = (*x.shape[:-1], out), x.dtype, x.shape
    codes = _quantize_int8_rows(r, x, path)
    outliers = r.tensor(f"{path}/{OUTLIERS}", (*x.shape[:-1], OUTLIER_COLUMNS), dtype)
    product = _dequantize_int8_product(r, shape, x, path)
    result = r.tensor(f"{path}/output", shape, dtype)  # with the outliers' product: addmm, out of place
    del codes, product

    def backward(_: Grad) -> list[Grad | None]:
        matrix = r.grad(weight, dtype, f"{path}/dequantized")
        grad = r.grad(back, dtype)
        del matrix
        return [grad, None][: 2 if bias else 1]

    return r.apply(result, (x, bias) if bias else (x,), (), backward, held=(x, outliers))


def _quantize_int8_rows(r: Recorder, x: Tensor, path: str) -> tuple[Tensor, Tensor]:
    """The input's codes and a scale a row; the copy in fp16, its magnitudes and which of them are outliers go
    when that is done.
    """
    half = x if x.dtype is FP16 else r.tensor(f"{path}/half", x.shape, FP16)
    scales = r.tensor(f"{path}/scales", x.shape[:-1], FP32)
    codes = r.tensor(f"{path}/codes", x.shape, INT8)
    magnitudes = r.tensor(f"{path}/magnitudes", x.shape, FP16)
    marks = r.tensor(f"{path}/marks", x.shape, BOOL)
    del magnitudes, marks, half
    return codes, scales


def _dequantize_int8_product(r: Recorder, shape: tuple[Axis, ...], x: Tensor, path: str) -> Tensor:
    """The product in int32, scaled to fp16, then in the input's dtype."""
    product = r.tensor(f"{path}/product", shape, INT32)
    half = r.tensor(f"{path}/scaled", shape, FP16)
    result = half if x.dtype is FP16 else r.tensor(f"{path}/cast", shape, x.dtype)
    del product, half
    return result
