"""What a row of the scratch table is asked with, what it answers with, and the few words every row uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from memsheet.frozen import dataclass
from memsheet.sheet import FromCode

RELEASE = "cf30153c4c131c8164ee7798e5022d810682e2cb"  # torch 2.13.0
FLOAT, LONG, INT = 4, 8, 4  # bytes
HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What sizes of scratch depend on besides an operation's arguments. The defaults are an H100's (SXM).

    ``threads`` and ``registers`` are those of one multiprocessor (CUDA C++ Programming Guide, technical
    specifications per compute capability); they are the same from 8.0 on but for the threads of 8.6, 8.7, 8.9
    and 12.x, which are 1,536.
    """

    sm_count: int = 132
    compute_capability: tuple[int, int] = (9, 0)
    threads: int = 2048
    registers: int = 65536

    @property
    def small_shared_memory(self) -> bool:
        """Whether a block gets about 100 KiB of shared memory and not 163 KiB or more: a smaller tile of some
        kernels runs then.
        """
        return self.compute_capability in {(8, 6), (8, 9)} or self.compute_capability[0] == 12


H100 = Card()


@dataclass(frozen=True, slots=True)
class Scratch:
    """One allocation that a kernel makes for itself: ``bytes`` as requested, and the line that makes it."""

    name: str
    bytes: int
    evidence: FromCode


@dataclass(frozen=True, slots=True)
class Call:
    """An operation that ran: its arguments, and what it returned."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    outputs: Any
    card: Card

    def arg(self, place: int, name: str, default: Any = None) -> Any:
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)


def aten_source_line(file: str, line: int) -> FromCode:
    """A line of torch below ``aten/src/ATen``."""
    return FromCode("pytorch/pytorch", RELEASE, f"aten/src/ATen/{file}", line)


def tensor_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def opmath_bytes(dtype: torch.dtype) -> int:
    """Bytes of the type that kernels compute in: float for 16 bits, else the type itself
    (ATen/OpMathType.h).
    """
    return FLOAT if dtype in HALF else dtype.itemsize


def is_contiguous_layout(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether sizes and strides are those of a contiguous tensor (c10/core/Contiguity.h: a dimension of one
    may have any stride).
    """
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return 0 in sizes
            expected *= size
    return True


def has_no_gaps(tensor: Tensor) -> bool:
    """Whether a tensor has no gaps, in whatever order its dimensions lie (is_non_overlapping_and_dense)."""
    order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), tensor.shape[d]), reverse=True)
    return is_contiguous_layout([tensor.shape[d] for d in order], [tensor.stride(d) for d in order])


def contiguous_copy_scratch(
    tensor: Any, name: str, evidence: FromCode, order: Sequence[int] = ()
) -> Iterator[Scratch]:
    """What ``contiguous()`` makes of a tensor, seen in another ``order`` of dimensions where one is given."""
    if not isinstance(tensor, Tensor):
        return
    sizes, strides = tensor.shape, tensor.stride()
    if order:
        sizes, strides = torch.Size(sizes[d] for d in order), tuple(strides[d] for d in order)
    if not is_contiguous_layout(sizes, strides):
        yield Scratch(name, prod(sizes) * tensor.element_size(), evidence)


def largest_moment(*moments: Iterable[Scratch]) -> tuple[Scratch, ...]:
    """Of an operation's moments, each what is there at once, the one that holds most."""
    return max((tuple(moment) for moment in moments), key=lambda parts: sum(part.bytes for part in parts))


def uses_deterministic_algorithms() -> bool:
    """torch.use_deterministic_algorithms(True), whether or not it only warns."""
    return torch.are_deterministic_algorithms_enabled()


def strictly_deterministic() -> bool:
    return uses_deterministic_algorithms() and not torch.is_deterministic_algorithms_warn_only_enabled()
