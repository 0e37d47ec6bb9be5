"""Megatron-Core's output layer and vocabulary-parallel loss (Megatron-LM 23e00ed, tensor_parallel/layers.py,
cross_entropy.py).
"""

from __future__ import annotations

from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.model import Head
from memsheet.plan.plan import Loss

LOGITS: Shape = ("b", "s", "V")
WHOLE: Shape = ("b", "s", "h")


def vocab_parallel_logits(r: Recorder, x: Tensor, head: Head, how: RunConfig, *_: object) -> Tensor:
    """A rank's part of the vocabulary for all positions. Rows of a sequence are gathered into a buffer that
    stays (get_global_memory_buffer, "mpu"), which is counted with the states; their gradient is scattered
    (layers.py:430-640).
    """
    shape, dtype = x.shape, x.dtype

    def backward(_grad: Grad) -> list[Grad | None]:
        whole = r.grad(WHOLE if how.scattered else shape, dtype)
        own = r.grad(shape, dtype) if how.scattered else whole
        del whole
        return [own]

    out = r.apply(r.tensor("lm_head/output", LOGITS, dtype), (x,), (x,), backward)
    return r.scale(out, "lm_head/scaled") if head.scaled else out


def loss_input(how: RunConfig, _: Loss) -> tuple[Shape, DType, str]:
    """Shape, dtype and name of what the loss takes."""
    return LOGITS, how.parameters, "lm_head/output"


def vocabulary_loss(r: Recorder, x: Tensor, _: RunConfig, loss: Loss, __: str) -> Tensor:
    """Fused: TransformerEngine's kernel writes the gradient over the logits themselves
    (pytorch/triton/cross_entropy.py of c188b533:80-150). Else in fp32 over the ranks' parts, the softmax kept
    and made a gradient in place (cross_entropy.py:20-140).
    """
    value = r.tensor("loss/value", ("b", "s"), FP32)
    if loss is Loss.FUSED:
        statistics = r.tensor("loss/statistics", ("b", "s", 3), FP32)
        del statistics
        own = Grad(x.storage, LOGITS, x.dtype)
        return r.apply(value, (x,), (x,), lambda _grad: [own])
    wide = r.tensor("loss/softmax", LOGITS, FP32)
    own = Grad(wide.storage, LOGITS, FP32)
    return r.apply(value, (x,), (wide,), lambda _grad: [own])
