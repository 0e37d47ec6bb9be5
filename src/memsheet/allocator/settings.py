"""How the caching allocator is set: the keys of ``PYTORCH_ALLOC_CONF`` that decide sizes, and the sizes they
decide.

Facts from pytorch/pytorch, v2.13.0, commit cf30153c4c131c8164ee7798e5022d810682e2cb:
c10/core/AllocatorConfig.h and .cpp (parsing, constants), c10/cuda/CUDAAllocatorConfig.h (further keys),
c10/cuda/CUDACachingAllocator.cpp (sizes).
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.errors import Problem, raise_if_problems
from memsheet.frozen import dataclass
from memsheet.units import MIB

ROUNDING = 512
"""kMinBlockSize: every size is a multiple of it. c10/core/AllocatorConfig.h:18."""
SMALL = MIB
"""kSmallSize: up to here a request is served from the small pool. c10/core/AllocatorConfig.h:20."""
SMALL_SEGMENT = 2 * MIB
"""kSmallBuffer: what the small pool takes from the device at a time. c10/core/AllocatorConfig.h:16."""
LARGE = 10 * MIB
"""kMinLargeAlloc: requests below it share segments of ``large_segment_bytes``. c10/core/AllocatorConfig.h:22.
"""
LARGE_ROUNDING = 2 * MIB
"""kRoundLarge: from ``LARGE`` on, each request gets a segment of its own, rounded up to this.
c10/core/AllocatorConfig.h:24.
"""
LARGE_SEGMENT = 20 * MIB
"""large_segment_size_: 20971520. c10/core/AllocatorConfig.h:339."""
INTERVALS = 16
"""kRoundUpPowerOfTwoIntervals: roundup_power2_divisions has one entry a power of two from 1 MiB on, the last
for all above.
"""
FIRST_INTERVAL = 20  # kRoundUpPowerOfTwoStart is 1 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Bytes where torch's keys say MB, which are MiB. Raises InputError for values that torch refuses.

    ``garbage_collection_threshold`` acts only below a ``per_process_memory_fraction`` of 1: without a limit
    of its own the allocator collects nothing (CUDACachingAllocator.cpp:1758).
    ``max_non_split_rounding_bytes`` None is ``large_segment_bytes``.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    max_non_split_rounding_bytes: int | None = None
    large_segment_bytes: int = LARGE_SEGMENT
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    garbage_collection_threshold: float | None = None
    per_process_memory_fraction: float = 1.0

    def __post_init__(self) -> None:
        raise_if_problems(_settings_problems(self))

    @property
    def rounding_bytes(self) -> int:
        """How much larger than a request an oversize block may be that serves it."""
        return (
            self.large_segment_bytes
            if self.max_non_split_rounding_bytes is None
            else self.max_non_split_rounding_bytes
        )


def _settings_problems(settings: Settings) -> Iterator[Problem]:
    """What AllocatorConfig.cpp and CUDAAllocatorConfig.cpp refuse, named by torch's keys."""
    least = settings.large_segment_bytes
    if least <= LARGE:
        yield Problem(
            field="large_segment_size_mb", value=least // MIB, reason=f"must be more than {LARGE // MIB}"
        )
    for key, size in (
        ("max_split_size_mb", settings.max_split_size_bytes),
        ("max_non_split_rounding_mb", settings.rounding_bytes),
    ):
        if size is not None and size < least:
            yield Problem(
                field=key,
                value=size // MIB,
                reason=f"must be at least {least // MIB}, the size of a large segment",
            )
    divisions = settings.roundup_power2_divisions
    if len(divisions) != INTERVALS or any(n < 0 or n & (n - 1) for n in divisions):
        yield Problem(
            field="roundup_power2_divisions",
            value=divisions,
            reason=f"must be {INTERVALS} powers of two, or 0 for none",
        )
    threshold = settings.garbage_collection_threshold
    if threshold is not None and not 0 < threshold < 1:
        yield Problem(
            field="garbage_collection_threshold",
            value=threshold,
            reason="must lie between 0 and 1, both excluded",
        )
    fraction = settings.per_process_memory_fraction
    if not 0 < fraction <= 1:
        yield Problem(
            field="per_process_memory_fraction",
            value=fraction,
            reason="must be more than 0, which allows nothing, and at most 1",
        )


def block_bytes(size: int, settings: Settings) -> int:
    """The block that ``size`` requested bytes take; 0 for 0, which torch never asks its pools for.

    round_size, CUDACachingAllocator.cpp:3062: a multiple of 512, or the next of 2^k + i·2^k/divisions where
    divisions are set.
    """
    if size <= ROUNDING:
        return ROUNDING if size else 0
    interval = min(max(size.bit_length() - 1 - FIRST_INTERVAL, 0), INTERVALS - 1)
    divisions = settings.roundup_power2_divisions[interval]
    step = (
        (1 << size.bit_length() - 1) // divisions
        if divisions > 1 and size > ROUNDING * divisions
        else ROUNDING
    )
    return -(-size // step) * step


def segment_bytes(block: int, settings: Settings) -> int:
    """What is taken from the device to serve a block of ``block`` bytes that no free block serves.

    get_allocation_size, CUDACachingAllocator.cpp:3700.
    """
    if block <= SMALL:
        return SMALL_SEGMENT
    return settings.large_segment_bytes if block < LARGE else -(-block // LARGE_ROUNDING) * LARGE_ROUNDING
