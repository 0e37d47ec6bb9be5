"""torchtune's head and losses: logits of eight pieces of the sequence, each raised to fp32 by itself, or of
all of it at once.

torchtune 0.4, modules/transformer.py:400-420 (chunked_output), modules/loss/ce_chunked_output_loss.py,
recipes/full_finetune_single_device.py (_loss_step). Axes besides those of ``ends.py``: ``c`` positions of one
piece, and the bytes of ``gathered.py``.
"""

from __future__ import annotations

from memsheet.engines.torchtune.layers.gathered import AGAIN, AHEAD, STILL
from memsheet.engines.torchtune.layers.layers import COMPILED
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.formulas.tapes.graph import Grad, GradientSum, Storage, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32, INT8, DType
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Loss, Plan
from memsheet.plan.workload import PassShape
from memsheet.sheet import Component

PIECES = 8
PIECE: Shape = ("b", "c", "V")
NEXT: Shape = ("b", "V", "s-1")
"""Logits of every position that has a next one."""
SHIFTED = "shifted logits"


def hidden_states_for_loss(_: Recorder, x: Tensor, *__: object) -> Tensor:
    """Hidden states: their logits belong to the loss, which is over before anything of them is let go."""
    return x


def loss_input(how: RunConfig, _: Loss) -> tuple[Shape, DType, str]:
    return ("b", "s", "h"), how.stream, "loss/input"


OWN_TABLE = "lm_head"
"""The parameter of a head that shares none."""


def lm_head_cross_entropy(r: Recorder, x: Tensor, how: RunConfig, loss: Loss, table: str) -> Tensor:
    """From hidden states to the loss. TiedLinear (modules/tied_linear.py:48-60) multiplies by the embeddings'
    own parameter, so that its gradient waits for that of the look-ups: the one of all logits is a transposed
    view.
    """
    waits = table != OWN_TABLE and loss is Loss.PLAIN
    joined = GradientSum.WAITS if waits else GradientSum.NO
    weight = r.parameter(table, ("V", "h"), how.parameters, trains=how.trains, joined=joined)
    if SHIFTED in how.options:
        return _shifted_logits_loss(r, x, weight)
    return (
        _chunked_logits_loss(r, x, weight, how) if loss is Loss.CHUNKED else _full_logits_loss(r, x, weight)
    )


def _shifted_logits_loss(r: Recorder, x: Tensor, weight: Tensor) -> Tensor:
    """Before 0.3 the recipe copies all logits but the last position's, and hands the loss that copy with the
    vocabulary in front, which log_softmax copies again (0.1.1, recipes/lora_finetune_single_device.py, train;
    aten SoftMax.cu, host_softmax). The first copy is the loop's own (``named_logits_bytes``).
    """
    logits = r.cast(r.linear(x, weight, "V", "lm_head"), FP32, "loss/fp32")
    whole = logits.shape
    shifted = r.apply(
        Tensor(None, NEXT, FP32),
        (logits,),
        (),
        lambda _: [r.grad(whole, FP32)],
    )
    del logits
    ordered = r.tensor("loss/ordered", NEXT, FP32)
    logged = r.unary(shifted, "loss/log_softmax", saves="output")
    del ordered, shifted
    return r.apply(r.tensor("loss/value", (1,), FP32), (logged,), (logged,), lambda _: [r.grad(NEXT, FP32)])


def named_logits_bytes(spec: ModelSpec, _: Plan, shape: PassShape, how: RunConfig) -> BytesByPath:
    """The shifted copy, which the loop names until the next forward has returned."""
    if SHIFTED not in how.options:
        return BytesByPath.of(())
    size = FP32.nbytes(shape.sequences * (shape.tokens - 1) * spec.vocab)
    return BytesByPath.of([((Component.SAVED_ACTIVATIONS, "loss/shifted"), size)])


def _full_logits_loss(r: Recorder, x: Tensor, weight: Tensor) -> Tensor:
    """Logits raised to fp32 in the model's forward, and the library's loss over all of them."""
    still = r.tensor(f"lm_head/{STILL}", (STILL,), INT8)
    logits = r.cast(r.linear(x, weight, "V", "lm_head"), FP32, "loss/fp32")
    del still
    logged = r.unary(logits, "loss/log_softmax", saves="output")
    shape = logits.shape
    del logits
    return r.apply(r.tensor("loss/value", (1,), FP32), (logged,), (logged,), lambda _: [r.grad(shape, FP32)])


def _chunked_logits_loss(r: Recorder, x: Tensor, weight: Tensor, how: RunConfig) -> Tensor:
    """All pieces' logits, then the loss of each; backward goes through all losses before it comes to the
    first product.

    A piece of several sequences is no view of one matrix: the product copies it, and saves the copy for the
    weight's gradient.
    """
    dtype, compiled, trains = x.dtype, COMPILED in how.options, weight.needs_grad
    copies, logits = list[Storage | None](), list[Storage | None]()
    still = r.tensor(f"lm_head/{STILL}", (STILL,), INT8)
    for _ in range(PIECES):
        whole = _gathered_head(r)
        rows = r.tensor("lm_head/rows", ("b", "c", "h"), dtype) if how.several else None
        logits.append(r.tensor("lm_head/output", PIECE, dtype).storage)
        if trains and rows is not None:
            copies.append(rows.storage)
        del rows, whole
    x_shape, saved = x.shape, (Tensor(x.storage, x.shape, dtype),) if trains and not how.several else ()
    x.storage = None  # the model's forward has returned
    del still
    kept = logits if compiled else _log_softmaxes(r)
    if not compiled:
        logits.clear()

    def backward(_: Grad) -> list[Grad | None]:
        steps = [_loss_back(r, kept, dtype, compiled=compiled) for _ in range(PIECES)]
        return _products_back(r, steps, copies, (x_shape, dtype), trains=trains)

    return r.apply(r.tensor("loss/value", (1,), FP32), (x, weight), saved, backward)


def _gathered_head(r: Recorder) -> Grad:
    """A head of its own as a piece finds it, after its buffer was there beside the one before."""
    buffer = r.grad((AGAIN,), INT8, f"lm_head/{AGAIN}")
    whole = r.grad((AGAIN,), INT8, f"lm_head/{AGAIN}")
    del buffer
    return whole


def _log_softmaxes(r: Recorder) -> list[Storage | None]:
    """Each piece raised to fp32, which goes when the logarithm of its softmax is there; that is saved."""
    kept = list[Storage | None]()
    for _ in range(PIECES):
        wide = r.tensor("loss/fp32", PIECE, FP32)
        kept.append(r.tensor("loss/log_softmax", PIECE, FP32).storage)
        del wide
    return kept


def _loss_back(r: Recorder, kept: list[Storage | None], dtype: DType, *, compiled: bool) -> Grad:
    """The gradient of a piece's logits: one kernel, or that of the picked logarithms, of the softmax, and its
    cast.
    """
    if compiled:
        grad = r.grad(PIECE, dtype, "loss/chunk_gradient")
        kept.pop()
        return grad
    picked = r.grad(PIECE, FP32, "loss/chunk_gradient")
    wide = r.grad(PIECE, FP32, "loss/chunk_gradient")
    del picked
    kept.pop()
    return r.grad(PIECE, dtype, "loss/chunk_gradient") if wide is not None else wide


def _products_back(
    r: Recorder, steps: list[Grad], copies: list[Storage | None], given: tuple[Shape, DType], *, trains: bool
) -> list[Grad | None]:
    """Gradients of the head's weight and of each piece, which are joined. The weight's first gradient is a
    transposed view, to which the engine adds nothing in place: the second makes a third (torch 2.5.1 and
    2.13, input_buffer.cpp, can_accumulate_inplace).
    """
    (shape, dtype), total, pieces = given, None, list[Grad]()
    steps.reverse()
    ahead = r.grad((AHEAD,), INT8, f"lm_head/{AHEAD}")
    while steps:
        head = _gathered_head(r)
        product = r.grad(("V", "h"), dtype, "lm_head/grad_weight") if trains else None
        pieces.append(r.grad(("b", "c", "h"), dtype, "lm_head/grad_rows"))
        steps.pop()
        if copies:
            copies.pop()
        summed = (
            r.grad(("V", "h"), dtype, "lm_head/grad_weight")
            if total is not None and len(pieces) == 2
            else None
        )
        total = summed or total or product
        del product, summed, head
    whole = r.grad(shape, dtype, "loss/cat")
    pieces.clear()
    del ahead
    return [whole, total]
