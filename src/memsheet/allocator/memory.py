"""Segments from the device and back to it, and all that is tried before a request fails.

Facts from pytorch/pytorch, v2.13.0, commit cf30153c4c131c8164ee7798e5022d810682e2cb,
c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left

from memsheet.allocator.blocks import ADDRESS_BITS, Block, Pool
from memsheet.allocator.pages import expand_segment, unmap_pages
from memsheet.allocator.settings import segment_bytes
from memsheet.allocator.state import Allocator


def grow_pool(allocator: Allocator, pool: Pool, size: int) -> Block | None:
    """A block of at least ``size`` bytes from the device, in no pool; None if all that torch tries fails
    (malloc, :1757-1792).

    First a collection, where one is set; then a new segment; then one after oversize blocks are returned;
    then one after everything that can be is returned, which counts as a retry.
    """
    collect_garbage(allocator)
    block = _allocate_segment(allocator, pool, size)
    if block is None and release_oversize(allocator, pool, size):
        block = _allocate_segment(allocator, pool, size)
    if block is None:
        release_all(allocator)
        allocator.retries += 1
        block = _allocate_segment(allocator, pool, size)
    return block


def _allocate_segment(allocator: Allocator, pool: Pool, size: int) -> Block | None:
    """alloc_block, :3843. The memory fraction is held against a whole segment even where only pages of one
    are mapped.
    """
    segment = segment_bytes(size, allocator.settings)
    if allocator.limit is not None and allocator.reserved + segment > allocator.limit:
        return None
    if allocator.expandable:
        return expand_segment(allocator, pool, size)
    if allocator.capacity is not None and allocator.reserved + segment > allocator.capacity:
        return None
    allocator.reserved += segment
    return allocator.segment(pool, segment)


# ---- back to the device ------------------------------------------------------------------------------------


def _release_segment(allocator: Allocator, block: Block) -> None:
    """A whole segment goes back: cudaFree (release_block)."""
    block.pool.take(block)
    allocator.reserved -= block.size
    del allocator.segments[id(block)]


def release_oversize(allocator: Allocator, pool: Pool, size: int) -> bool:
    """Return the smallest oversize block of this stream that is large enough, or else the largest ones until
    they add up.

    Whether it was enough; what was returned stays returned (release_available_cached_blocks, :4002). Only
    with max_split_size.
    """
    least = allocator.settings.max_split_size_bytes
    if least is None:
        return False
    wanted = max(size, least)
    if allocator.expandable:
        return False  # it releases no part of an expandable segment
    at = bisect_left(pool.keys, wanted << ADDRESS_BITS)
    if at < len(pool.keys):
        _release_segment(allocator, pool.blocks[pool.keys[at]])
        return True
    released = 0
    while released < wanted and pool.keys and (block := pool.blocks[pool.keys[-1]]).size >= least:
        released += block.size
        _release_segment(allocator, block)
    return released >= wanted


def release_all(allocator: Allocator) -> None:
    """Return every free whole segment, or every free whole page, once all streams have finished
    (release_cached_blocks, :4059).
    """
    allocator.settle(None)
    for pool in allocator.every_pool():
        for block in [pool.blocks[key] for key in pool.keys]:
            if allocator.expandable:
                unmap_pages(allocator, block)
            elif block.whole:
                _release_segment(allocator, block)


def collect_garbage(allocator: Allocator) -> None:
    """Return large segments that lay idle for at least the average time, until the threshold is kept
    (garbage_collect_cached_blocks, :3779).

    Time is counted in requests to the large pools since a block became free (gc_count, get_free_block :3713).
    Expandable segments are left alone. Without a limit, and so without a capacity, there is nothing to keep.
    """
    threshold, limit = allocator.settings.garbage_collection_threshold, allocator.limit
    if threshold is None or limit is None or allocator.expandable:
        return
    excess = allocator.reserved - int(threshold * limit)
    idle = [
        block
        for pool in allocator.every_pool()
        if not pool.small
        for block in pool.blocks.values()
        if block.whole
    ]
    while excess > 0 and idle:
        average = sum(allocator.clock - block.born for block in idle) / len(idle)
        for block in idle:
            if allocator.clock - block.born >= average:
                excess -= block.size
                _release_segment(allocator, block)
        idle = [block for block in idle if allocator.clock - block.born < average]
