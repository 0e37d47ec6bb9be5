"""Matrix products: the workspaces that stay, and the copies of operands that cuBLAS cannot read as they lie.

cuBLAS and cuBLASLt share one workspace a handle and stream (torch 2.13: ``unified_cublas_and_lt_workspaces``,
on by default), made by the caching allocator at the first product and kept until the end. A handle belongs to
a thread, and backward runs in the engine's own: so training keeps two a stream
(cuda/detail/DeviceThreadHandles.h). A later torch keeps none unless ``TORCH_CUBLAS_WORKSPACE_CACHE`` is set
(main, isCUDABlasWorkspaceCachingEnabled). ``CUBLAS_WORKSPACE_CONFIG``, ``CUBLASLT_WORKSPACE_SIZE`` and
``TORCH_CUBLASLT_UNIFIED_WORKSPACE`` are taken as unset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from memsheet.frozen import dataclass
from memsheet.sheet import FromCode
from memsheet.trace.scratch.call import Call, Scratch, aten_source_line, is_contiguous_layout, tensor_bytes

MATRIX, BATCH = (
    aten_source_line("native/cuda/cuBlasCommonArgs.h", 36),
    aten_source_line("native/cuda/Blas.cpp", 87),
)
CHOSEN = aten_source_line("cuda/CublasHandlePool.cpp", 182)  # parseChosenWorkspaceSize
LARGE_BYTES, SMALL_BYTES = 4096 * 8 * 1024, 4096 * 1024 * 2 + 16 * 1024 * 8
LARGE_FROM = frozenset({9, 10, 12})  # major compute capabilities


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that the first call makes and that stays: once a ``key``, thread and stream."""

    name: str
    key: str
    bytes: int
    evidence: FromCode


_NAMES = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "_addmm_activation", "_int_mm", "_scaled_mm", "_scaled_mm_v2",
)  # fmt: skip
PRODUCTS = frozenset(
    getattr(packet, overload)
    for packet in (getattr(torch.ops.aten, name, None) for name in _NAMES)
    if packet is not None
    for overload in packet.overloads()
)


def cublas_workspace(func: Any, args: Any, compute_capability: tuple[int, int] = (9, 0)) -> Workspace | None:
    """The workspace that an operation needs to be there, if it is a matrix product on a GPU."""
    if func not in PRODUCTS or not _on_gpu(args):
        return None
    size = LARGE_BYTES if compute_capability[0] in LARGE_FROM else SMALL_BYTES
    return Workspace("cublas", "cublas", size, CHOSEN)


def _on_gpu(args: Any) -> bool:
    return bool(args) and isinstance(args[0], Tensor) and args[0].device.type != "cpu"


# ---- operands ----------------------------------------------------------------------------------------------


def matrix_copy_scratch(call: Call, first: int) -> Iterator[Scratch]:
    """prepare_matrix_for_cublas: a matrix neither of whose dimensions is contiguous is copied."""
    for name, matrix in zip(("mat1", "mat2"), call.args[first : first + 2], strict=True):
        if not _is_blas_readable(matrix):
            yield Scratch(name, tensor_bytes(matrix), MATRIX)


def _is_blas_readable(matrix: Tensor) -> bool:
    (rows, columns), (down, along) = matrix.shape, matrix.stride()
    if is_contiguous_layout((rows, columns), (down, along)) or is_contiguous_layout(
        (columns, rows), (along, down)
    ):
        return True
    return (down == 1 and along >= max(1, rows)) or (along == 1 and down >= max(1, columns))


def batch_copy_scratch(call: Call, first: int) -> Iterator[Scratch]:
    """prepare_batch_matrix_for_cublas, for a contiguous result: (batch, m, n) seen by columns unless it has
    but one.
    """
    left, right = call.args[first : first + 2]
    m, k, n = left.shape[1], left.shape[2], right.shape[2]
    wanted = ((left, k, m), (right, n, k)) if n > 1 else ((left, m, k), (right, k, n))
    fast, leading = (2, 1) if n > 1 else (1, 2)
    for name, (batch, rows, columns) in zip(("batch1", "batch2"), wanted, strict=True):
        strides = batch.stride()
        plain = strides[fast] == 1 and strides[leading] >= max(1, rows)
        turned = strides[leading] == 1 and strides[fast] >= max(1, columns)
        if not (plain or turned or (batch.is_contiguous() and strides[1] and strides[2])):
            yield Scratch(name, tensor_bytes(batch), BATCH)
