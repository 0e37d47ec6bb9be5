"""Blocks of device memory, and the free ones of a pool in the order in which the allocator looks for them.

Facts from pytorch/pytorch, v2.13.0, commit cf30153c4c131c8164ee7798e5022d810682e2cb,
c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from memsheet.allocator.settings import ROUNDING, SMALL, SMALL_SEGMENT, Settings

BUSY, FREE, UNMAPPED = range(3)
"""Allocated, or released and still in use by another stream; in its pool; address space without memory behind
it.
"""
ADDRESS_BITS = 60  # of a key (size, address) in one integer
NEVER = 1 << 62


class Block:
    """A stretch of a segment. Its neighbours ``before`` and ``after`` in the segment touch it."""

    __slots__ = ("address", "after", "before", "born", "key", "pool", "size", "state")

    def __init__(self, pool: Pool, address: int, size: int) -> None:
        self.pool, self.address, self.size = pool, address, size
        self.before: Block | None = None
        self.after: Block | None = None
        self.state, self.key, self.born = BUSY, 0, 0

    @property
    def whole(self) -> bool:
        """Whether it is all of its segment: without expandable segments, only such blocks go back to the
        device (is_split).
        """
        return self.before is None and self.after is None


class Pool:
    """The free blocks of one stream, small or large, by (size, address), which is best fit (BlockPool and its
    comparator).

    Streams share no blocks. torch orders blocks of one size by the age of their segment first; here a younger
    segment lies higher.
    """

    __slots__ = ("blocks", "keeps", "keys", "page", "small", "splits_below", "top", "unmapped")

    def __init__(self, settings: Settings, *, small: bool) -> None:
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []  # by address
        self.small, self.top = small, 0
        self.page = (
            SMALL_SEGMENT if small else settings.large_segment_bytes
        )  # find_expandable_block, Note [Expandable Segments] :358
        # should_split, :3680: a rest of more than ``keeps`` is split off a block that serves less than
        # ``splits_below``
        fine = small or settings.expandable_segments
        self.keeps = ROUNDING - 1 if fine else SMALL
        self.splits_below = (
            NEVER if fine or settings.max_split_size_bytes is None else settings.max_split_size_bytes
        )

    def put(self, block: Block) -> None:
        """``block`` is free from now on."""
        block.state = FREE
        block.key = key = block.size << ADDRESS_BITS | block.address
        insort(self.keys, key)
        self.blocks[key] = block

    def take(self, block: Block) -> None:
        """``block`` is no longer free."""
        del self.keys[bisect_left(self.keys, block.key)]
        del self.blocks[block.key]
        block.state = BUSY


def split_block(block: Block, size: int) -> Block:
    """``block`` keeps its first ``size`` bytes; the rest is a block of its own, in no pool
    (alloc_found_block).
    """
    rest = Block(block.pool, block.address + size, block.size - size)
    rest.before, rest.after = block, block.after
    if block.after is not None:
        block.after.before = rest
    block.after, block.size = rest, size
    return rest


def merge_next_block(block: Block) -> None:
    """``block`` takes in the one after it, which is in no pool any more (try_merge_blocks)."""
    gone = block.after
    assert gone is not None
    block.size += gone.size
    block.after = gone.after
    if gone.after is not None:
        gone.after.before = block


def put_back(block: Block, now: int) -> Block:
    """A block that is no longer used goes to its pool, one with its free neighbours, and is returned
    (free_block, :3505).

    ``now`` is the clock by which its age is told.
    """
    pool, before, after = block.pool, block.before, block.after
    if after is not None and after.state == FREE:
        pool.take(after)
        merge_next_block(block)
    if before is not None and before.state == FREE:
        pool.take(before)
        merge_next_block(before)
        block = before
    block.born = now
    pool.put(block)
    return block
