"""TransformerEngine's modules as Megatron uses them (c188b533, transformer_engine/pytorch/module): what each
saves and allocates.

Products add weights' gradients to Megatron's buffer; what autograd is given in their place is one tensor a
shape, kept for good (module/base.py:79-92, get_dummy_wgrad), which is counted with the states.
"""

from __future__ import annotations

from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.plan.dtypes import FP8, FP32

FP8_PRODUCTS = "fp8"
"""An option of how a plan runs: products of layers in eight bits. What is saved for a weight's gradient is
the cast operand; the gradient that arrives is cast too, along rows and along columns (module/base.py,
grad_output_preprocess).
"""
STREAM: Shape = ("b", "n", "h")
"""The residual stream of a rank."""


def rms_norm_output(r: Recorder, x: Tensor, path: str) -> Tensor:
    """A norm of its own: saves its input and one fp32 statistic a row (module/_common.py,
    ops/basic/rmsnorm.py).
    """
    shape, dtype = x.shape, x.dtype
    out = r.tensor(path, shape, dtype)
    rows = r.tensor(f"{path}/rsigma", shape[:-1], FP32)
    return r.apply(out, (x,), (x, rows), lambda _: [r.grad(shape, dtype)])


def normed_column(r: Recorder, x: Tensor, out: Axis, path: str, how: RunConfig) -> Tensor:
    """LayerNormLinear (module/layernorm_linear.py:230-520, 640-900): saves its input and the normed rows of
    this rank, which are gathered over the ranks of a sequence for the product and again in backward.
    """
    shape, dtype = x.shape, x.dtype
    whole = gathered_shape(shape, how)
    low = FP8 if FP8_PRODUCTS in how.options else dtype
    normed = r.tensor(f"{path}/normed", shape, low)
    rows = r.tensor(f"{path}/rsigma", shape[:-1], FP32)
    total = r.tensor(f"{path}/gathered", whole, low) if how.scattered else None
    result = r.tensor(f"{path}/output", (*whole[:-1], out), dtype)
    del total

    def backward(g: Grad) -> list[Grad | None]:
        casts = _fp8_gradient_casts(r, g, how)
        again = r.grad(whole, low, f"{path}/gathered") if how.scattered else None
        product = r.grad(whole, dtype)
        own = r.grad(shape, dtype) if how.scattered else product
        back = r.grad(shape, dtype)
        del again, product, own, casts
        return [back]

    kept = (x, normed, rows) if how.trains or has_lora_adapter(path, how) else (x, rows)
    return _with_adapter(r, r.apply(result, (x,), kept, backward), normed, path, how)


def column_parallel_linear(
    r: Recorder, x: Tensor, out: Axis, path: str, how: RunConfig, *, parallel: bool = True
) -> Tensor:
    """Linear over columns (module/linear.py:75-420): saves its input as this rank has it. ``parallel``: cut
    over ranks, not duplicated.
    """
    shape, dtype, gathers = x.shape, x.dtype, parallel and how.scattered
    whole = gathered_shape(shape, how) if gathers else shape
    kept = saved_gemm_operand(r, x, path, how)
    total = r.tensor(f"{path}/gathered", whole, kept.dtype) if gathers else None
    result = r.tensor(f"{path}/output", (*whole[:-1], out), dtype)
    del total

    def backward(g: Grad) -> list[Grad | None]:
        casts = _fp8_gradient_casts(r, g, how)
        again = r.grad(whole, dtype, f"{path}/gathered") if gathers else None
        product = r.grad(whole, dtype)
        own = r.grad(shape, dtype) if gathers else product
        del again, product, casts
        return [own]

    saved = (kept,) if how.trains or has_lora_adapter(path, how) else ()
    return _with_adapter(r, r.apply(result, (x,), saved, backward), x, path, how)


ADAPTED = {
    "q_proj": "linear_qkv", "k_proj": "linear_qkv", "v_proj": "linear_qkv", "qkv_proj": "linear_qkv", "o_proj": "linear_proj",
    "gate_proj": "linear_fc1", "up_proj": "linear_fc1", "down_proj": "linear_fc2",
}  # fmt: skip
"""Which fused module a LoRA target of a model's own names belongs to (Megatron-Bridge 600d069 peft/lora.py,
canonical and fused targets).
"""


def has_lora_adapter(path: str, how: RunConfig) -> bool:
    """Whether a module carries LoRA matrices."""
    name = path.rpartition(".")[2]
    return any(ADAPTED.get(target, target) == name for target in how.adapter_targets)


def _with_adapter(r: Recorder, base: Tensor, x: Tensor, path: str, how: RunConfig) -> Tensor:
    """The module's result and its adapter's, added into a third tensor (Megatron-Bridge
    peft/lora_layers.py:65-88). ``x``: what both read.
    """
    if not has_lora_adapter(path, how):
        return base
    shape, dtype = base.shape, base.dtype
    low_shape = (*shape[:-1], "r")
    low = r.tensor(f"{path}.adapter/low", low_shape, dtype)
    up = r.tensor(f"{path}.adapter/output", shape, dtype)

    def backward(g: Grad) -> list[Grad | None]:
        narrow = r.grad(low_shape, dtype)
        del narrow
        return [Grad(g.storage, shape, dtype)]

    total = r.apply(r.tensor(f"{path}/output", shape, dtype), (base,), (low, x), backward)
    del up
    return total


def saved_gemm_operand(r: Recorder, x: Tensor, path: str, how: RunConfig) -> Tensor:
    """What a product saves of its operand: the operand, or its cast."""
    return r.tensor(f"{path}/cast", x.shape, FP8) if FP8_PRODUCTS in how.options else x


def _fp8_gradient_casts(r: Recorder, g: Grad, how: RunConfig) -> list[Grad]:
    return [r.grad(g.shape, FP8), r.grad(g.shape, FP8)] if FP8_PRODUCTS in how.options else []


def row_parallel_linear(r: Recorder, x: Tensor, path: str, how: RunConfig, *, out: Axis = "h") -> Tensor:
    """Linear over rows: its partial sums are scattered over the sequence, or summed in place; backward
    gathers the gradient.
    """
    shape, dtype = x.shape, x.dtype
    whole = (*shape[:-1], out) if len(shape) == 3 else ("b", "s", out)
    partial = r.tensor(f"{path}/partial" if how.scattered else f"{path}/output", whole, dtype)
    stream = (*STREAM[:-1], out)
    result = r.tensor(f"{path}/output", stream, dtype) if how.scattered else r.view(partial, stream)
    del partial
    kept = saved_gemm_operand(r, x, path, how)

    def backward(g: Grad) -> list[Grad | None]:
        casts = _fp8_gradient_casts(r, g, how)
        total = r.grad(whole, dtype, f"{path}/gathered") if how.scattered else None
        back = r.grad(shape, dtype)
        del total, casts
        return [back]

    saved = (kept,) if how.trains or has_lora_adapter(path, how) else ()
    return _with_adapter(r, r.apply(result, (x,), saved, backward), x, path, how)


def gathered_shape(shape: Shape, how: RunConfig) -> Shape:
    """A rank's rows of a sequence, all ranks' together."""
    return tuple("s" if axis == "n" else axis for axis in shape) if how.scattered else shape


def swiglu(r: Recorder, x: Tensor, shape: Shape, path: str) -> Tensor:
    """Saves the two halves it is given and makes one gradient for both (Megatron-LM
    fusions/fused_bias_swiglu.py:60-130).
    """
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, shape, dtype), (x,), (x,), lambda _: [r.grad(back, dtype)])


def rearranged_copy(r: Recorder, x: Tensor, shape: Shape, path: str) -> Tensor:
    """A new tensor from ``x`` of which nothing is saved, and the same way back: a permutation, an exchange
    between ranks, a turn by angles.
    """
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, shape, dtype), (x,), (), lambda _: [r.grad(back, dtype)])
