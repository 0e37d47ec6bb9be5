"""The scratch of CUDA kernels, each row on an example worked by hand from the source that the row names. An
H100 has 132 multiprocessors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from memsheet.sheet import FromCode
from memsheet.trace.scratch import H100, ROWS, UNKNOWN, Card, cublas_workspace, operation_scratch
from memsheet.trace.scratch.attention import split_kv_count
from memsheet.trace.scratch.call import is_contiguous_layout
from memsheet.trace.scratch.reductions import Walk, coalesced_reduction_walk, reduction_buffer_bytes
from memsheet.units import KIB, MIB

aten = torch.ops.aten
BF16, FP32, LONG = torch.bfloat16, torch.float32, torch.int64
A10 = Card(sm_count=72, compute_capability=(8, 6), threads=1536)


def meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def run(func: Any, *args: Any, card: Card = H100, **kwargs: Any) -> dict[str, int]:
    """Run an operation on tensors without memory; what its kernel would allocate, by name."""
    return sizes(func, args, func(*args, **kwargs), kwargs, card)


def sizes(func: Any, args: Any, outputs: Any = None, kwargs: Any = None, card: Card = H100) -> dict[str, int]:
    parts = operation_scratch(func, args, kwargs or {}, outputs, card)
    assert all(
        isinstance(part.evidence, FromCode) and part.evidence.line > 0 and part.bytes > 0 for part in parts
    )
    assert len({part.name for part in parts}) == len(parts)
    return {part.name: part.bytes for part in parts}


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# ---- flash attention ---------------------------------------------------------------------------------------


def heads(batch: int, count: int, length: int, width: int, dtype: torch.dtype = BF16) -> Tensor:
    """As a projection leaves them: (batch, heads, length, width) seen, (batch, length, heads, width) in
    memory.
    """
    return meta(batch, length, count, width, dtype=dtype).transpose(1, 2)


def flash_backward(
    query: Tensor, key: Tensor, *, out: Tensor | None = None, grad: Tensor | None = None
) -> dict[str, int]:
    out = query if out is None else out
    args = (
        out if grad is None else grad,
        query,
        key,
        key,
        out,
        meta(1),
        None,
        None,
        0,
        0,
        0.0,
        True,
        meta(2),
        meta(1),
    )
    return sizes(aten._scaled_dot_product_flash_attention_backward.default, args)


def test_flash_backward_with_grouped_heads() -> None:
    assert flash_backward(heads(1, 32, 1000, 128), heads(1, 8, 1000, 128)) == {
        "softmax_d": 32 * 1024 * 4,
        "dq_accum": 1024 * 32 * 128 * 4,
        "dk_expanded": 1000 * 32 * 128 * 2,
        "dv_expanded": 1000 * 32 * 128 * 2,
    }


def test_flash_backward_with_equal_heads_expands_nothing() -> None:
    assert set(flash_backward(heads(2, 4, 128, 64), heads(2, 4, 128, 64))) == {"softmax_d", "dq_accum"}


@pytest.mark.parametrize(
    ("width", "rounded"), [(8, 32), (80, 96), (96, 96), (128, 128), (136, 192), (192, 192), (256, 256)]
)
def test_flash_backward_rounds_the_width(width: int, rounded: int) -> None:
    assert (
        flash_backward(heads(1, 2, 128, width), heads(1, 2, 128, width))["dq_accum"] == 128 * 2 * rounded * 4
    )


@pytest.mark.usefixtures("deterministic")
def test_flash_backward_deterministic_keeps_a_sum_for_each_split() -> None:
    assert (
        flash_backward(heads(1, 32, 128, 64), heads(1, 32, 128, 64))["dq_accum"] == 5 * 128 * 32 * 64 * 4
    )  # ceil(132 / 32)


def test_flash_backward_copies_what_does_not_lie_by_length() -> None:
    lying, other = heads(1, 4, 256, 64), meta(1, 4, 256, 64)
    once = 4 * 256 * 64 * 2
    assert "grad_out" not in flash_backward(lying, lying)
    found = flash_backward(lying, lying, out=other, grad=lying)
    assert found["out"] == once
    assert "grad_out" not in found
    assert flash_backward(lying, lying, out=other, grad=other)["grad_out"] == once


def test_flash_backward_of_packed_sequences() -> None:
    query, key, starts = meta(300, 4, 64), meta(300, 2, 64), meta(4, dtype=torch.int32)
    args = (query, query, key, key, query, meta(1), starts, starts, 200, 200, 0.0, True, meta(2), meta(1))
    rows = 300 + 128 * 3
    assert sizes(aten._flash_attention_backward.default, args) == {
        "softmax_d": 4 * rows * 4,
        "dq_accum": rows * 4 * 64 * 4,
        "dk_expanded": 300 * 4 * 64 * 2,
        "dv_expanded": 300 * 4 * 64 * 2,
    }


def test_flash_rows_and_heads_agree() -> None:
    query, key = heads(2, 8, 500, 64), heads(2, 4, 500, 64)
    rows = [x.transpose(1, 2) for x in (query, query, key, key, query)]
    args = (*rows, meta(1), None, None, 500, 500, 0.0, True, meta(2), meta(1))
    assert sizes(aten._flash_attention_backward.default, args) == flash_backward(query, key)


def flash_forward(query: Tensor, key: Tensor, dropout: float = 0.0) -> dict[str, int]:
    return sizes(aten._scaled_dot_product_flash_attention.default, (query, key, key, dropout))


def test_flash_forward_of_one_token_splits_a_long_cache() -> None:
    # 4 queries of 8 heads, 64 blocks of keys, 264 half processors: 32 splits make 256 blocks, and nothing
    # before comes to 85 % of that
    found = flash_forward(heads(1, 32, 1, 128), heads(1, 8, 8192, 128))
    assert found == {"softmax_lse_accum": 32 * 8 * 4 * 4, "out_accum": 32 * 8 * 4 * 128 * 4}


def test_flash_forward_in_training_is_not_split() -> None:
    assert flash_forward(heads(1, 32, 4096, 128), heads(1, 8, 4096, 128)) == {}
    assert flash_forward(heads(1, 32, 1, 128), heads(1, 8, 8192, 128), 0.1) == {}


def test_flash_forward_of_packed_sequences_is_split_only_for_single_queries() -> None:
    func, starts = aten._flash_attention_forward.default, meta(3, dtype=torch.int32)
    key = meta(4096, 8, 128)
    assert sizes(func, (meta(512, 32, 128), key, key, starts, starts, 256, 2048, 0.0, True, False)) == {}
    single = (meta(2, 32, 128), key, key, starts, starts, 1, 2048, 0.0, True, False)
    assert set(sizes(func, single)) == {"softmax_lse_accum", "out_accum"}
    assert sizes(func, single, kwargs={"num_splits": 1}) == {}


def test_splits_are_ones_that_differ() -> None:
    assert split_kv_count(300, 264, 64) == 1
    assert split_kv_count(48, 108, 64) == 2  # the source's own example: efficiencies .89 and .67 for 2 and 3
    assert all(
        -(-64 // n) != -(-64 // (n - 1)) for n in (split_kv_count(b, 264, 64) for b in range(1, 210)) if n > 1
    )


# ---- memory-efficient attention ----------------------------------------------------------------------------


def efficient_backward(
    query: Tensor, key: Tensor, value: Tensor, card: Card = H100, dropout: float = 0.0
) -> dict[str, int]:
    out = (
        torch.empty_like(query[..., :1].transpose(1, 2))
        .expand(-1, -1, -1, value.shape[-1])
        .contiguous()
        .transpose(1, 2)
    )
    args = (out, query, key, value, None, out, meta(1), meta(1), meta(1), dropout, [True] * 4, False)
    return sizes(aten._scaled_dot_product_efficient_attention_backward.default, args, card=card)


def test_efficient_forward_sums_wide_heads_in_floats() -> None:
    func = aten._scaled_dot_product_efficient_attention.default
    query, value = heads(2, 4, 100, 192), heads(2, 4, 100, 128)
    assert sizes(func, (query, query, value, None, True)) == {"output_accum": 2 * 100 * 4 * 128 * 4}
    assert sizes(func, (value, value, value, None, True)) == {}
    wide = heads(2, 4, 100, 192, FP32)
    assert sizes(func, (wide, wide, wide, None, True)) == {}


def test_efficient_backward_sums_queries_in_tiles() -> None:
    x = heads(1, 2, 128, 64)
    assert efficient_backward(x, x, x) == {"workspace": 2 * (2 * (64 * 64 + 4)) * 4, "delta": 2 * 128 * 4}
    x = heads(1, 2, 100, 128)  # one tile of 128 by 128
    assert efficient_backward(x, x, x)["workspace"] == 2 * (128 * 128 + 4) * 4


def test_efficient_backward_of_wide_heads_sums_keys_and_values_too() -> None:
    query, value = heads(1, 2, 256, 192), heads(1, 2, 256, 128)
    queries, parts = 2 * 3 * (128 * 64 + 4), 4
    assert (
        efficient_backward(query, query, value)["workspace"] == 2 * (queries + parts * 64 * (256 + 128)) * 4
    )


def test_efficient_backward_where_shared_memory_is_small() -> None:
    x = heads(1, 2, 128, 128)
    queries, parts = 2 * 2 * (64 * 64 + 4), 2
    assert efficient_backward(x, x, x, A10)["workspace"] == 2 * (queries + parts * 64 * (128 + 128)) * 4
    x = heads(1, 2, 128, 96)
    assert efficient_backward(x, x, x, A10)["workspace"] == 2 * 2 * (128 * 64 + 4) * 4
    assert (
        efficient_backward(x, x, x, A10, dropout=0.1)["workspace"]
        > efficient_backward(x, x, x, A10)["workspace"]
    )


def test_efficient_backward_of_floats_multiplies_outside_the_kernel() -> None:
    x = heads(1, 2, 64, 32, FP32)  # a tile of 64 by 64 is more than the product of 64 by 32
    assert efficient_backward(x, x, x) == {"workspace": 2 * (64 * 64 + 4) * 4, "delta": 2 * 64 * 4}
    query, value = heads(1, 2, 64, 64, FP32), heads(1, 2, 64, 128, FP32)
    assert efficient_backward(query, query, value) == {
        "out_times_grad": 2 * 64 * 128 * 4,
        "row_sums": 2 * 64 * 4,
        "delta": 2 * 64 * 4,
    }


# ---- indices -----------------------------------------------------------------------------------------------


def embedding(
    count: int, rows: int, width: int, dtype: torch.dtype = BF16, *, by_frequency: bool = False
) -> dict[str, int]:
    args = (meta(count, width, dtype=dtype), meta(count, dtype=LONG), rows, -1, by_frequency)
    return run(aten.embedding_dense_backward.default, *args)


def test_embedding_backward_sums_rows_by_tens() -> None:
    parts = 4096 // 10 + 4096
    assert embedding(4096, 128256, 4096) == {
        "sorted_indices": 4096 * 8,
        "orig_indices": 4096 * 8,
        "segment_offsets": 4096 * 8,
        "partials_per_segment": 4096 * 8,
        "partials_per_segment_offset": 4096 * 8,
        "partial_segment_offset": parts * 8,
        "grad_weight_per_segment": parts * 4096 * 4,
    }
    assert embedding(4096, 128256, 4096, FP32) == embedding(4096, 128256, 4096)  # floats either way


def test_embedding_backward_of_few_tokens_needs_nothing() -> None:
    assert embedding(3072, 128256, 4096) == {}
    assert "count" in embedding(3072, 128256, 4096, by_frequency=True)


def test_embedding_backward_of_few_rows_is_most_while_it_sorts() -> None:
    assert embedding(4096, 2, 768) == {
        "sorted_indices": 32768,
        "orig_indices": 32768,
        "range": 32768,
        "radix_sort": 65536,
    }


def test_embedding_backward_of_few_rows_adds_atomically() -> None:
    found = embedding(
        131072, 512, 1024
    )  # 512 rows of 1,024: 512 blocks, fewer than 4 a multiprocessor, and 13,619 parts
    assert found["grad_weight_acc"] == 512 * 1024 * 4
    assert "grad_weight_per_segment" not in found
    assert "grad_weight_acc" not in embedding(131072, 512, 1024, FP32)


@pytest.mark.usefixtures("deterministic")
def test_embedding_backward_deterministic_never_adds_atomically() -> None:
    assert embedding(131072, 512, 1024)["grad_weight_per_segment"] == (13107 + 512) * 1024 * 4


def test_index_put_sorts_only_to_accumulate() -> None:
    into, index, values = meta(1000, 64), meta(512, dtype=LONG), meta(512, 64)
    once = 512 * 8
    assert run(aten.index_put.default, into, [index], values, accumulate=True) == {
        "linear_index": once,
        "sorted_indices": once,
        "orig_indices": once,
        "range": once,
        "radix_sort": 2 * once,
    }
    assert run(aten.index_put.default, into, [index], values) == {}


def test_index_put_into_few_rows_sorts_in_one_pass() -> None:
    assert "radix_sort" not in run(
        aten.index_put_.default, meta(256, 64), [meta(512, dtype=LONG)], meta(512, 64), True
    )
    assert "radix_sort" in run(
        aten.index_put_.default, meta(257, 64), [meta(512, dtype=LONG)], meta(512, 64), True
    )


def test_index_put_copies_values_that_are_spread() -> None:
    found = run(
        aten.index_put.default,
        meta(10, 1000, 64),
        [None, meta(512, dtype=LONG)],
        meta(512, 64),
        accumulate=True,
    )
    assert found["values"] == 10 * 512 * 64 * 2
    assert "transposed" in run(
        aten.index_put.default,
        meta(4, 5, 6),
        [meta(3, dtype=LONG), None, meta(3, dtype=LONG)],
        meta(3, 5),
        True,
    )


def test_sort() -> None:
    assert run(aten.sort.default, meta(8, 4096)) == {"range": 4096 * 8}
    assert run(aten.sort.default, meta(1, 128256, dtype=FP32)) == {
        "indices_of_one": 128256 * 8,
        "radix_sort": 128256 * 12,
    }
    items = 16 * 128256
    assert run(aten.sort.default, meta(16, 128256)) == {
        "indices_and_segment": items * 8,
        "indices_and_segment2": items * 8,
        "keys_out": items * 2,
        "radix_sort": items * 10,
    }
    assert run(aten.sort.stable, meta(200, 8192), stable=True) == {
        "reverse_indices": 200 * 8192 * 8,
        "radix_sort": 200 * 8192 * 10,
    }
    spread = run(aten.sort.default, meta(5000, 200), 0)
    assert (spread["self"], spread["values"], spread["indices"]) == (2_000_000, 2_000_000, 8_000_000)
    assert "self" not in run(aten.sort.default, meta(200, 5000).t(), 0)


def test_topk_of_a_router_needs_nothing_and_of_a_vocabulary_counts_digits() -> None:
    assert run(aten.topk.default, meta(8192, 128, dtype=FP32), 8) == {}
    assert run(aten.topk.default, meta(1, 128256, dtype=FP32), 50) == {  # 126 blocks of 1,024
        "kth_values": 4,
        "ks_to_find": 8,
        "desired": 8,
        "counts": 126 * 512,
        "digit_cum_sum": 1024,
        "within_k_counts": 504,
        "kth_counts": 504,
    }
    assert run(aten.topk.default, meta(128, 8192).t(), 8) == {"self": 128 * 8192 * 2}


def test_scans_and_masks() -> None:
    assert run(aten.cumsum.default, meta(8, 100, dtype=torch.bool), 1) == {"cast": 800 * 8}
    assert run(aten.cumsum.default, meta(8, 100, dtype=LONG).t(), 1) == {"self": 800 * 8}
    mask = meta(2, 100, 1, dtype=torch.bool).expand(2, 100, 64)
    assert run(aten.masked_scatter.default, meta(2, 100, 64), mask, meta(50, 64)) == {
        "mask_prefix_sum": 12800 * 8,
        "mask": 12800,
    }
    assert run(aten.multinomial.default, meta(4, 1000, dtype=FP32), 1) == {"noise": 16000}


@pytest.mark.usefixtures("deterministic")
def test_a_deterministic_scan_sums_blocks() -> None:
    assert sizes(aten.cumsum.default, (meta(10**6, dtype=FP32), 0), meta(1, dtype=FP32)) == {
        "block_sums": 123 * 4
    }  # of 8,192 each


# ---- lists, groups and norms -------------------------------------------------------------------------------


def test_lists_of_tensors() -> None:
    pair = [meta(65537), meta(10)]
    assert run(aten._foreach_norm.Scalar, pair, 2) == {"output_per_tensor": 2 * 2 * 4}
    assert sizes(aten._foreach_norm.Scalar, (pair, 3)) == {}
    # 13 rows of 4,096 floats are 104 blocks of 2,048 bytes, one row of one float is one
    assert run(aten._chunk_cat.default, [meta(100, 4096, dtype=FP32), meta(7, 1, dtype=FP32)], 0, 8) == {
        "packed": (12 + 2 + 105) * 8
    }
    out = [meta(8, 1024), meta(8, 2048)]
    parts = (meta(8, 3072), [1024, 2048], 1)  # 2,048 and 4,096 bytes: blocks 1 and 2
    assert sizes(aten.split_with_sizes_copy.out, parts, kwargs={"out": out}) == {"packed": (8 + 3 + 1) * 8}


def test_groups_of_matrices() -> None:
    args = (meta(512, 64), meta(9, 64, 128), meta(9, dtype=torch.int32))
    assert sizes(aten._grouped_mm.default, args) == {"group_arguments": 10 * 24 + 9 * 12 + 9 * 24}
    assert sizes(aten._grouped_mm.default, args, card=A10) == {}


def norm_backward(rows: int, width: int, mask: list[bool]) -> dict[str, int]:
    x, row, weight = meta(rows, width), meta(rows, 1, dtype=FP32), meta(width)
    return run(aten.native_layer_norm_backward.default, x, x, [width], row, row, weight, weight, mask)


def test_norms_of_many_short_rows_sum_by_blocks() -> None:
    blocks = 1024 * 1024 * 2  # 65,536 / 2 blocks, 32 of them across 1,024 columns
    assert norm_backward(131072, 1024, [True, True, True]) == {
        "dgamma_blocks": blocks,
        "dbeta_blocks": blocks,
    }
    assert norm_backward(131072, 1024, [True, True, False]) == {"dgamma_blocks": blocks}
    assert norm_backward(65536, 1024, [True, True, True]) == {}
    assert norm_backward(131072, 66 * 32, [True, True, True]) == {}
    x = meta(131072, 128)
    args = (x, x, [128], meta(131072, 1, dtype=FP32), meta(128), [True, True])
    assert sizes(aten._fused_rms_norm_backward.default, args) == {
        "dgamma_blocks": 4096 * 128 * 2
    }  # ceil(131072 / 32) blocks


# ---- reductions --------------------------------------------------------------------------------------------


def test_a_bias_gradient_asks_for_far_more_than_it_fills() -> None:
    # blocks of 32 columns by 4, four columns a thread: 32 blocks across, 66 down; 4 bytes x 4,096 outputs x
    # 66 x (32 x 4)
    found = run(aten.sum.dim_IntList, meta(8192, 4096), [0])
    assert found == {"partial_sums": 4 * 4096 * 66 * 128, "semaphores": 32 * 4}
    assert found["partial_sums"] == 132 * MIB


def test_a_whole_sum_shares_one_output() -> None:
    # one block of 512 threads, 32,768 values each: as many blocks as the card holds at once, 132 x 4
    assert run(aten.sum.default, meta(1 << 24, dtype=FP32)) == {"partial_sums": 4 * 528, "semaphores": 4}
    assert run(aten.linalg_vector_norm.default, meta(1 << 24, dtype=FP32)) == {
        "partial_sums": 4 * 528,
        "semaphores": 4,
    }
    assert run(aten.logsumexp.default, meta(8, 4096, dtype=FP32), [-1]) == {"exponentials": 4 * 8 * 4096}
    assert run(aten.argmax.default, meta(1 << 24, dtype=FP32)) == {"partial_sums": 16 * 528, "semaphores": 4}


def test_rows_of_a_norm_are_not_shared() -> None:
    assert run(aten.mean.dim, meta(1, 8192, 4096, dtype=FP32), [-1], True) == {}
    assert run(aten.var_mean.correction, meta(8192, 4096, dtype=FP32), [1]) == {}


def test_other_types_are_cast_whole() -> None:
    assert run(aten.sum.default, meta(4, 1000, dtype=torch.bool)) == {"cast": 4000 * 8}
    assert run(aten.sum.default, meta(4, 1000), dtype=FP32) == {}
    assert run(aten.any.default, meta(4, 1000, dtype=torch.bool)) == {}


def test_a_sum_too_large_for_one_launch_goes_on_in_floats() -> None:
    assert run(aten.sum.dim_IntList, meta(8192, 262144), [0])["accumulated"] == 262144 * 4
    assert "accumulated" not in run(aten.sum.dim_IntList, meta(8192, 262144, dtype=FP32), [0])


def test_a_reduction_sees_memory_not_shapes() -> None:
    whole = run(aten.sum.dim_IntList, meta(8192, 4096), [0])
    assert run(aten.sum.dim_IntList, meta(2, 4096, 4096), [0, 1]) == whole
    assert run(aten.sum.dim_IntList, meta(8192, 4096).t(), [1]) == whole
    assert run(aten.sum.dim_IntList, meta(8192, 1, 4096), [0, 1], True) == whole
    assert coalesced_reduction_walk((2, 3, 4), (12, 4, 1), (0, 1)) == Walk((6, 4), (4, 1), 1)
    assert coalesced_reduction_walk((2, 3, 4), (12, 4, 1), (0, 2)) == Walk((4, 2, 3), (1, 12, 4), 2)
    assert coalesced_reduction_walk((), (), ()) == Walk((), (), 0)


def test_a_larger_card_splits_more() -> None:
    shape = Walk((8192, 4096), (4096, 1), 1)
    found = [reduction_buffer_bytes(shape, 4, 4, Card(sm_count=count))[0] for count in (66, 132, 264)]
    assert found == sorted(found)
    assert found[0] < found[-1]


# ---- operands ----------------------------------------------------------------------------------------------


def test_operands_out_of_order_are_copied() -> None:
    turned = meta(64, 32).t()
    assert run(aten._softmax.default, turned, -1, False) == {"self": 4096}
    assert run(aten._softmax.default, meta(32, 64), -1, False) == {}
    assert run(aten.native_layer_norm.default, turned, [64], None, None, 1e-5) == {"input": 4096}
    assert run(aten._log_softmax_backward_data.default, turned, meta(32, 64), -1, BF16) == {
        "grad_output": 4096
    }
    assert run(
        aten.nll_loss_forward.default, meta(32, 64, dtype=FP32).t(), meta(64, dtype=LONG), None, 1, -100
    ) == {"self": 8192}


def test_matrices_that_cublas_reads_are_not_copied() -> None:
    left, right = meta(64, 32), meta(32, 16)
    assert run(aten.mm.default, left, right) == {}
    assert run(aten.mm.default, meta(32, 64).t(), meta(16, 32).t()) == {}
    assert run(aten.mm.default, meta(64, 64)[:, :32], right) == {}
    assert run(aten.mm.default, meta(64, 64)[:, ::2], right) == {"mat1": 64 * 32 * 2}
    assert run(aten.addmm.default, meta(16), left, meta(32, 1).expand(32, 16)) == {"mat2": 32 * 16 * 2}


def test_batches_that_cublas_reads_are_not_copied() -> None:
    left, right = meta(8, 64, 32), meta(8, 32, 16)
    assert run(aten.bmm.default, left, right) == {}
    assert run(aten.bmm.default, heads(8, 4, 64, 32)[:, 0], right) == {}
    assert run(aten.bmm.default, meta(8, 32, 64).transpose(1, 2), meta(8, 16, 32).transpose(1, 2)) == {}
    assert run(aten.bmm.default, meta(1, 64, 32).expand(8, 64, 32), right) == {}
    assert run(aten.bmm.default, meta(8, 64, 64)[..., ::2], right) == {"batch1": 8 * 64 * 32 * 2}
    assert run(aten.bmm.default, left, meta(8, 32, 1)) == {}


def test_dense_is_what_torch_calls_contiguous() -> None:
    views = (
        meta(2, 3),
        meta(2, 3).t(),
        meta(3, 1).t(),
        meta(4, 1, 5)[:, :, ::2],
        meta(0, 3),
        meta(2, 1).expand(2, 3),
        meta(),
    )
    assert [is_contiguous_layout(x.shape, x.stride()) for x in views] == [x.is_contiguous() for x in views]


# ---- workspaces --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "size"),
    [((8, 0), 8320 * KIB), ((9, 0), 32 * MIB), ((10, 0), 32 * MIB), ((12, 0), 32 * MIB)],
)
def test_a_product_makes_a_workspace(capability: tuple[int, int], size: int) -> None:
    found = cublas_workspace(aten.addmm.default, (meta(4), meta(4, 4), meta(4, 4)), capability)
    assert found is not None
    assert (found.key, found.bytes) == ("cublas", size)


def test_other_operations_make_no_workspace() -> None:
    assert cublas_workspace(aten.add.Tensor, (meta(4), meta(4))) is None
    assert cublas_workspace(aten.mm.default, (torch.empty(4, 4), torch.empty(4, 4))) is None


# ---- the table ---------------------------------------------------------------------------------------------


def test_nothing_on_the_host_or_without_a_row() -> None:
    x = torch.empty(8192, 16)
    assert operation_scratch(aten.sum.dim_IntList, (x, [0]), {}, x.sum(0)) == ()
    assert operation_scratch(aten.add.Tensor, (meta(4), meta(4)), {}, meta(4)) == ()
    assert operation_scratch(aten.arange.default, (4,), {}, meta(4)) == ()


def test_fake_tensors_of_a_card_are_like_those_without_memory() -> None:
    with FakeTensorMode():
        x = torch.empty(8192, 4096, dtype=BF16, device="cuda")
        found = operation_scratch(
            aten.sum.dim_IntList, (x, [0]), {}, torch.empty(4096, dtype=BF16, device="cuda")
        )
    assert {part.name: part.bytes for part in found} == run(aten.sum.dim_IntList, meta(8192, 4096), [0])


def test_what_is_unknown_is_named_as_torch_names_it_and_has_no_row() -> None:
    rows = {func._overloadpacket._qualified_op_name.replace("::", ".") for func in ROWS}
    assert not rows & set(UNKNOWN)
    for name, reason in UNKNOWN.items():
        assert hasattr(aten, name.removeprefix("aten.")), name
        assert reason
