"""Requests and releases of a whole script in one loop, where segments are plain: what ``allocate_block`` and
``free_block`` do, without a call for each of hundreds of thousands.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from memsheet.allocator.blocks import ADDRESS_BITS, BUSY, FREE, Block, Pool
from memsheet.allocator.memory import grow_pool
from memsheet.allocator.settings import Settings
from memsheet.allocator.state import Allocator


def has_plain_segments(settings: Settings) -> bool:
    """Whether every free block serves whatever it is large enough for, and none goes back before memory is
    short.
    """
    return not (
        settings.expandable_segments
        or settings.max_split_size_bytes is not None
        or settings.garbage_collection_threshold is not None
    )


def play_plain_segments(  # noqa: PLR0915 one loop without calls
    allocator: Allocator,
    events: Iterable[int],
    requests: Sequence[tuple[Pool, int]],
    blocks: list[Block | None],
) -> tuple[int, int] | None:
    """As ``caching.play_requests``, which says what it takes and returns. No block is another stream's, too,
    and ages are not kept: nothing is collected by age. A block that another took in is used again for the
    next rest: making one takes as long as the rest of a request.
    """
    spare: list[Block] = []
    held = most_held = allocator.allocated
    most = allocator.reserved
    for event in events:
        if event >= 0:
            pool, size = requests[event]
            if not size:
                continue
            keys, free = pool.keys, pool.blocks
            at = bisect_left(keys, size << ADDRESS_BITS)
            if at < len(keys):
                block = free.pop(keys.pop(at))
                block.state = BUSY
            else:
                grown = grow_pool(allocator, pool, size)
                if grown is None:
                    return None
                block, most = grown, max(most, allocator.reserved)
            over = block.size - size
            if over > pool.keeps:
                block.size = size
                if spare:
                    rest = spare.pop()
                    rest.pool, rest.address, rest.size = pool, block.address + size, over
                else:
                    rest = Block(pool, block.address + size, over)
                rest.state, rest.before, rest.after = FREE, block, block.after
                if rest.after is not None:
                    rest.after.before = rest
                block.after = rest
                rest.key = key = over << ADDRESS_BITS | rest.address
                insort(keys, key)
                free[key] = rest
                held += size
            else:
                held += block.size
            if held > most_held:  # noqa: PLR1730 max() is a call
                most_held = held
            blocks[event] = block
            continue
        gone = blocks[~event]
        if gone is None:
            continue
        size = gone.size
        held -= size
        keys, free = gone.pool.keys, gone.pool.blocks
        after, before = gone.after, gone.before
        if after is not None and after.state == FREE:
            key = after.key
            del free[key], keys[bisect_left(keys, key)]
            size += after.size
            gone.after = beyond = after.after
            if beyond is not None:
                beyond.before = gone
            spare.append(after)
        if before is not None and before.state == FREE:
            key = before.key
            del free[key], keys[bisect_left(keys, key)]
            size += before.size
            before.after = beyond = gone.after
            if beyond is not None:
                beyond.before = before
            spare.append(gone)
            gone = before
        gone.size, gone.state = size, FREE
        gone.key = key = size << ADDRESS_BITS | gone.address
        insort(keys, key)
        free[key] = gone
    allocator.allocated = held
    return most, most_held
