"""Looking up, counting and sorting: sorted copies of indices, prefix sums, and what gradients of looked-up
rows are summed in.

Not counted of what cub asks for: its histograms and the state of its tiles, which depend on how its kernels
were tuned for the card; the buffers that hold the other half of a radix sort are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from memsheet.arith import ceil_div, round_up
from memsheet.sheet import FromCode
from memsheet.trace.scratch.call import (
    FLOAT,
    HALF,
    INT,
    LONG,
    Call,
    Scratch,
    aten_source_line,
    contiguous_copy_scratch,
    has_no_gaps,
    largest_moment,
    opmath_bytes,
    tensor_bytes,
    uses_deterministic_algorithms,
)

CCCL = "e944297b0b51a8e9c0f1b30425370c31c1c0e0a0"  # v3.0.0, of CUDA 13.0
RADIX = FromCode("NVIDIA/cccl", CCCL, "cub/cub/device/dispatch/dispatch_radix_sort.cuh", 486)
SEGMENTED = FromCode("NVIDIA/cccl", CCCL, "cub/cub/device/dispatch/dispatch_radix_sort.cuh", 1357)
DIGIT = 8  # bits a pass of a radix sort; one pass needs no other half
LAST = 2**31 - 1


def other_half(items: int, key: int, value: int, bits: int) -> Iterator[Scratch]:
    """Where cub's radix sort puts keys and values between passes, given bytes of each and the bits that are
    sorted by.
    """
    yield Scratch("radix_sort", items * (key + value) if bits > DIGIT else 0, RADIX)


# ---- the gradient of an embedding --------------------------------------------------------------------------

SMALL_LOOKUP = 3072  # native/cuda/Embedding.cu:256: so few indices are summed in place
ROWS_PER_THREAD, BLOCK, BLOCKS_PER_SM = (
    10,
    1024,
    4,
)  # EmbeddingBackwardKernel.cu:36, SortingCommon.cuh, EmbeddingBackwardKernel.cu:40
LOOKUP, SEGMENTS = "native/cuda/Embedding.cu", "native/cuda/EmbeddingBackwardKernel.cu"


def embedding_backward(call: Call) -> Iterator[Scratch]:
    """aten.embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)."""
    grad, indices, rows = call.args[:3]
    yield from contiguous_copy_scratch(grad, "grad", aten_source_line(LOOKUP, 253))
    yield from contiguous_copy_scratch(indices, "indices", aten_source_line(LOOKUP, 250))
    by_frequency = bool(call.arg(4, "scale_grad_by_freq", default=False))
    count, each = indices.numel(), indices.element_size()
    if count <= SMALL_LOOKUP and not by_frequency:
        return
    ordered = [
        Scratch("sorted_indices", count * each, aten_source_line(LOOKUP, 289)),
        Scratch("orig_indices", count * each, aten_source_line(LOOKUP, 290)),
    ]
    sorting = [
        *ordered,
        Scratch("range", count * each, aten_source_line(LOOKUP, 293)),
        *other_half(count, each, each, 8 * each),
    ]
    if by_frequency:
        ordered.append(Scratch("count", count * each, aten_source_line(LOOKUP, 302)))
    yield from largest_moment(
        sorting, [*ordered, *_segmented_sum_scratch(call, count, each, min(count, rows))]
    )


def _segmented_sum_scratch(call: Call, count: int, each: int, segments: int) -> Iterator[Scratch]:
    """embedding_backward_cuda_kernel: rows of the gradient that belong together are summed by tens, in
    floats.
    """
    grad, rows = call.args[0], call.args[2]
    width, parts = grad.shape[-1], count // ROWS_PER_THREAD + segments
    yield Scratch("segment_offsets", count * each, aten_source_line(SEGMENTS, 304))
    yield Scratch("partials_per_segment", segments * each, aten_source_line(SEGMENTS, 320))
    yield Scratch("partials_per_segment_offset", segments * each, aten_source_line(SEGMENTS, 334))
    yield Scratch("partial_segment_offset", parts * each, aten_source_line(SEGMENTS, 353))
    warped = round_up(width, 32)
    grid = ceil_div(segments * warped, min(warped, BLOCK))
    if grid < call.card.sm_count * BLOCKS_PER_SM and parts > grid * 4 and not uses_deterministic_algorithms():
        yield Scratch("partial_to_segment_idx", parts * each, aten_source_line(SEGMENTS, 394))
        yield Scratch(
            "grad_weight_acc",
            rows * width * FLOAT if grad.dtype in HALF else 0,
            aten_source_line(SEGMENTS, 408),
        )
    else:
        yield Scratch(
            "grad_weight_per_segment",
            parts * width * opmath_bytes(grad.dtype),
            aten_source_line(SEGMENTS, 447),
        )


# ---- index_put ---------------------------------------------------------------------------------------------

PUT = "native/cuda/Indexing.cu"


def index_put(call: Call) -> Iterator[Scratch]:
    """aten.index_put(self, indices, values, accumulate): sums in the order of sorted indices. Masks, which
    depend on data, are not known.
    """
    into, indices, values = call.args[:3]
    if not (call.arg(3, "accumulate", default=False) or uses_deterministic_algorithms()):
        return
    given = [(place, index) for place, index in enumerate(indices) if index is not None]
    if not given or any(index.dtype in {torch.bool, torch.uint8} for _, index in given):
        return
    places = [place for place, _ in given]
    count = torch.broadcast_shapes(*(index.shape for _, index in given)).numel()
    taken = [into.shape[place] for place in places]
    whole = count * into.numel() // max(torch.Size(taken).numel(), 1)
    yield from contiguous_copy_scratch(into, "self", aten_source_line(PUT, 655))
    if places != list(range(places[0], places[-1] + 1)):
        yield Scratch("transposed", tensor_bytes(into), aten_source_line(PUT, 681))
    if values.numel() < whole or not values.is_contiguous():
        yield Scratch("values", whole * values.element_size(), aten_source_line(PUT, 677))
    for name, line in (("linear_index", 682), ("sorted_indices", 683), ("orig_indices", 684), ("range", 699)):
        yield Scratch(name, count * LONG, aten_source_line(PUT, line))
    yield from other_half(count, LONG, LONG, max(torch.Size(taken).numel() - 1, 1).bit_length())


# ---- sorting -----------------------------------------------------------------------------------------------

SMALL_SORT = 4096  # native/cuda/Sort.h:10 should_use_small_sort: sorted in place
ONE_BY_ONE, FULL = 1_000_000, 128  # native/cuda/SortStable.cu:252-263
SORT, STABLE = "native/cuda/Sort.cpp", "native/cuda/SortStable.cu"


def sort_scratch(call: Call) -> Iterator[Scratch]:
    """aten.sort(self, dim=-1, descending) and aten.sort.stable(self, *, stable, dim=-1, descending)."""
    yield from _sort_dim_scratch(call.args[0], call.arg(1, "dim", -1))


def sort_stable(call: Call) -> Iterator[Scratch]:
    yield from _sort_dim_scratch(call.args[0], call.kwargs.get("dim", -1))


def _sort_dim_scratch(tensor: Tensor, dim: int) -> Iterator[Scratch]:
    if not tensor.numel() or not tensor.dim():
        return
    length, each = tensor.shape[dim], tensor.element_size()
    if length <= SMALL_SORT:
        yield Scratch("range", length * LONG, aten_source_line(SORT, 32))
        return
    if tensor.stride(dim) != 1 or not has_no_gaps(tensor):
        yield Scratch("self", tensor_bytes(tensor), aten_source_line(SORT, 98))
        yield Scratch("values", tensor_bytes(tensor), aten_source_line(SORT, 107))
        yield Scratch("indices", tensor.numel() * LONG, aten_source_line(SORT, 112))
    items = min(tensor.numel(), LAST // length * length)
    if items == length or length >= ONE_BY_ONE:
        yield Scratch("indices_of_one", length * LONG, aten_source_line(STABLE, 121))
        yield from other_half(length, each, LONG, 8 * each)
    elif items // length < FULL:
        for name, line in (("indices_and_segment", 150), ("indices_and_segment2", 161)):
            yield Scratch(name, items * 2 * INT, aten_source_line(STABLE, line))
        yield Scratch("keys_out", items * each, aten_source_line("cuda/cub-RadixSortPairs.cuh", 28))
        yield from other_half(items, each, 2 * INT, 8 * each)
    else:
        yield Scratch("reverse_indices", items * LONG, aten_source_line(STABLE, 198))
        yield Scratch("radix_sort", items * (each + LONG), SEGMENTED)


# ---- topk --------------------------------------------------------------------------------------------------

TOPK = "native/cuda/TensorTopK.cu"
THREADS, LEAST, MOST, DIGITS, REGISTERS = (
    256,
    4,
    64,
    256,
    40,
)  # TensorTopK.cu: BLOCK_THREADS, items a thread, RADIX_DIGITS, get_items_per_thread
SEVERAL_BLOCKS = (
    (20, 20000),
    (40, 10000),
    (80, 8000),
    (199, 5000),
    (799, 3000),
    (4000, 800),
)  # should_use_multiblock: up to so many slices


def topk_scratch(call: Call) -> Iterator[Scratch]:
    """aten.topk(self, k, dim=-1, …): several blocks a slice count digits. One block a slice, as of a router's
    few experts, needs nothing.
    """
    tensor = call.args[0]
    yield from contiguous_copy_scratch(tensor, "self", aten_source_line(TOPK, 1496))
    length = tensor.shape[call.arg(2, "dim", -1)] if tensor.dim() else 1
    slices = tensor.numel() // max(length, 1)
    least = next((least for most, least in SEVERAL_BLOCKS if slices <= most), 400)
    if not tensor.numel() or length < least:
        return
    running = call.card.sm_count * (call.card.registers // (REGISTERS * THREADS)) * THREADS
    items = max(LEAST, min(ceil_div(tensor.numel(), running), MOST))
    blocks, key = slices * ceil_div(length, items * THREADS), 8 if tensor.element_size() == LONG else 4
    yield Scratch("kth_values", slices * tensor.element_size(), aten_source_line(TOPK, 1341))
    yield Scratch("ks_to_find", 2 * slices * INT, aten_source_line(TOPK, 1347))
    yield Scratch("desired", 2 * slices * key, aten_source_line(TOPK, 1354))
    yield Scratch("counts", blocks * DIGITS * 2, aten_source_line(TOPK, 1357))
    yield Scratch("digit_cum_sum", slices * DIGITS * INT, aten_source_line(TOPK, 1364))
    yield Scratch("within_k_counts", blocks * INT, aten_source_line(TOPK, 1371))
    yield Scratch("kth_counts", blocks * INT, aten_source_line(TOPK, 1375))


# ---- scans and masks ---------------------------------------------------------------------------------------


def cumsum_scratch(call: Call) -> Iterator[Scratch]:
    """aten.cumsum(self, dim, dtype): a copy in the type of the result, or of what does not lie in order."""
    tensor, result = call.args[0], _first_output(call.outputs)
    if tensor.dtype is not result.dtype:
        yield Scratch(
            "cast", tensor.numel() * result.element_size(), aten_source_line("native/ReduceOps.cpp", 487)
        )
    if not tensor.is_contiguous():
        yield Scratch(
            "self", tensor.numel() * result.element_size(), aten_source_line("native/cuda/ScanUtils.cuh", 455)
        )
    length = tensor.shape[call.arg(1, "dim")] if tensor.dim() else 1
    if uses_deterministic_algorithms() and length == tensor.numel() and result.is_floating_point():
        block = 16 * (
            512 if result.element_size() < LONG else 256
        )  # cuda/cub.cuh block_threads, ITEMS_PER_THREAD
        yield Scratch(
            "block_sums",
            min(call.card.sm_count, ceil_div(length, block)) * result.element_size(),
            aten_source_line("cuda/cub.cuh", 463),
        )


def masked_scatter(call: Call) -> Iterator[Scratch]:
    """aten.masked_scatter(self, mask, source): where each element comes from, eight bytes an element of
    ``self``.
    """
    tensor, mask, values = call.args[:3]
    yield Scratch(
        "mask_prefix_sum", tensor.numel() * LONG, aten_source_line("native/cuda/IndexKernel.cpp", 78)
    )
    if mask.shape != tensor.shape or not mask.is_contiguous():
        yield Scratch(
            "mask", tensor.numel() * mask.element_size(), aten_source_line("native/cuda/IndexKernel.cu", 391)
        )
    yield from contiguous_copy_scratch(values, "source", aten_source_line("native/cuda/IndexKernel.cu", 409))


def multinomial_scratch(call: Call) -> Iterator[Scratch]:
    """aten.multinomial(self, num_samples, replacement): one sample, or none drawn twice, divides by
    exponential noise.
    """
    if call.arg(1, "num_samples") == 1 or not call.arg(2, "replacement", default=False):
        yield Scratch("noise", tensor_bytes(call.args[0]), aten_source_line("native/Distributions.cpp", 606))


def _first_output(outputs: Any) -> Tensor:
    tensor: Tensor = outputs[0] if isinstance(outputs, list | tuple) else outputs
    return tensor
