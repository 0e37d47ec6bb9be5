"""litgpt's output layer and loss over shape-only tensors (Lightning-AI/litgpt 0f021f3a,
lit_gpt/lora.py:528-530, utils.py:229-270).

Finetuning splits the last hidden states into chunks of 128 positions: the output layer and the cross-entropy
run chunk by chunk, but the logits of all chunks are a list that the training loop names. Training all weights
has one chunk. Axes: ``c`` tokens of a chunk; ``s0`` positions of the last one, ``s1`` of those before; the
bytes of ``gathered.py``.
"""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.engines.litgpt.layers.block import dequantized_weight
from memsheet.engines.litgpt.layers.gathered import AHEAD, STILL
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32, INT8, DType
from memsheet.plan.model import Head
from memsheet.plan.plan import Loss
from memsheet.references import LITGPT, formula

LM_HEAD_CHUNK = 128
"""Positions of a chunk (finetune/lora.py:201)."""
SCALED = "scale and bias on every linear layer"
"""The option of adapter_v2's model, whose output layer has them too."""
LOGITS: Shape = ("b", "s", "V")
CHUNK: Shape = ("c", "V")
WEIGHT: Shape = ("V", "h")


@formula(cites=LITGPT, at="finetune/lora.py:201-205: logits is a local variable of the loop")
def named_logits(axes: dict[str, Count]) -> Count:
    """Bytes of all logits in fp32, because Fabric's wrapper casts what a model returns to torch's default
    dtype (fabric/wrappers.py:121). The training loop names them until the next forward has returned.
    """
    return FP32.nbytes(axes["b"] * axes["s"] * axes["V"])


def lm_head_hidden_states(
    r: Recorder, x: Tensor, head: Head, how: RunConfig, loss: Loss, table: str
) -> Tensor:
    """What the output layer takes: the loss has it inside."""
    return x


def loss_input(how: RunConfig, loss: Loss) -> tuple[Shape, DType, str]:
    return ("b", "s", "h"), how.stream, "loss/input"


def chunked_loss(r: Recorder, x: Tensor, how: RunConfig, loss: Loss, table: str) -> Tensor:
    """Logits in the model's dtype, the log-softmax of those in fp32 (``named_logits``)."""
    weight = r.parameter("lm_head", WEIGHT, how.parameters, trains=how.trains)
    scale, bias = (
        r.parameter("lm_head", ("V",), how.parameters) if SCALED in how.options else None for _ in range(2)
    )
    low, shape, input_needed = x.dtype, x.shape, how.trains or how.quantized
    taken, inner = dequantized_weight(r, WEIGHT, low, "lm_head") if how.quantized else None, list[Tensor]()
    still = r.tensor(f"lm_head/{STILL}", (STILL,), INT8)
    logits = r.tensor("lm_head/output", LOGITS, low)
    del taken
    if scale is not None:
        inner = [r.tensor("lm_head/shifted", ("b", part, "V"), low) for part in ("s1", "s0")]
        del logits
        logits = r.tensor("lm_head/output", LOGITS, low)
    del logits, still
    kept = [
        r.tensor("loss/log_softmax", LOGITS, FP32),
        *([Tensor(x.storage, x.shape, low)] if input_needed else []),
    ]
    inputs = (x, *(t for t in (weight, scale, bias) if t is not None))

    def backward(_: Grad) -> list[Grad | None]:
        arrived = [_logits_gradient(r, kept, low)]
        return _through_head(r, arrived, inner, shape, how)

    return r.apply(r.tensor("loss/value", (1,), FP32), inputs, (), backward)


def _logits_gradient(r: Recorder, kept: list[Tensor], low: DType) -> Grad:
    """Of every chunk in turn, before the output layer's backward begins: each log-softmax goes as its
    gradient comes.
    """
    picked = r.grad(CHUNK, FP32, "loss/gradient")
    made = r.grad(CHUNK, FP32, "loss/gradient")
    del picked, made
    kept.pop(0)
    whole = r.grad(LOGITS, FP32, "loss/gradient")
    lowered = r.grad(CHUNK, low, "loss/gradient")
    del whole, lowered
    return r.grad(LOGITS, low, "loss/gradient")


def _through_head(
    r: Recorder, arrived: list[Grad], inner: list[Tensor], shape: Shape, how: RunConfig
) -> list[Grad | None]:
    """Gradients of the hidden states, chunk by chunk until they are joined, and of what trains in the output
    layer.
    """
    low, ahead = arrived[0].dtype, r.grad((AHEAD,), INT8, f"lm_head/{AHEAD}")
    own: list[Grad | None] = []
    if inner:
        scaled, pieces = r.grad(CHUNK, low, "lm_head/gradient"), r.grad(CHUNK, low, "lm_head/gradient")
        del scaled, pieces
        inner.pop()
        own = [r.grad(("V",), low), r.grad(("V",), low)]
    total = r.grad(WEIGHT, low, "lm_head/gradient") if how.trains else None  # logits are in one piece then
    taken = dequantized_weight(r, WEIGHT, low, "lm_head") if how.quantized else None
    piece = r.grad(("c", "h"), low, "loss/gradient")
    del taken, piece
    arrived.clear()
    inner.clear()
    pieces_of_all = r.grad(shape, low, "loss/gradient")
    joined = r.grad(shape, low, "loss/gradient")
    del pieces_of_all, ahead
    return [joined, total, *own]
