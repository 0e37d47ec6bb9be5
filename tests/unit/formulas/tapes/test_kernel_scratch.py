"""What kernels allocate for themselves, in a step's script as in the trace's table."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from memsheet.formulas.tapes import kernel_scratch as own

torch = pytest.importorskip("torch")
from memsheet.trace.scratch import operation_scratch  # noqa: E402 - torch is there

aten = torch.ops.aten
DTYPES = (torch.bfloat16, torch.float32)


def empty(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def traced(func: Any, *args: Any, outputs: Any = None) -> int:
    """Without semaphores, of which formulas say that they are left out."""
    return sum(s.bytes for s in operation_scratch(func, args, {}, outputs) if s.name != "semaphores")


@pytest.mark.parametrize(
    ("batch", "length", "heads", "kv", "width"),
    [
        (1, 2048, 32, 8, 128),
        (4, 1000, 16, 16, 64),
        (2, 100, 12, 2, 256),
        (1, 512, 24, 8, 128),
        (1, 4096, 2, 1, 96),
    ],
)
def test_flash(batch: int, length: int, heads: int, kv: int, width: int) -> None:
    def rows(of: int) -> Any:
        return empty(batch, length, of, width).transpose(1, 2)

    q, k, out = rows(heads), rows(kv), rows(heads)
    func = aten._scaled_dot_product_flash_attention_backward.default
    assert own.flash_backward_bytes(2, batch, length, heads, kv, length, width) == traced(
        func, out, q, k, k, out
    )
    forward = aten._scaled_dot_product_flash_attention.default
    assert own.flash_split_bytes(2, batch, length, heads, length, width) == traced(forward, q, k, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "value"), [(64, 64), (128, 128), (80, 96), (192, 128), (256, 256)])
@pytest.mark.parametrize(("batch", "length", "heads"), [(1, 2048, 16), (16, 200, 32), (3, 77, 12)])
def test_efficient(batch: int, length: int, heads: int, width: int, value: int, dtype: Any) -> None:
    def rows(of: int) -> Any:
        return empty(batch, length, heads, of, dtype=dtype).transpose(1, 2)

    q, v = rows(width), rows(value)
    func = aten._scaled_dot_product_efficient_attention_backward.default
    shape = (dtype.itemsize, batch, length, heads)
    found = own.efficient_backward_bytes(*shape, length, width, value)
    assert found == traced(func, v, q, q, v, None, v)
    forward = aten._scaled_dot_product_efficient_attention.default
    assert own.efficient_forward_bytes(*shape, width, value) == traced(forward, q, q, v)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_rows(dtype: Any) -> None:
    """Of biases and of weights that were broadcast; more than 2 GiB, too."""
    found = []
    for rows, columns in itertools.product((7, 300, 2048, 8192, 65536), (30, 770, 768, 4096, 16384, 50257)):
        size = own.column_sum_bytes(dtype.itemsize, rows, columns)
        made = traced(
            aten.sum.dim_IntList,
            empty(rows, columns, dtype=dtype),
            [0],
            True,
            outputs=empty(1, columns, dtype=dtype),
        )
        assert size == made or made - size == columns * 4, (
            rows,
            columns,
        )  # summed in parts: what those add up in
        found.append(size)
    assert any(found)
    assert not all(found)


@pytest.mark.parametrize(("rows", "width"), [(65536, 768), (131072, 768), (70000, 128), (131072, 4096)])
def test_layer_norm(rows: int, width: int) -> None:
    x, weight, line = empty(rows, width), empty(width), empty(rows, 1)
    func = aten.native_layer_norm_backward.default
    made = traced(func, x, x, [width], line, line, weight, weight, [True, True, True])
    assert own.layer_norm_backward_bytes(2, rows, width, 2) == made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "rows", "width"), [(3072, 32000, 64), (8192, 32000, 4096), (65536, 30, 768), (40000, 2, 64)]
)
def test_embedding(tokens: int, rows: int, width: int, dtype: Any) -> None:
    grad, words = empty(1, tokens, width, dtype=dtype), empty(1, tokens, dtype=torch.int64)
    func = aten.embedding_dense_backward.default
    assert own.embedding_backward_bytes(dtype.itemsize, tokens, rows, width) == traced(
        func, grad, words, rows, -1, False
    )
