"""What one device's allocator knows between two calls.

Facts from pytorch/pytorch, v2.13.0, commit cf30153c4c131c8164ee7798e5022d810682e2cb,
c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.allocator.blocks import NEVER, Block, Pool, put_back
from memsheet.allocator.settings import SMALL, Settings


class Allocator:
    """``capacity`` is what the device gives, in bytes, None for no end; ``reserved`` is what it has given so
    far.

    ``allocated`` counts whole blocks, as torch.cuda.memory_allocated does. ``limit`` is a memory fraction's
    share of the capacity. ``clock`` counts requests to the large pools; a whole segment's block remembers
    when it became free (gc_count).
    """

    __slots__ = (
        "allocated", "capacity", "clock", "expandable", "limit", "oversize", "pending", "pools", "reserved", "retries", "rounding",
        "segments", "settings",
    )  # fmt: skip

    def __init__(self, settings: Settings, capacity: int | None = None) -> None:
        self.settings, self.capacity = settings, capacity
        fraction = settings.per_process_memory_fraction
        self.limit = (
            None if capacity is None or fraction == 1 else int(fraction * capacity + 0.5)
        )  # setMemoryFraction, :2550
        self.oversize = NEVER if settings.max_split_size_bytes is None else settings.max_split_size_bytes
        self.rounding, self.expandable = settings.rounding_bytes, settings.expandable_segments
        self.reserved = self.allocated = self.retries = self.clock = 0
        self.pools: dict[int, tuple[Pool, Pool]] = {}
        self.segments: dict[int, Block] = {}  # the first block of each, by identity
        self.pending: list[tuple[int, Block]] = []

    def pool(self, stream: int, size: int) -> Pool:
        """The pool that serves blocks of ``size`` bytes on ``stream`` (get_pool, :3644)."""
        if stream not in self.pools:
            self.pools[stream] = (Pool(self.settings, small=False), Pool(self.settings, small=True))
        return self.pools[stream][size <= SMALL]

    def every_pool(self) -> Iterator[Pool]:
        for pools in self.pools.values():
            yield from pools

    def segment(self, pool: Pool, size: int) -> Block:
        """Addresses for a new segment of ``size`` bytes, as one block in no pool."""
        block = Block(pool, pool.top, size)
        pool.top += size
        self.segments[id(block)] = block
        return block

    def settle(self, event: int | None) -> None:
        """Blocks become free whose other streams have finished at ``event`` (process_events).

        All of them where the allocator waits for that: None (synchronize_and_free_events).
        """
        due, self.pending = self.pending, []
        for until, block in due:
            if event is None or until <= event:
                put_back(block, self.clock)
            else:
                self.pending.append((until, block))
