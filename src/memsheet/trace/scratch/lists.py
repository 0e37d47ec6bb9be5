"""Lists of tensors and groups of matrices, whose addresses are put on the card; and the norms of rows, where
rows are many.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt, prod
from typing import Any

import torch

from memsheet.arith import ceil_div, round_up
from memsheet.trace.scratch.call import (
    INT,
    LONG,
    Call,
    Scratch,
    aten_source_line,
    contiguous_copy_scratch,
    opmath_bytes,
)

CHUNK = 65536  # native/cuda/MultiTensorApply.cuh:17 kChunkSize
FAST_NORMS = (1, 2, float("inf"))  # ForeachReduceOp.cu; the others go one by one


def foreach_norm(call: Call) -> Iterator[Scratch]:
    """aten._foreach_norm(tensors, ord, dtype): one number a chunk, with as many chunks for every tensor as
    the largest has.
    """
    if call.arg(1, "ord", 2) in FAST_NORMS:
        yield from _foreach_reduce_scratch(
            call, opmath_bytes(call.arg(2, "dtype") or call.args[0][0].dtype), 463
        )


def foreach_max(call: Call) -> Iterator[Scratch]:
    yield from _foreach_reduce_scratch(call, call.args[0][0].element_size(), 157)


def _foreach_reduce_scratch(call: Call, each: int, line: int) -> Iterator[Scratch]:
    tensors = call.args[0]
    most = max(ceil_div(tensor.numel(), CHUNK) for tensor in tensors)
    yield Scratch(
        "output_per_tensor",
        len(tensors) * most * each,
        aten_source_line("native/cuda/ForeachReduceOp.cu", line),
    )


# ---- FSDP2's copies around collectives ---------------------------------------------------------------------

PACKED = aten_source_line("native/cuda/TensorShape.cu", 265)  # pack_vecs
THREADS, BLOCK_BYTES = 128, 2048  # TensorShape.cu: BLOCK_SIZE, BYTES_PER_BLOCK


def chunk_cat(call: Call) -> Iterator[Scratch]:
    """aten._chunk_cat(tensors, dim, num_chunks): which tensor each block copies. Tensors out of order take
    another way.
    """
    tensors, dim, chunks = call.args[:3]
    out = call.kwargs.get("out")
    each = (tensors[0] if out is None else out).element_size()
    if not all(tensor.is_contiguous() for tensor in tensors):
        return
    blocks = sum(
        ceil_div(ceil_div(t.shape[dim], chunks) * prod(t.shape[dim + 1 :]) * each, BLOCK_BYTES)
        for t in tensors
    )
    yield Scratch("packed", (6 * len(tensors) + 2 + blocks) * LONG, PACKED)


def split_copy(call: Call) -> Iterator[Scratch]:
    """aten.split_with_sizes_copy.out(self, split_sizes, dim, *, out): which part each block copies."""
    tensor, parts, dim = call.args[0], call.args[1], call.arg(2, "dim", 0)
    if not all(t.dtype is tensor.dtype and t.is_contiguous() for t in (tensor, *call.kwargs.get("out", ()))):
        return
    dim %= tensor.dim()
    sizes = [part * tensor.stride(dim) * tensor.element_size() for part in parts]
    repeats = prod(tensor.shape[:dim])
    factor = ceil_div(
        repeats * sum(ceil_div(size, BLOCK_BYTES) for size in sizes),
        call.card.sm_count * call.card.threads // THREADS * 2,
    )
    together = min(isqrt(max(factor, 1) - 1) + 1, repeats)
    blocks = sum(ceil_div(size, BLOCK_BYTES * ceil_div(factor, together)) for size in sizes)
    yield Scratch("packed", (4 * len(sizes) + blocks + 1) * LONG, PACKED)


# ---- groups of matrices ------------------------------------------------------------------------------------

GROUPED = aten_source_line("native/cuda/GroupMM.cu", 214)
POINTER, SHAPE, STRIDE = 8, 3 * INT, 8  # cute::Shape<int32_t, int32_t, int32_t>, one dynamic stride


def grouped_mm(call: Call) -> Iterator[Scratch]:
    """aten._grouped_mm(self, mat2, offs, …) in bf16 on 9.x and 10.x: addresses, strides and shapes of each
    group, for CUTLASS.
    """
    left, right, offsets = call.args[0], call.args[1], call.arg(2, "offs")
    if (
        left.dtype is not torch.bfloat16
        or right.dtype is not torch.bfloat16
        or call.card.compute_capability[0] not in {9, 10}
    ):
        return
    flat = left.dim() == 2
    groups = offsets.shape[0] if flat and right.dim() == 2 else right.shape[0] if flat else left.shape[0]
    size = round_up(groups, 2) * 3 * POINTER + groups * SHAPE + 3 * groups * STRIDE
    yield Scratch("group_arguments", size, GROUPED)


# ---- norms of rows -----------------------------------------------------------------------------------------

NORM = "native/cuda/layer_norm_kernel.cu"
MANY_ROWS, COLUMNS, ROWS, BLOCKS = 64 * 1024, 32, 32, 64 * 1024 // 2  # LaunchGammaBetaBackwardCUDAKernel


def layer_norm(call: Call) -> Iterator[Scratch]:
    """aten.native_layer_norm(input, normalized_shape, weight, bias, eps), and aten._fused_rms_norm(input,
    normalized_shape, weight, eps).
    """
    yield from contiguous_copy_scratch(call.args[0], "input", aten_source_line(NORM, 1700))


def layer_norm_backward(call: Call) -> Iterator[Scratch]:
    """aten.native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias,
    output_mask).
    """
    yield from _norm_backward(call, call.args[5], call.args[7][1:])


def rms_norm_backward(call: Call) -> Iterator[Scratch]:
    """aten._fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask)."""
    yield from _norm_backward(call, call.args[4], call.args[5][1:])


def _norm_backward(call: Call, weight: Any, wanted: Any) -> Iterator[Scratch]:
    """Many short rows: each block keeps its sum of the weight's and the bias's gradient, in the weight's
    type.
    """
    grad, given, width = call.args[0], call.args[1], prod(call.args[2])
    yield from contiguous_copy_scratch(grad, "grad_out", aten_source_line(NORM, 1656))
    yield from contiguous_copy_scratch(given, "input", aten_source_line(NORM, 1756))
    rows = given.numel() // max(width, 1)
    if weight is None or rows <= MANY_ROWS or width // COLUMNS >= call.card.sm_count // 2:
        return
    blocks = min(BLOCKS // ceil_div(width, COLUMNS), ceil_div(rows, ROWS))
    for name, line, asked in zip(("dgamma_blocks", "dbeta_blocks"), (980, 985), wanted, strict=False):
        if asked:
            yield Scratch(name, blocks * width * weight.element_size(), aten_source_line(NORM, line))
