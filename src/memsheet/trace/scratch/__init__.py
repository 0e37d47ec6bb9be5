"""What CUDA kernels allocate inside one operation, which a trace of operations on fake tensors cannot see: a
table, read from torch.

A row gives the allocations that are there at once, at the moment when they are most, as bytes requested of
the caching allocator. What a size leaves out, or takes for granted, stands in its ``note``. What is known to
allocate by an amount that is not known stands in ``UNKNOWN``. Softmax, dropout, cat, where, gather, scatter,
index_select, losses and the fused optimizers make nothing but copies of operands that do not lie in order; of
those, copies between a card and a host are not in the table.

Read in torch 2.13.0: lines of headers are exact, those of ``.cu`` and ``.cpp`` files were counted in the main
branch a few weeks around the release and may be some lines off; the functions named beside them find them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from memsheet.frozen import dataclass
from memsheet.sheet import FromCode
from memsheet.trace.scratch import attention, blas, indices, lists, reductions
from memsheet.trace.scratch.blas import Workspace, cublas_workspace
from memsheet.trace.scratch.call import H100, Call, Card, Scratch, aten_source_line, contiguous_copy_scratch
from memsheet.trace.scratch.reductions import EXTREME, MEAN, PLACE, SUM, VARIANCE, reduction_row

__all__ = [
    "H100",
    "ROWS",
    "UNKNOWN",
    "Card",
    "Row",
    "Scratch",
    "Workspace",
    "cublas_workspace",
    "operation_scratch",
]

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Row:
    """How much an operation allocates for itself; ``note``: what that leaves out."""

    parts: Callable[[Call], Iterable[Scratch]]
    note: str = ""


def in_order(*operands: tuple[int, str, FromCode]) -> Row:
    """A row for kernels that only read their operands in order, given as place, name and the line that
    copies.
    """
    return Row(partial(_in_order, operands))


def _in_order(operands: Sequence[tuple[int, str, FromCode]], call: Call) -> Iterator[Scratch]:
    for place, name, evidence in operands:
        yield from contiguous_copy_scratch(call.arg(place, name), name, evidence)


SPLITS = "the number of splits follows the card's multiprocessors; float rounding at a tie is not imitated"
CUB = "without the histograms and tile states of cub, which follow how its kernels are tuned for the card"
REDUCES = (
    "only where an output is shared by several blocks; the launch follows the card's "
    "multiprocessors and threads"
)
SOFTMAX, LOSS = "native/cuda/SoftMax.cu", "native/cuda/Loss.cu"

FLASH_FORWARD, FLASH_FORWARD_ROWS = (
    Row(attention.flash_forward, SPLITS),
    Row(attention.flash_forward_rows, SPLITS),
)
FLASH_BACKWARD = (
    "FlashAttention-2, the default; deterministic algorithms keep a sum for each of several parts"
)
EFFICIENT = "tiles of compute capability 8.0 and above; dense inputs"
LAYER_NORM = Row(lists.layer_norm)
PUT, SORT = (
    Row(indices.index_put, f"{CUB}; masks, which depend on data, are not counted"),
    Row(indices.sort_scratch, CUB),
)
SCATTER = Row(indices.masked_scatter, CUB)
SOFTMAX_BACKWARD = in_order(
    (0, "grad_output", aten_source_line(SOFTMAX, 1287)), (1, "output", aten_source_line(SOFTMAX, 1291))
)
BACKWARD_SUM = "without the reduction that adds up the blocks"

ROWS: Mapping[Any, Row] = MappingProxyType({
    aten._scaled_dot_product_flash_attention.default: FLASH_FORWARD,
    aten._flash_attention_forward.default: FLASH_FORWARD_ROWS,
    aten._scaled_dot_product_flash_attention_backward.default: Row(attention.flash_backward, FLASH_BACKWARD),
    aten._flash_attention_backward.default: Row(attention.flash_backward_rows, FLASH_BACKWARD),
    aten._scaled_dot_product_efficient_attention.default: Row(attention.efficient_forward, EFFICIENT),
    aten._scaled_dot_product_efficient_attention_backward.default: Row(attention.efficient_backward, EFFICIENT),
    aten.embedding_dense_backward.default: Row(indices.embedding_backward, CUB),
    aten.index_put.default: PUT,
    aten.index_put_.default: PUT,
    aten._index_put_impl_.default: PUT,
    aten._unsafe_index_put.default: PUT,
    aten.sort.default: SORT,
    aten.sort.stable: Row(indices.sort_stable, CUB),
    aten.topk.default: Row(indices.topk_scratch, f"{CUB}; without the second sort of more than 4,096 results"),
    aten.cumsum.default: Row(indices.cumsum_scratch, CUB),
    aten.masked_scatter.default: SCATTER,
    aten.masked_scatter_.default: SCATTER,
    aten.multinomial.default: Row(indices.multinomial_scratch, "without the checks' reductions; drawing with replacement is not counted"),
    aten._foreach_norm.Scalar: Row(lists.foreach_norm, "tensors of one type, dense"),
    aten._foreach_powsum.Scalar: Row(lists.foreach_norm, "tensors of one type, dense"),
    aten._foreach_max.default: Row(lists.foreach_max, "tensors of one type, dense"),
    aten._chunk_cat.default: Row(lists.chunk_cat),
    aten._chunk_cat.out: Row(lists.chunk_cat),
    aten.split_with_sizes_copy.out: Row(lists.split_copy),
    aten._grouped_mm.default: Row(lists.grouped_mm, "bf16 on 9.x and 10.x; without CUTLASS's own workspace, and without the loop over groups of other cards and types"),
    aten.native_layer_norm.default: LAYER_NORM,
    aten._fused_rms_norm.default: LAYER_NORM,
    aten.native_layer_norm_backward.default: Row(lists.layer_norm_backward, BACKWARD_SUM),
    aten._fused_rms_norm_backward.default: Row(lists.rms_norm_backward, BACKWARD_SUM),
    aten._softmax.default: in_order((0, "self", aten_source_line(SOFTMAX, 1072))),
    aten._log_softmax.default: in_order((0, "self", aten_source_line(SOFTMAX, 1072))),
    aten._softmax_backward_data.default: SOFTMAX_BACKWARD,
    aten._log_softmax_backward_data.default: SOFTMAX_BACKWARD,
    aten.nll_loss_forward.default: in_order((0, "self", aten_source_line(LOSS, 281)), (1, "target", aten_source_line(LOSS, 282))),
    aten.nll_loss_backward.default: in_order((1, "self", aten_source_line(LOSS, 488)), (2, "target", aten_source_line(LOSS, 487))),
    aten.mm.default: Row(partial(blas.matrix_copy_scratch, first=0)),
    aten.addmm.default: Row(partial(blas.matrix_copy_scratch, first=1)),
    aten.bmm.default: Row(partial(blas.batch_copy_scratch, first=0)),
    aten.baddbmm.default: Row(partial(blas.batch_copy_scratch, first=1)),
    aten.sum.default: Row(reduction_row(SUM, None, converts=True), REDUCES),
    aten.sum.dim_IntList: Row(reduction_row(SUM, 1, converts=True), REDUCES),
    aten.mean.default: Row(reduction_row(MEAN, None, converts=True), REDUCES),
    aten.mean.dim: Row(reduction_row(MEAN, 1, converts=True), REDUCES),
    aten.linalg_vector_norm.default: Row(reduction_row(MEAN, 2, converts=True), REDUCES),
    aten.amax.default: Row(reduction_row(EXTREME, 1), REDUCES),
    aten.amin.default: Row(reduction_row(EXTREME, 1), REDUCES),
    aten.max.default: Row(reduction_row(EXTREME, None), REDUCES),
    aten.min.default: Row(reduction_row(EXTREME, None), REDUCES),
    aten.max.dim: Row(reduction_row(PLACE, 1), REDUCES),
    aten.min.dim: Row(reduction_row(PLACE, 1), REDUCES),
    aten.any.default: Row(reduction_row(EXTREME, None), REDUCES),
    aten.any.dim: Row(reduction_row(EXTREME, 1), REDUCES),
    aten.any.dims: Row(reduction_row(EXTREME, 1), REDUCES),
    aten.all.default: Row(reduction_row(EXTREME, None), REDUCES),
    aten.all.dim: Row(reduction_row(EXTREME, 1), REDUCES),
    aten.all.dims: Row(reduction_row(EXTREME, 1), REDUCES),
    aten.argmax.default: Row(reductions.argmax_scratch, REDUCES),
    aten.logsumexp.default: Row(reductions.logsumexp_scratch),
    aten.argmin.default: Row(reductions.argmax_scratch, REDUCES),
    aten.var.correction: Row(reduction_row(VARIANCE, 1), REDUCES),
    aten.std.correction: Row(reduction_row(VARIANCE, 1), REDUCES),
    aten.var_mean.correction: Row(reduction_row(VARIANCE, 1), REDUCES),
})  # fmt: skip
"""What is known, by operation."""

CUDNN = "cuDNN chooses its plan on the card and asks for a workspace that depends on it"
DATA = "as large as the data make it: the trace knows no values"
UNKNOWN: Mapping[str, str] = MappingProxyType({
    "aten._scaled_dot_product_cudnn_attention": CUDNN,
    "aten._scaled_dot_product_cudnn_attention_backward": CUDNN,
    "aten.convolution": CUDNN,
    "aten.convolution_backward": CUDNN,
    "aten.cudnn_batch_norm": CUDNN,
    "aten._efficient_attention_forward": "packed sequences of the memory-efficient kernels are not in the table",
    "aten._efficient_attention_backward": "packed sequences of the memory-efficient kernels are not in the table",
    "aten._scaled_grouped_mm": "the kernels of quantized groups (MSLK, CUTLASS) are not in the table",
    "aten._scaled_mm": "copies of operands are not in the table; the workspace is",
    "aten.native_group_norm": "two statistics of (batch, channels) are not in the table",
    "aten.native_group_norm_backward": "statistics of (batch, channels) are not in the table",
    "aten.native_batch_norm": "partial sums of each block are not in the table",
    "aten.nonzero": DATA,
    "aten.masked_select": DATA,
    "aten._unique2": DATA,
    "aten.unique_dim": DATA,
    "aten.randperm": "random keys and their sort are not in the table",
    "aten._embedding_bag_backward": "the sort of its indices is not in the table",
})  # fmt: skip
"""Operations, as the recorder names them, that allocate what is not counted, and why."""


def operation_scratch(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any, card: Card = H100
) -> tuple[Scratch, ...]:
    """What ``func`` allocated on a GPU for itself while it made ``outputs`` of ``args``, all of it alive at
    once; bytes as requested.

    Nothing for an operation without a row, and for one that runs on the host.
    """
    row = ROWS.get(func)
    if row is None or not args or _on_host(args[0]):
        return ()
    return tuple(part for part in row.parts(Call(args, kwargs, outputs, card)) if part.bytes)


def _on_host(operand: Any) -> bool:
    first = operand[0] if isinstance(operand, list | tuple) and operand else operand
    return not isinstance(first, Tensor) or first.device.type == "cpu"
