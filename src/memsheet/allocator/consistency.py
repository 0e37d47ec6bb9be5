"""What holds of an allocator at every moment, checked by walking its segments. For tests; a replay does not
call it.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.allocator.blocks import BUSY, FREE, UNMAPPED, Block
from memsheet.allocator.state import Allocator


def segment_blocks(first: Block) -> Iterator[Block]:
    """The blocks of a segment, in order."""
    block: Block | None = first
    while block is not None:
        yield block
        block = block.after


def allocator_inconsistencies(allocator: Allocator) -> list[str]:
    """Everything that is not as it must be; empty if all is well."""
    wrong: list[str] = []
    every = [block for first in allocator.segments.values() for block in segment_blocks(first)]
    for block in every:
        after = block.after
        if after is not None and (after.address != block.address + block.size or after.before is not block):
            wrong.append(f"the block at {block.address} and the one after it do not touch")
        if after is not None and after.state == block.state != BUSY:
            wrong.append(f"the blocks at {block.address} and {after.address} are both unused, and apart")
        if block.size <= 0 or (
            block.state == UNMAPPED and (block.address % block.pool.page or block.size % block.pool.page)
        ):
            wrong.append(f"the block at {block.address} has a size or place that cannot be")
    mapped = [block for block in every if block.state != UNMAPPED]
    busy = sum(block.size for block in mapped if block.state == BUSY)
    if sum(block.size for block in mapped) != allocator.reserved:
        wrong.append("segments do not add up to what is reserved")
    if busy != allocator.allocated + sum(block.size for _, block in allocator.pending):
        wrong.append("used blocks do not add up to what is allocated")
    for pool in allocator.every_pool():
        free = {id(block) for block in mapped if block.pool is pool and block.state == FREE}
        if pool.keys != sorted(pool.blocks) or {id(block) for block in pool.blocks.values()} != free:
            wrong.append("a pool's list is not its free blocks in order")
        if pool.unmapped != sorted(
            (b for b in every if b.pool is pool and b.state == UNMAPPED), key=lambda b: b.address
        ):
            wrong.append("a pool's list of unmapped addresses is not its unmapped blocks in order")
    return wrong
