"""Expandable segments: address space in which whole pages of memory are mapped and unmapped.

Facts from pytorch/pytorch, v2.13.0, commit cf30153c4c131c8164ee7798e5022d810682e2cb,
c10/cuda/CUDACachingAllocator.cpp, whose Note [Expandable Segments] (:325) says why.
"""

from __future__ import annotations

from bisect import insort

from memsheet.allocator.blocks import (
    BUSY,
    FREE,
    UNMAPPED,
    Block,
    Pool,
    merge_next_block,
    put_back,
    split_block,
)
from memsheet.allocator.state import Allocator

ADDRESS_SPACE = 2**44  # of a segment where no capacity bounds it


def expand_segment(allocator: Allocator, pool: Pool, size: int) -> Block | None:
    """Pages mapped until ``size`` bytes lie in a row (try_allocate_expandable_block). Pages mapped before a
    failure stay.
    """
    block = _find_expandable_block(allocator, pool, size)
    if block.state == UNMAPPED:
        mapped = _map_pages(allocator, block, min(block.size, size))
        if mapped is None:
            return None
        block = mapped
    while block.size < size:
        assert block.after is not None
        mapped = _map_pages(allocator, block.after, min(size - block.size, block.after.size))
        if mapped is None:
            return None
        block = mapped
    pool.take(block)
    return block


def _find_expandable_block(allocator: Allocator, pool: Pool, size: int) -> Block:
    """The lowest block from which ``size`` bytes of free or unmapped addresses lie in a row
    (find_expandable_block).
    """
    for unmapped in pool.unmapped:
        first = unmapped.before if unmapped.before is not None and unmapped.before.state == FREE else unmapped
        if _has_contiguous_room(first, size):
            return first
    # a segment has addresses for 9/8 of the device's memory (ExpandableSegment, :390)
    space = ADDRESS_SPACE if allocator.capacity is None else allocator.capacity + allocator.capacity // 8
    block = allocator.segment(pool, -(-max(space, size) // pool.page) * pool.page)
    _mark_unmapped(block)
    return block


def _has_contiguous_room(first: Block, size: int) -> bool:
    """Whether ``size`` bytes of free or unmapped addresses lie in a row from ``first`` on."""
    room, block = 0, first
    while room + block.size < size and block.after is not None and block.after.state != BUSY:
        room, block = room + block.size, block.after
    return room + block.size >= size


def _mark_unmapped(block: Block) -> None:
    block.state = UNMAPPED
    insort(block.pool.unmapped, block, key=_block_address)


def _block_address(block: Block) -> int:
    return block.address


def _map_pages(allocator: Allocator, block: Block, size: int) -> Block | None:
    """The free block in which ``size`` bytes at the start of ``block`` come to lie, in whole pages; None if
    memory is short (map_block).
    """
    pool = block.pool
    mapped = -(-size // pool.page) * pool.page
    if allocator.capacity is not None and allocator.reserved + mapped > allocator.capacity:
        return None
    allocator.reserved += mapped
    pool.unmapped.remove(block)
    if mapped < block.size:
        _mark_unmapped(split_block(block, mapped))
    block.state = BUSY
    return put_back(block, allocator.clock)


def unmap_pages(allocator: Allocator, block: Block) -> None:
    """The whole pages inside a free block go back to the device; what lies before and behind them stays free
    (unmap_block, :4173).
    """
    pool, page = block.pool, block.pool.page
    start, end = -(-block.address // page) * page, (block.address + block.size) // page * page
    if start >= end:
        return
    pool.take(block)
    if start > block.address:
        rest = split_block(block, start - block.address)
        pool.put(block)
        block = rest
    if block.address + block.size > end:
        pool.put(split_block(block, end - block.address))
    allocator.reserved -= end - start
    for neighbour in (block.after, block.before):
        if neighbour is not None and neighbour.state == UNMAPPED:
            pool.unmapped.remove(neighbour)
            block = min(block, neighbour, key=_block_address)
            merge_next_block(block)
    if block.whole:
        del allocator.segments[id(block)]
    else:
        _mark_unmapped(block)
