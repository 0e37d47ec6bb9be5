"""What CUDA kernels allocate inside one operation: a recording of tensors does not have it, the
script of a step does.

Read in torch 2.13.0, for a card with an H100's multiprocessors (132, of 2,048 threads each) and shared memory
of 160 KiB or more. Not counted: histograms and tile states of cub's sorts, semaphores of reductions.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memsheet.arith import ceil_div, round_up
from memsheet.references import ATEN_KERNELS, formula
from memsheet.sheet import Cited

if TYPE_CHECKING:
    from memsheet.formulas.tapes.evaluate import Axes
    from memsheet.formulas.tapes.tape import Axis, KernelScratch, Shape

FLOAT, LONG = 4, 8  # bytes
MULTIPROCESSORS, THREADS = 132, 2048
BACKWARD_SCRATCH = Cited(ATEN_KERNELS, "what attention, sums and look-ups allocate inside their backward")


def kernel_scratch_bytes(kernel: KernelScratch, axes: Axes) -> int:
    """Bytes of a kernel's own, given the values of axes."""

    def value(operand: Axis | Shape) -> int:
        if isinstance(operand, tuple):
            return prod(value(axis) for axis in operand)
        return int(operand if isinstance(operand, int) else axes[operand])

    return kernel.size(int(kernel.dtype.nbytes(1)), *(value(operand) for operand in kernel.axes))


@formula(
    cites=ATEN_KERNELS,
    at="native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd: softmax_d, dq_accum, dk_expanded, "
    "dv_expanded",
    counts="int",
)
def flash_backward_bytes(
    element: int, batch: int, queries: int, heads: int, kv_heads: int, keys: int, width: int
) -> int:
    """Flash attention's backward: a sum a row and the gradient of queries in fp32, rows rounded to 128 and
    the width of a head to 32 (64 above 128); gradients of keys and values for every query head where those
    have fewer.
    """
    rows = batch * round_up(queries, 128) * heads
    floats = rows * (1 + round_up(width, 32 if width <= 128 else 64))
    expanded = 2 * batch * keys * heads * width * element if kv_heads != heads else 0
    return FLOAT * floats + expanded


@formula(
    cites=ATEN_KERNELS,
    at="native/transformers/cuda/flash_attn/flash_api.cpp, num_splits_heuristic and set_params_splitkv: "
    "softmax_lse_accum, out_accum",
    counts="int",
)
def flash_split_bytes(element: int, batch: int, queries: int, heads: int, keys: int, width: int) -> int:
    """Flash attention's forward where queries are too few to keep the card busy: keys are split into parts,
    the fewest that are nearly as good as the best number, with a result and a statistic each in fp32.
    """
    del element
    key_blocks = ceil_div(keys, 256 if width <= 64 else 128 if width <= 128 else 64)
    blocks, places = batch * heads * ceil_div(queries, 64), 2 * MULTIPROCESSORS
    if blocks >= 0.8 * places:
        return 0
    every = range(1, min(128, places, key_blocks) + 1)
    fit = [n for n in every if n == 1 or ceil_div(key_blocks, n) != ceil_div(key_blocks, n - 1)]
    busy = {n: blocks * n / places / ceil_div(blocks * n, places) for n in fit}
    most = max(busy.values(), default=0)
    parts = next((n for n in fit if busy[n] >= 0.85 * most), 1)
    rounded = round_up(width, 32 if width <= 128 else 64)
    return parts * batch * heads * queries * (1 + rounded) * FLOAT if parts > 1 else 0


@formula(
    cites=ATEN_KERNELS,
    at="native/transformers/cuda/attention.cu, _efficient_attention_forward: output_accum; "
    "mem_eff_attention/kernel_forward.h, kNeedsOutputAccumulatorBuffer",
    counts="int",
)
def efficient_forward_bytes(
    element: int, batch: int, queries: int, heads: int, width: int, value_width: int
) -> int:
    """The memory-efficient kernel's forward: heads wider than 128 are summed in fp32 in global memory."""
    wide = element < FLOAT and max(width, value_width) > 128
    return batch * queries * heads * value_width * FLOAT if wide else 0


@formula(
    cites=ATEN_KERNELS,
    at="native/transformers/cuda/mem_eff_attention/kernel_backward.h, workspace_size; "
    "attention_backward.cu, _efficient_attention_backward: num_splits_key, delta, workspace",
    counts="int",
)
def efficient_backward_bytes(
    element: int, batch: int, queries: int, heads: int, keys: int, width: int, value_width: int
) -> int:
    """The memory-efficient kernel's backward: the gradient of queries in tiles of fp32 with 16 bytes each;
    those of keys and values, in as many parts as keys are split into, where a 16-bit kernel cannot hold a
    head; and a sum a row. fp32 multiplies the result by its gradient for that, in a tensor of its own.
    """
    widest, half = max(width, value_width), element < FLOAT
    block_q = 64 if widest <= 64 else 128
    block_k = 128 if half and 64 < widest <= 128 else 64
    floats = ceil_div(queries, block_q) * ceil_div(width, block_k) * (block_q * block_k + 4)
    if half and widest > 128:
        parts = ceil_div(keys, block_k)
        if batch * heads >= 256 and keys <= 2 * block_k:
            parts = 1
        parts = max(1, min(parts, 200 // (batch * heads)))
        floats += parts * block_k * (round_up(width, block_q) + round_up(value_width, block_q))
    workspace, rows = batch * heads * round_up(floats, 4), batch * heads * queries
    return FLOAT * (workspace + rows if half else max(workspace + rows, rows * (value_width + 2)))


@formula(
    cites=ATEN_KERNELS,
    at="native/cuda/Reduce.cuh, setReduceConfig, ReduceConfig::global_memory_size and set_block_dimension",
    counts="int",
)
def column_sum_bytes(element: int, rows: int, columns: int) -> int:
    """A sum over the rows of a matrix, as a bias's gradient is: partial sums of blocks that share a column,
    for which each column takes the width of a block once more. A matrix of 2 GiB or more is summed in parts.
    """
    while rows > 1 and 1 + (rows * columns - 1) * element > _LARGEST:
        rows = ceil_div(rows, 2)
    vector = next(size for size in (4, 2, 1) if columns % size == 0)
    most = 512 // vector
    wide, high = (min(most, 1 << max(n, 1).bit_length() - 1) for n in (columns // vector, rows))
    height = min(high, most // min(wide, 32))
    width = min(wide, most // height)
    each, grid = ceil_div(rows, height), ceil_div(columns // vector, width)
    wanted = MULTIPROCESSORS * (THREADS // (width * height))
    if rows < min(height * 16, _VALUES) or each < _VALUES or grid > wanted:
        return 0
    blocks = max(min(ceil_div(wanted, grid), ceil_div(each, _LEAST_VALUES)), ceil_div(each, _VALUES))
    return FLOAT * columns * blocks * width * vector if blocks > 1 else 0


_VALUES, _LEAST_VALUES = 256, 16  # max_reduce_multiplier of a thread's values, min_values_per_thread
_LARGEST = 2**31 - 1  # a tensor iterator's largest offset that a kernel can hold


@formula(
    cites=ATEN_KERNELS,
    at="native/cuda/layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel: dgamma_blocks, dbeta_blocks",
    counts="int",
)
def layer_norm_backward_bytes(element: int, rows: int, width: int, weights: int) -> int:
    """Layer norm's backward over many short rows: each block keeps its sum of the weights' gradients."""
    if rows <= 64 * 1024 or width // 32 >= MULTIPROCESSORS // 2:
        return 0
    blocks = min(32 * 1024 // ceil_div(width, 32), ceil_div(rows, 32))
    return weights * blocks * width * element


@formula(
    cites=ATEN_KERNELS,
    at="native/cuda/Embedding.cu, embedding_dense_backward_cuda; EmbeddingBackwardKernel.cu, "
    "embedding_backward_cuda_kernel",
    counts="int",
)
def embedding_backward_bytes(element: int, tokens: int, rows: int, width: int) -> int:
    """The gradient of a table: above 3,072 tokens they are sorted, and what belongs to a row is summed by
    tens in fp32. Tokens are taken for different ones as far as there are rows.
    """
    if tokens <= 3072:
        return 0
    segments = min(tokens, rows)
    parts = tokens // 10 + segments
    sorting = 5 * tokens * LONG  # both orders, the range, the other half of keys and values
    places = (3 * tokens + 2 * segments + parts) * LONG
    warped = round_up(width, 32)
    grid = ceil_div(segments * warped, min(warped, 1024))
    if grid < MULTIPROCESSORS * 4 and parts > grid * 4:
        return max(sorting, places + parts * LONG + (rows * width * FLOAT if element < FLOAT else 0))
    return max(sorting, places + parts * width * FLOAT)
