"""Flash and memory-efficient attention: accumulators of the split forward, and what backward sums its
gradients in.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from memsheet.arith import ceil_div, round_up
from memsheet.frozen import dataclass, replace
from memsheet.trace.scratch.call import (
    FLOAT,
    HALF,
    Call,
    Card,
    Scratch,
    aten_source_line,
    contiguous_copy_scratch,
    largest_moment,
    strictly_deterministic,
)

HEADS_SECOND = (
    0,
    2,
    1,
    3,
)  # scaled_dot_product_attention has (batch, heads, length, width), the kernels (batch, length, heads, width)

FLASH = "native/transformers/cuda/flash_attn/flash_api.cpp"
LSE_ACCUM, OUT_ACCUM = aten_source_line(FLASH, 357), aten_source_line(FLASH, 358)  # set_params_splitkv
SOFTMAX_D, DQ_ACCUM, DQ_SPLITS, EXPANDED = (
    aten_source_line(FLASH, 962),
    aten_source_line(FLASH, 967),
    aten_source_line(FLASH, 970),
    aten_source_line(FLASH, 978),
)  # mha_bwd
BACKWARD = "native/transformers/cuda/attention_backward.cu"
FLASH_COPY, EFFICIENT_COPY, DELTA, WORKSPACE = (
    aten_source_line(BACKWARD, line) for line in (89, 394, 759, 913)
)
OUTPUT_ACCUM = aten_source_line("native/transformers/cuda/attention.cu", 1771)  # _efficient_attention_forward
ROWS = 128  # flash backward rounds the queries to this; the longest block it runs


# ---- flash -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heads:
    """Of an attention: sequences, heads of queries and of keys, the longest of each, the width of a head."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int

    @property
    def rounded(self) -> int:
        """flash_api.cpp head_size_rounded."""
        return round_up(self.width, 32 if self.width <= 128 else 64)

    @property
    def swapped(self) -> Heads:
        """One query a sequence: the heads of a group become queries of one head (seqlenq_ngroups_swapped)."""
        return replace(self, heads=self.kv_heads, queries=self.heads // self.kv_heads)


def _dense_attention_heads(query: Tensor, key: Tensor, *, heads_second: bool) -> Heads:
    length, heads = (2, 1) if heads_second else (1, 2)
    return Heads(
        query.shape[0],
        query.shape[heads],
        key.shape[heads],
        query.shape[length],
        key.shape[length],
        query.shape[3],
    )


def _varlen_attention_heads(query: Tensor, key: Tensor, starts: Tensor, longest: tuple[int, int]) -> Heads:
    return Heads(starts.numel() - 1, query.shape[1], key.shape[-2], *longest, query.shape[2])


def split_kv_count(blocks: int, processors: int, key_blocks: int, most: int = 128) -> int:
    """num_splits_heuristic: the fewest parts of the keys that keep the card nearly as busy as the best number
    does.
    """
    if blocks >= 0.8 * processors:
        return 1
    every = range(1, min(most, processors, key_blocks) + 1)
    fit = [n for n in every if n == 1 or ceil_div(key_blocks, n) != ceil_div(key_blocks, n - 1)]
    busy = {n: blocks * n / processors / ceil_div(blocks * n, processors) for n in fit}
    best = max(busy.values(), default=0)
    return next((n for n in fit if busy[n] >= 0.85 * best), 1)


def _split_kv_scratch(shape: Heads, card: Card, asked: int = 0) -> Iterator[Scratch]:
    """set_params_splitkv: partial outputs and statistics of each part of the keys."""
    block = 256 if shape.width <= 64 else 128 if shape.width <= 128 else 64
    blocks = shape.batch * shape.heads * ceil_div(shape.queries, 64)
    parts = asked if asked >= 1 else split_kv_count(blocks, 2 * card.sm_count, ceil_div(shape.keys, block))
    if parts > 1:
        rows = parts * shape.batch * shape.heads * shape.queries
        yield Scratch("softmax_lse_accum", rows * FLOAT, LSE_ACCUM)
        yield Scratch("out_accum", rows * shape.rounded * FLOAT, OUT_ACCUM)


def flash_forward(call: Call) -> Iterator[Scratch]:
    """aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, …). Dropout is never split."""
    if not call.arg(3, "dropout_p", 0.0):
        shape = _dense_attention_heads(call.args[0], call.args[1], heads_second=True)
        yield from _split_kv_scratch(
            shape.swapped if shape.queries == 1 and shape.heads > shape.kv_heads else shape, call.card
        )


def flash_forward_rows(call: Call) -> Iterator[Scratch]:
    """aten._flash_attention_forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, …),
    dense or packed.
    """
    query, key, starts = call.args[0], call.args[1], call.arg(3, "cum_seq_q")
    if call.arg(7, "dropout_p", 0.0):
        return
    packed = isinstance(starts, Tensor)
    longest = (call.arg(5, "max_q"), call.arg(6, "max_k"))
    shape = (
        _varlen_attention_heads(query, key, starts, longest)
        if packed
        else _dense_attention_heads(query, key, heads_second=False)
    )
    bounded = any(call.kwargs.get(f"window_size_{side}", -1) not in {-1, None} for side in ("left", "right"))
    one = (
        shape.queries == 1
        and shape.heads > shape.kv_heads
        and not bounded
        and call.kwargs.get("alibi_slopes") is None
    )
    if one or not packed or call.kwargs.get("block_table") is not None:
        yield from _split_kv_scratch(
            shape.swapped if one else shape, call.card, (packed and call.kwargs.get("num_splits")) or 0
        )


def _flash_backward_scratch(call: Call, shape: Heads, query_rows: int, key_rows: int) -> Iterator[Scratch]:
    """mha_bwd and mha_varlen_bwd, given rows of queries (rounded) and of keys over all sequences."""
    query = call.args[1]
    yield Scratch("softmax_d", query_rows * shape.heads * FLOAT, SOFTMAX_D)
    exact = strictly_deterministic()
    parts = ceil_div(call.card.sm_count, shape.batch * shape.heads) if exact else 1
    yield Scratch(
        "dq_accum", parts * query_rows * shape.heads * shape.rounded * FLOAT, DQ_SPLITS if exact else DQ_ACCUM
    )
    if shape.kv_heads != shape.heads:
        for name in ("dk_expanded", "dv_expanded"):
            yield Scratch(name, key_rows * shape.heads * shape.width * query.element_size(), EXPANDED)


def flash_backward(call: Call) -> Iterator[Scratch]:
    """aten._scaled_dot_product_flash_attention_backward(grad_out, query, key, value, out, …)."""
    yield from contiguous_copy_scratch(call.args[0], "grad_out", FLASH_COPY, HEADS_SECOND)
    yield from contiguous_copy_scratch(call.args[4], "out", FLASH_COPY, HEADS_SECOND)
    shape = _dense_attention_heads(call.args[1], call.args[2], heads_second=True)
    yield from _flash_backward_scratch(
        call, shape, shape.batch * round_up(shape.queries, ROWS), shape.batch * shape.keys
    )


def flash_backward_rows(call: Call) -> Iterator[Scratch]:
    """aten._flash_attention_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k,
    max_q, max_k, …).
    """
    query, key, starts = call.args[1], call.args[2], call.arg(6, "cum_seq_q")
    yield from contiguous_copy_scratch(call.args[0], "grad_out", FLASH_COPY)
    yield from contiguous_copy_scratch(call.args[4], "out", FLASH_COPY)
    if isinstance(starts, Tensor):
        shape = _varlen_attention_heads(query, key, starts, (call.arg(8, "max_q"), call.arg(9, "max_k")))
        yield from _flash_backward_scratch(call, shape, query.shape[0] + ROWS * shape.batch, key.shape[0])
    else:
        shape = _dense_attention_heads(query, key, heads_second=False)
        yield from _flash_backward_scratch(
            call, shape, shape.batch * round_up(shape.queries, ROWS), shape.batch * shape.keys
        )


# ---- memory-efficient --------------------------------------------------------------------------------------


def efficient_forward(call: Call) -> Iterator[Scratch]:
    """aten._scaled_dot_product_efficient_attention(query, key, value, …): heads wider than 128 are summed in
    global memory.

    mem_eff_attention/kernel_forward.h:118 kNeedsOutputAccumulatorBuffer, and the kernels of
    kernels/cutlassF.h from 8.0 on.
    """
    query, key, value = call.args[:3]
    if query.dtype in HALF and max(key.shape[-1], value.shape[-1]) > 128:
        batch, heads, length, _ = query.shape
        yield Scratch("output_accum", batch * length * heads * value.shape[-1] * FLOAT, OUTPUT_ACCUM)


@dataclass(frozen=True, slots=True)
class Tile:
    """A backward kernel: a block of queries, one of keys, the widest head it takes (kernels/cutlassB.h, from
    8.0 on).
    """

    queries: int
    keys: int
    widest: int


ANY = 65536


def efficient_kernel_tile(width: int, *, half: bool, dropout: bool, card: Card) -> Tile:
    """The first kernel that takes the width and fits shared memory; 128 queries do not where shared memory is
    small, by kernels/ (generate_kernels.py keeps blocks of 64 for those), but for one kernel of width 96.
    """
    if width <= 64:
        return Tile(64, 64, 64)
    if card.small_shared_memory:
        known = half and not dropout and width <= 96 and card.compute_capability[0] == 8
        return Tile(128, 64, 96) if known else Tile(64, 64, 128 if width <= 128 else ANY)
    if width <= 128:
        return Tile(128, 128 if half else 64, 128)
    return Tile(128, 64, ANY)


def key_splits(batch: int, heads: int, keys: int, block: int, *, staged: bool) -> int:
    """attention_backward.cu:871-910: into how many parts the keys are split."""
    parts = ceil_div(keys, block)
    if batch * heads >= 256 and keys <= 2 * block:
        parts = 1
    if staged:
        parts = min(parts, 200 // (batch * heads))
    return 1 if strictly_deterministic() else max(parts, 1)


def efficient_backward(call: Call) -> Iterator[Scratch]:
    """aten._scaled_dot_product_efficient_attention_backward(grad_out, query, key, value, attn_bias, out, …,
    dropout_p, …).

    mem_eff_attention/kernel_backward.h:856-889 workspace_size. The gradient of queries is summed in tiles of
    floats with 16 bytes each; those of keys and values too where a 16-bit kernel cannot hold a head in
    registers. Floats let ``delta`` be computed outside the kernel, by way of the product of both outputs.
    """
    query, key, value = call.args[1:4]
    batch, heads, queries, width = query.shape
    keys, value_width, half = key.shape[2], value.shape[3], query.dtype in HALF
    block = efficient_kernel_tile(
        max(width, value_width), half=half, dropout=bool(call.arg(9, "dropout_p", 0.0)), card=call.card
    )
    staged = half and block.widest > block.queries
    parts = key_splits(batch, heads, keys, block.keys, staged=staged)
    tiles = ceil_div(queries, block.queries) * ceil_div(width, block.keys)
    floats = tiles * (block.queries * block.keys + 4)
    if staged:
        floats += parts * block.keys * (round_up(width, block.queries) + round_up(value_width, block.queries))
    workspace = Scratch("workspace", batch * heads * round_up(floats, 4) * FLOAT, WORKSPACE)
    statistics = batch * heads * queries * FLOAT
    delta = Scratch("delta", statistics, DELTA)
    product = Scratch("out_times_grad", batch * heads * queries * value_width * FLOAT, DELTA)
    yield from contiguous_copy_scratch(call.args[0], "grad_out", EFFICIENT_COPY, HEADS_SECOND)
    yield from largest_moment(
        (workspace, delta), () if half else (product, Scratch("row_sums", statistics, DELTA), delta)
    )
