"""Losses that take hidden states and never have the logits of all tokens at once.

Axes besides those of ``ends.py``: ``c`` tokens of one chunk.
"""

from __future__ import annotations

from memsheet.arith import Count, ceil_div, minimum, power_of_two_at_least
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.plan import Loss
from memsheet.references import LIGER, TORCHTUNE, formula

CHUNKS = 8
"""Of the chunked loss (TORCHTUNE)."""


@formula(
    cites=LIGER,
    at=(
        "fused_linear_cross_entropy.py:113-115: the next power of two of tokens over ceil(V / h), no more "
        "than there are"
    ),
)
def liger_chunk(tokens: Count, hidden: int, vocab: int) -> Count:
    """Tokens whose logits exist at once in the fused loss."""
    return minimum(tokens, power_of_two_at_least(ceil_div(tokens, ceil_div(vocab, hidden))))


@formula(cites=TORCHTUNE, at="ce_chunked_output_loss.py: eight chunks")
def loss_chunk_tokens(tokens: Count) -> Count:
    """Tokens of one chunk of the chunked loss."""
    return ceil_div(tokens, CHUNKS)


def chunk_of(loss: Loss, tokens: Count, hidden: int, vocab: int) -> Count:
    """Tokens whose logits exist at once; one where they all do."""
    if loss is Loss.FUSED:
        return liger_chunk(tokens, hidden, vocab)
    return loss_chunk_tokens(tokens) if loss is Loss.CHUNKED else 1


def fused_linear_cross_entropy(r: Recorder, x: Tensor, how: RunConfig, table: str) -> Tensor:
    """Liger's kernel: gradients of input and head made in forward, in their own dtypes, one chunk of logits
    at a time (LIGER, section 3.2).

    Products are in the compute dtype, for which the weight is cast for each of them and not kept (its
    transpose is no parameter, so autocast caches nothing); the head's gradient is added to in place. Backward
    multiplies both gradients in place.
    """
    low, weight = r.compute or x.dtype, r.parameter(table, ("V", "h"), how.parameters, trains=how.trains)
    kept = [r.tensor("loss/grad_input", x.shape, x.dtype)]
    if weight.needs_grad:
        kept.append(r.tensor("loss/grad_weight", ("V", "h"), weight.dtype))
    rows = _compute_dtype_copy(r, ("c", "h"), x.dtype, low, "loss/chunk_input")
    cast = _compute_dtype_copy(r, ("V", "h"), weight.dtype, low, "loss/weight")
    logits = r.tensor("loss/chunk_logits", ("c", "V"), low)
    del cast
    cast = _compute_dtype_copy(r, ("V", "h"), weight.dtype, low, "loss/weight")
    product = r.tensor("loss/chunk_grad_input", ("c", "h"), low)
    del rows, cast, product, logits
    grads = [Grad(t.storage, t.shape, t.dtype) for t in kept]
    return r.apply(
        r.tensor("loss/value", (1,), FP32), (x, weight), kept, lambda _: [*grads, *[None] * (2 - len(grads))]
    )


def _compute_dtype_copy(
    r: Recorder, shape: tuple[str, ...], dtype: DType, low: DType, path: str
) -> Tensor | None:
    """A copy in the compute dtype, where that is another."""
    return r.tensor(path, shape, low) if low is not dtype else None


def chunked_cross_entropy(r: Recorder, x: Tensor, how: RunConfig, table: str) -> Tensor:
    """Chunk by chunk the head and the loss under a checkpoint: each keeps its part of the input alone, and
    runs again in backward.
    """
    weight = r.parameter(table, ("V", "h"), how.parameters, trains=how.trains)
    trains = weight.needs_grad
    pieces: list[Grad] = []  # gradients of chunks' inputs, which are joined at the end

    def joined(_: Grad) -> list[Grad | None]:
        whole = r.grad(x_shape, x_dtype, "loss/cat")
        pieces.clear()
        return [whole]

    x_shape, x_dtype = x.shape, x.dtype
    parts = r.apply(Tensor(x.storage, x_shape, x_dtype), (x,), (), joined)
    cast = r.autocast(weight, "loss")  # kept in autocast's cache through forward
    low = cast.dtype
    rows = _compute_dtype_copy(r, ("c", "h"), x_dtype, low, "loss/chunk_input")
    logits = r.tensor("loss/chunk_logits", ("c", "V"), low)
    cast = cast if trains else weight  # what does not train is cast for each use
    wide = _compute_dtype_copy(r, ("c", "V"), low, FP32, "loss/chunk_fp32") or logits
    del logits, rows
    logged = r.tensor("loss/chunk_log_softmax", ("c", "V"), FP32)
    del wide, logged

    def backward(_: Grad) -> list[Grad | None]:
        total = None
        for number in range(CHUNKS):
            piece, product = _chunk_gradient(r, x_dtype, low, how, trains=trains)
            pieces.append(piece)
            if (
                product is not None and number == 1
            ):  # the first is a transposed view, to which the engine adds nothing in place
                total = r.grad(("V", "h"), low, "loss/grad_weight")
            total = total or product
            del piece, product
        return [Grad(None, x_shape, x_dtype), total]

    return r.apply(r.tensor("loss/value", (1,), FP32), (parts, cast), () if r.hosts(x) else (x,), backward)


def _chunk_gradient(
    r: Recorder, stream: DType, low: DType, how: RunConfig, *, trains: bool
) -> tuple[Grad, Grad | None]:
    """One chunk's forward again and its backward: the gradients of its input and of the weight in the compute
    dtype.
    """
    logits_of = ("c", "V")
    back = r.grad(("c", "h"), stream, "loss/chunk_input") if r.offloads else None
    rows = r.grad(("c", "h"), low, "loss/chunk_input") if low is not stream else None
    weight = r.grad(("V", "h"), low, "loss/weight") if low is not how.parameters else None
    logits = r.grad(logits_of, low, "loss/chunk_logits")
    wide = r.grad(logits_of, FP32, "loss/chunk_fp32") if low is not FP32 else logits
    del logits
    logged = r.grad(logits_of, FP32, "loss/chunk_log_softmax")
    del wide
    picked = r.grad(logits_of, FP32, "loss/chunk_gradient")
    grad = r.grad(logits_of, FP32, "loss/chunk_gradient")
    del picked, logged
    grad = r.grad(logits_of, low, "loss/chunk_gradient") if low is not FP32 else grad
    product = r.grad(("V", "h"), low, "loss/grad_weight") if trains else None
    piece = r.grad(("c", "h"), low, "loss/chunk_grad_input")
    del grad, rows, weight, back
    return (r.grad(("c", "h"), stream, "loss/chunk_grad_input") if low is not stream else piece), product
