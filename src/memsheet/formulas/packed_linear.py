"""Linear layers over packed integers as gptqmodel trains beside them (ModelCloud/GPTQModel f4c327a1,
gptqmodel/nn_modules/qlinear), which peft 0.21.2 puts its adapters on (tuners/lora/gptq.py, awq.py).
"""

from __future__ import annotations

from memsheet.arith import Count, at_least, where
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis
from memsheet.plan.dtypes import FP32, INT8, INT32
from memsheet.references import GPTQMODEL, formula


def unpacked_linear(
    r: Recorder, x: Tensor, weight: tuple[Axis, Axis], out: Axis, path: str, *, bias: Tensor | None = None
) -> Tensor:
    """GPTQ: codes shifted out of 32-bit words, less their zeros, times their scales, both looked up for every
    row; the product saves the weight that comes of it. Triton's kernel is for evaluation alone: in training
    it is the same plain operations (tritonv2.py forward; torch.py _forward_eager; __init__.py:947-1003). A
    bias is a buffer, added in place.
    """
    shifted = r.tensor(f"{path}/words", weight, INT32)
    narrow = r.tensor(f"{path}/narrow", weight, INT8)
    del shifted
    codes = r.tensor(f"{path}/codes", weight, INT8)
    del narrow
    scales = r.tensor(f"{path}/scales", weight, x.dtype)
    zeros = r.tensor(f"{path}/zeros", weight, INT8)
    centred = r.tensor(f"{path}/centred", weight, INT8)
    del zeros
    matrix = r.tensor(f"{path}/unpacked", weight, x.dtype)
    del scales, codes, centred
    result = r.linear(x, matrix, out, path)
    del matrix, bias
    return result


WHOLE_ABOVE, PARTS = 1024, 8
"""Tokens of all sequences above which AWQ's kernel makes way for a plain product, and the partial sums of the
kernel (gemm_awq.py:47-62).
"""


@formula(cites=GPTQMODEL, at="gemm_awq.py AwqGemmFn: FULL_DEQUANT_MATMUL_THRESHOLD, split_k_iters")
def awq_axes(tokens: Count) -> dict[str, Count]:
    """Whether the weight is dequantized whole for the product of so many tokens, else its partial sums."""
    whole = at_least(tokens, WHOLE_ABOVE + 1)
    return {"awq-whole": where(whole, 1, 0), "awq-parts": where(whole, 0, PARTS)}


def gemm_linear(
    r: Recorder, x: Tensor, weight: tuple[Axis, Axis], out: Axis, path: str, *, bias: Tensor | None = None
) -> Tensor:
    """AWQ: the function saves its input, though no gradient needs it, and dequantizes the weight once more in
    backward, where it is repeated for every sequence (gemm_awq.py AwqGemmFn; gemm_awq_triton.py alike). The
    kernel adds up fp32 parts (gptqmodel_ext/awq/quantization/gemm_cuda_gen.cu:1420).
    """
    low = r.cast(x, r.compute or x.dtype, f"{path}/input")
    shape, dtype, back = (*x.shape[:-1], out), low.dtype, x.shape
    whole = r.tensor(f"{path}/dequantized", ("awq-whole", *weight), dtype)
    parts = r.tensor(f"{path}/parts", ("awq-parts", *shape), FP32)
    result = r.tensor(f"{path}/output", shape, dtype)
    del whole, parts
    if bias is not None:
        biased = r.tensor(f"{path}/biased", shape, dtype)
        result = biased

    def backward(_: Grad) -> list[Grad | None]:
        matrix = r.grad(weight, dtype, f"{path}/dequantized")
        repeated = r.grad(("b", *weight), dtype, f"{path}/dequantized")
        grad = r.grad(back, dtype)
        del matrix, repeated
        return [grad]

    return r.cast(r.apply(result, (low,), (low,), backward, terms=back[-1]), x.dtype, f"{path}/output")
