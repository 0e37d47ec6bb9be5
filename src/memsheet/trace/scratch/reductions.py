"""Reductions over a whole card: partial results of blocks that share an output, and copies in another type.

The launch is worked out as ``setReduceConfig`` does (native/cuda/Reduce.cuh): a tensor iterator orders and
merges the dimensions, the block and the grid follow from them. Reducing the slow dimension, as a bias's
gradient does, asks for far more than it fills: ``global_memory_size`` multiplies all outputs by the width of
a block once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from memsheet.arith import ceil_div
from memsheet.frozen import dataclass
from memsheet.trace.scratch.call import (
    HALF,
    INT,
    Call,
    Card,
    Scratch,
    aten_source_line,
    contiguous_copy_scratch,
    opmath_bytes,
    tensor_bytes,
)

REDUCE = "native/cuda/Reduce.cuh"
PARTIAL, SEMAPHORES, ACCUMULATED = (
    aten_source_line(REDUCE, 1261),
    aten_source_line(REDUCE, 1262),
    aten_source_line(REDUCE, 990),
)
CAST = aten_source_line("native/ReduceOpsUtils.h", 417)  # make_reduction: self.to(in_dtype)
EXPONENTIALS = aten_source_line("native/ReduceOps.cpp", 1517)  # logsumexp_out_impl: (self - maxes).exp_()
FLAT = aten_source_line("native/ReduceOps.cpp", 1757)  # argmax_argmin_impl: self.reshape({-1})
WARP, VALUES, LEAST_VALUES = 32, 256, 16  # setReduceConfig: max_values_per_thread, min_values_per_thread
LAST = 2**31 - 1  # a tensor iterator's largest offset in bytes that a kernel can hold


@dataclass(frozen=True, slots=True)
class Kind:
    """A reducing kernel: bytes of what it sums in, given the element's type; values loaded at once, plain and
    of 16 bits.

    ``merges``: it can go on summing in its output, where a tensor is too large for one launch.
    """

    accumulator: Callable[[torch.dtype], int] = opmath_bytes
    loaded: int = 4
    loaded_half: int = 4
    merges: bool = True


def _value_index_bytes(dtype: torch.dtype) -> int:  # noqa: ARG001 - alternatives of a table share one signature
    """A value and the int64 that says where: pair<scalar_t, int64_t>, aligned to 8 bytes."""
    return 16


def _welford_bytes(dtype: torch.dtype) -> int:
    """native/SharedReduceOps.h:68 WelfordData<acc, int32_t>: mean, m2, n, nf."""
    return 32 if dtype is torch.float64 else 16


SUM, MEAN = Kind(loaded_half=8), Kind()  # native/cuda/ReduceSumProdKernel.cu:21, ReduceMomentKernel.cu
EXTREME = Kind(lambda dtype: dtype.itemsize)  # native/cuda/ReduceMaxValuesKernel.cu, ReduceLogicKernel.cu
PLACE = Kind(_value_index_bytes, merges=False)  # native/cuda/ReduceArgMaxKernel.cu
VARIANCE = Kind(_welford_bytes, loaded=2, loaded_half=2, merges=False)  # native/cuda/ReduceMomentKernel.cu


@dataclass(frozen=True, slots=True)
class Walk:
    """The dimensions a tensor iterator is left with, fastest first: reduced ones, then kept ones. Strides in
    elements.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    reduced: int

    @property
    def outputs(self) -> int:
        return prod(self.sizes[self.reduced :])

    @property
    def inputs(self) -> int:
        return prod(self.sizes[: self.reduced])


def coalesced_reduction_walk(sizes: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> Walk:
    """TensorIterator.cpp reorder_dimensions and coalesce_dimensions, for one input and a contiguous
    output.
    """
    kept, out, step = [d for d in range(len(sizes)) if d not in dims], [0] * len(sizes), 1
    for d in reversed(kept):
        out[d], step = step, step * sizes[d]
    order = list(reversed(range(len(sizes))))
    for place in range(1, len(order)):
        at = place
        for before in range(place - 1, -1, -1):
            later = _compare_dim_order(order[before], order[at], sizes, (out, strides))
            if later > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif later < 0:
                break
    return _coalesce_dims([[sizes[d], strides[d], out[d]] for d in order])


def _compare_dim_order(
    one: int, other: int, sizes: Sequence[int], operands: tuple[Sequence[int], Sequence[int]]
) -> int:
    """Whether a dimension comes after another (1), before it (-1), or as it happens (0)."""
    for place, strides in enumerate(operands):
        first, second = strides[one], strides[other]
        if place == 0 and (first == 0) != (second == 0):
            return 1 if second == 0 else -1
        if 0 in {first, second}:
            continue
        if first != second:
            return -1 if first < second else 1
        if sizes[one] > sizes[other]:
            return 1
    return 0


def _coalesce_dims(rows: list[list[int]]) -> Walk:
    """Neighbours that lie side by side in every operand become one dimension. A row: size, stride of the
    input, of the output.
    """
    merged: list[list[int]] = rows[:1]
    for row in rows[1:]:
        last = merged[-1]
        if 1 in {last[0], row[0]} or (last[0] * last[1] == row[1] and last[0] * last[2] == row[2]):
            if last[0] == 1:
                last[1:] = row[1:]
            last[0] *= row[0]
        else:
            merged.append(row)
    return Walk(tuple(r[0] for r in merged), tuple(r[1] for r in merged), sum(r[2] == 0 for r in merged))


def _power_below(n: int) -> int:
    return 1 << max(n, 1).bit_length() - 1


def _output_vector_size(dividends: Sequence[int]) -> int:
    """get_output_vec_size: outputs loaded at once, 4 or as few as every stride allows."""
    size = 4
    for n in dividends:
        while n % size:
            size //= 2
    return size


def reduction_buffer_bytes(
    shape: Walk, accumulator: int, loaded: int, card: Card, *, offset: int = 0
) -> tuple[int, int]:
    """Bytes of partial results and of semaphores; none where no output is shared by several blocks."""
    first, across = shape.inputs, shape.outputs
    fast = shape.reduced == len(shape.sizes) or shape.strides[0] < shape.strides[shape.reduced]
    stride = shape.strides[0 if fast else shape.reduced] if shape.sizes else 1
    if not fast:
        first, across = across, first
    vector = 1
    if stride == 1 and fast and first >= 128 and shape.reduced == 1:
        first //= loaded
    elif stride == 1 and not fast:
        others = [s for d, s in enumerate(shape.strides) if d != shape.reduced]
        vector = _output_vector_size([offset, shape.sizes[shape.reduced], *others])
        first //= vector
    width, height = _block_dimensions(first, across, 512 // vector)
    step_input, step_output = (width, 1) if fast else (1, width)
    deep = ceil_div(shape.inputs, step_input) >= min(height * 16, VALUES)
    if deep:
        step_input *= height
    else:
        step_output *= height
    grid, each = ceil_div(shape.outputs // vector, step_output), ceil_div(shape.inputs, step_input)
    wanted = card.sm_count * (card.threads // (width * height))
    if not deep or each < VALUES or grid > wanted:
        return 0, 0
    blocks = max(min(ceil_div(wanted, grid), ceil_div(each, LEAST_VALUES)), ceil_div(each, VALUES))
    if blocks <= 1:
        return 0, 0
    return accumulator * shape.outputs * blocks * (1 if fast else width * vector), INT * grid


def _block_dimensions(first: int, across: int, most: int) -> tuple[int, int]:
    """ReduceConfig::set_block_dimension."""
    wide_by, high_by = (_power_below(n) if n < most else most for n in (first, across))
    height = min(high_by, most // min(wide_by, WARP))
    return min(wide_by, most // height), height


def _one_launch(shape: Walk, itemsize: int) -> Walk:
    """TensorIterator::with_32bit_indexing: halve the dimension of the greatest extent until offsets fit; the
    larger half.
    """
    sizes = list(shape.sizes)

    def reach(d: int) -> int:
        return (sizes[d] - 1) * shape.strides[d] * itemsize

    while prod(sizes) > LAST or 1 + sum(map(reach, range(len(sizes)))) > LAST:
        farthest = max(reversed(range(len(sizes))), key=reach)
        if sizes[farthest] < 2:
            break
        sizes[farthest] = ceil_div(sizes[farthest], 2)
    return Walk(tuple(sizes), shape.strides, shape.reduced)


def reduction_scratch(
    kind: Kind, tensor: Tensor, dims: Sequence[int], kept_as: torch.dtype, card: Card
) -> Iterator[Scratch]:
    """What reducing ``dims`` of a tensor into ``kept_as`` allocates besides the result; types differ only
    from 16 bits to float.
    """
    if not tensor.numel():
        return
    low = tensor.dtype in HALF and kept_as is torch.float32
    dtype = tensor.dtype if low else kept_as
    if dtype is not tensor.dtype:
        yield Scratch("cast", tensor.numel() * dtype.itemsize, CAST)
    shape = coalesced_reduction_walk(tensor.shape, tensor.stride(), dims)
    single = _one_launch(shape, dtype.itemsize)
    each, loaded = kind.accumulator(dtype), kind.loaded_half if dtype in HALF else kind.loaded
    if single != shape and each > kept_as.itemsize and (not kind.merges or dtype in HALF):
        yield Scratch("accumulated", shape.outputs * each, ACCUMULATED)
    buffer, semaphores = reduction_buffer_bytes(
        single, each, loaded, card, offset=int(tensor.storage_offset())
    )
    yield Scratch("partial_sums", buffer, PARTIAL)
    yield Scratch("semaphores", semaphores, SEMAPHORES)


def _normalize_dims(chosen: Any, count: int) -> tuple[int, ...]:
    """No dimension, or none given, means all of them."""
    named = [chosen] if isinstance(chosen, int) else list(chosen or ())
    return tuple(sorted({d % count for d in named})) if named and count else tuple(range(count))


def reduction_row(
    kind: Kind, place: int | None, *, converts: bool = False
) -> Callable[[Call], Iterator[Scratch]]:
    """A row for ``op(self, …)`` whose dimensions are argument ``place``; ``converts``: it first brings its
    input to the output's type.
    """
    return partial(_reduction_row_scratch, kind, place, converts)


def _reduction_row_scratch(kind: Kind, place: int | None, converts: bool, call: Call) -> Iterator[Scratch]:
    tensor = call.args[0]
    first = call.outputs[0] if isinstance(call.outputs, list | tuple) else call.outputs
    chosen = None if place is None else call.arg(place, "dim")
    yield from reduction_scratch(
        kind,
        tensor,
        _normalize_dims(chosen, tensor.dim()),
        first.dtype if converts else tensor.dtype,
        call.card,
    )


def argmax_scratch(call: Call) -> Iterator[Scratch]:
    """aten.argmax(self, dim=None): without a dimension the input is made flat first."""
    if call.arg(1, "dim") is None:
        yield from contiguous_copy_scratch(call.args[0], "flat", FLAT)
    yield from _reduction_row_scratch(PLACE, 1, False, call)


def logsumexp_scratch(call: Call) -> Iterator[Scratch]:
    """aten.logsumexp(self, dim, keepdim=False): what is less than the largest, and then its exponentials."""
    given = call.args[0]
    if given.numel() and given.is_floating_point():
        yield Scratch("exponentials", tensor_bytes(given), EXPONENTIALS)
