"""Blocks handed out and taken back.

Facts from pytorch/pytorch, v2.13.0, commit cf30153c4c131c8164ee7798e5022d810682e2cb,
c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from memsheet.allocator.blocks import ADDRESS_BITS, BUSY, UNMAPPED, Block, Pool, put_back, split_block
from memsheet.allocator.memory import grow_pool
from memsheet.allocator.state import Allocator


def allocate_block(allocator: Allocator, pool: Pool, size: int) -> Block | None:
    """A block for ``size`` bytes, rounded already; None where torch raises OutOfMemoryError (malloc,
    :1722).
    """
    block = _find_free_block(allocator, pool, size) or grow_pool(allocator, pool, size)
    if block is None:
        return None
    if block.size - size > pool.keeps and size < pool.splits_below:
        pool.put(split_block(block, size))
    allocator.allocated += block.size
    return block


def free_block(allocator: Allocator, block: Block, until: int | None = None) -> None:
    """``block`` is given back (free, :2474). Where other streams use it still (record_stream), it is free
    from event ``until`` on.
    """
    allocator.allocated -= block.size
    if until is None:
        put_back(block, allocator.clock)
    else:
        allocator.pending.append((until, block))


def play_requests(
    allocator: Allocator,
    events: Iterable[int],
    requests: Sequence[tuple[Pool, int]],
    blocks: list[Block | None],
) -> tuple[int, int] | None:
    """The most bytes reserved and the most in blocks that are in use while ``events`` are played: ``n`` makes
    request ``n`` (a pool and bytes, rounded; nothing for 0), ``~n`` releases it. None where memory runs out.
    ``blocks``: the block of each request that is alive.
    """
    most, most_held = allocator.reserved, allocator.allocated
    for event in events:
        if event < 0:
            if (gone := blocks[~event]) is not None:
                free_block(allocator, gone)
            continue
        pool, size = requests[event]
        if size:
            blocks[event] = block = allocate_block(allocator, pool, size)
            if block is None:
                return None
            most, most_held = max(most, allocator.reserved), max(most_held, allocator.allocated)
    return most, most_held


def _find_free_block(allocator: Allocator, pool: Pool, size: int) -> Block | None:
    """The smallest free block that is large enough, lowest first, out of its pool (get_free_block, :3710)."""
    if not pool.small:
        allocator.clock += 1
    keys = pool.keys
    at = bisect_left(keys, size << ADDRESS_BITS)
    if at == len(keys):
        return None
    block = _least_expandable(pool, at) if allocator.expandable else pool.blocks[keys[at]]
    # :3756: blocks of max_split_size and more serve only requests of that size, and not where too much would
    # lie idle
    if block.size >= allocator.oversize and (
        size < allocator.oversize or block.size >= size + allocator.rounding
    ):
        return None
    if allocator.expandable:
        pool.take(block)
    else:  # whose place is known
        del keys[at], pool.blocks[block.key]
        block.state = BUSY
    return block


def _least_expandable(pool: Pool, at: int) -> Block:
    """Best fit where a block counts with the unmapped addresses behind it (:3730): in order of size, the last
    before one that counts more.
    """
    keys, blocks = pool.keys, pool.blocks
    block = blocks[keys[at]]
    size = _expandable_size(block)
    for place in range(at + 1, len(keys)):
        following = blocks[keys[place]]
        larger = _expandable_size(following)
        if larger >= size:
            break
        block, size = following, larger
    return block


def _expandable_size(block: Block) -> int:
    after = block.after
    return block.size + after.size if after is not None and after.state == UNMAPPED else block.size
