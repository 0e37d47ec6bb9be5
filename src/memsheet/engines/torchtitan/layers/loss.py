"""torchtitan's losses: over a vocabulary that is cut, and chunk by chunk with its backward inside.

Axes besides those of the layers: ``c`` tokens of a chunk.
"""

from __future__ import annotations

from memsheet.engines.torchtitan.layers.switches import COMPILED_LOSS
from memsheet.formulas.model_code.transformers.ends import cross_entropy
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32
from memsheet.plan.plan import Loss

CHUNKS = 8
"""ChunkedLossWrapper.Config.num_chunks of b5bcd76, components/loss.py."""
STATES: Shape = ("b", "s", "h")
TABLE: Shape = ("V", "h")


def loss_of(r: Recorder, x: Tensor, how: RunConfig, loss: Loss, table: str) -> Tensor:
    """``cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1))`` (9dec370, train.py:131-134), or
    what stands in its place.
    """
    if loss is Loss.CHUNKED:
        return chunked_cross_entropy(r, x, how)
    if loss is Loss.VOCAB_PARALLEL:
        return parallel_cross_entropy(r, x)
    return compiled_cross_entropy(r, x) if COMPILED_LOSS in how.options else cross_entropy(r, x)


def compiled_cross_entropy(r: Recorder, logits: Tensor) -> Tensor:
    """The loss as torch.compile runs it: one kernel forward, which keeps the logits as they were made and two
    numbers of each position, and one backward, which writes their gradient (inductor of torch 2.13, the
    buffers of its two functions for this loss in bf16).
    """
    rows = r.tensor("loss/maxima_and_sums", (2, *logits.shape[:-1]), FP32)
    value = r.tensor("loss/value", (1,), FP32)
    shape, dtype = logits.shape, logits.dtype
    return r.apply(value, (logits,), (logits, rows), lambda _: [r.grad(shape, dtype, "loss/gradient")])


def parallel_cross_entropy(r: Recorder, logits: Tensor) -> Tensor:
    """The loss over a vocabulary that is cut (torch distributed/tensor/parallel/loss.py:187-219, 395-480):
    shifted, exponentials summed, log-probabilities saved; backward is one function of zeros, exponentials,
    their sum and its product with what arrives.
    """
    wide = r.cast(logits, FP32, "loss/fp32")
    shape = wide.shape
    made = _log_probabilities(r, shape)
    logged = r.apply(made, (wide,), (made,), lambda g: [Grad(g.storage, g.shape, g.dtype)])
    return r.apply(
        r.tensor("loss/value", (1,), FP32), (logged,), (logged,), lambda _: [_parallel_gradient(r, shape)]
    )


def _log_probabilities(r: Recorder, shape: Shape) -> Tensor:
    shifted = r.tensor("loss/shifted", shape, FP32)
    exponentials = r.tensor("loss/exponentials", shape, FP32)
    del exponentials
    made = r.tensor("loss/log_softmax", shape, FP32)
    del shifted
    return made


def _parallel_gradient(r: Recorder, shape: Shape) -> Grad:
    zeros, exponentials = r.grad(shape, FP32, "loss/zeros"), r.grad(shape, FP32, "loss/exponentials")
    total = r.grad(shape, FP32, "loss/sum")
    del exponentials
    product = r.grad(shape, FP32, "loss/gradient")
    del zeros, total
    return product


def chunked_cross_entropy(r: Recorder, x: Tensor, how: RunConfig) -> Tensor:
    """Head, loss and both their backwards for one chunk of positions after another (b5bcd76,
    components/loss.py:520-660): gradients of the states are collected in fp32, those of the head whole in the
    dtype they are reduced in, and reduced with the last chunk. What is left for backward is the gradient of
    the states.
    """
    dtype = x.dtype
    collected = r.tensor("loss/collected", STATES, FP32)
    of_head = [_chunk_head_gradient(r, how)]  # the first makes the sum that the others are added to in place
    of_head[:] = [r.tensor("loss/grad_weight_fp32", TABLE, FP32)]
    added = _chunk_head_gradient(r, how)
    del added
    buffer = r.tensor("loss/reduce_scatter", TABLE, FP32)
    of_head.clear()
    del buffer
    left = r.tensor("loss/gradient", STATES, dtype)
    del collected
    kept = Grad(left.storage, STATES, dtype)
    return r.apply(r.tensor("loss/value", (1,), FP32), (x,), (left,), lambda _: [kept])


def _chunk_head_gradient(r: Recorder, how: RunConfig) -> Tensor:
    """A chunk's logits and loss and back; the gradient that it leaves of the head."""
    logits_of: Shape = ("c", "V")
    low = how.parameters
    logits = r.tensor("loss/chunk_logits", logits_of, low)
    if COMPILED_LOSS in how.options:
        grad: Grad | Tensor = r.tensor("loss/chunk_gradient", logits_of, low)
    else:
        grad = _chunk_gradient(r, logits_of, how)
    product = r.tensor("loss/grad_weight", TABLE, low)
    piece = r.tensor("loss/chunk_grad_input", ("c", "h"), low)
    del grad, logits, piece
    return product


def _chunk_gradient(r: Recorder, logits_of: Shape, how: RunConfig) -> Tensor:
    """The loss of a chunk and back, operation by operation."""
    wide = r.tensor("loss/chunk_fp32", logits_of, FP32)
    logged = (
        _log_probabilities(r, logits_of)
        if how.tensor_parallel
        else r.tensor("loss/chunk_log_softmax", logits_of, FP32)
    )
    del wide
    if how.tensor_parallel:
        grad: Grad | Tensor = _parallel_gradient(r, logits_of)
    else:
        picked = r.tensor("loss/chunk_gradient", logits_of, FP32)
        grad = r.tensor("loss/chunk_gradient", logits_of, FP32)
        del picked
    del logged
    low_grad = r.tensor("loss/chunk_gradient", logits_of, how.parameters)
    del grad
    return low_grad
