"""Several steps of a job played through one allocator: what each reserves. A job may die at step 400 that
lived at step 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.allocator.blocks import Block
from memsheet.allocator.caching import allocate_block, free_block
from memsheet.allocator.memory import release_all
from memsheet.allocator.settings import Settings, block_bytes
from memsheet.allocator.state import Allocator
from memsheet.frozen import dataclass
from memsheet.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """High-water marks of one step, in bytes. ``idle_bytes``: reserved and not allocated when what is
    allocated was at its highest.
    """

    allocated_bytes: int
    reserved_bytes: int
    idle_bytes: int


def replay_steps(
    timeline: Timeline, starts: Sequence[int], settings: Settings, *, empty_cache: bool = False
) -> list[Step]:
    """``timeline`` under ``settings`` on a device without end, cut into steps at the events ``starts``.

    What comes before the first belongs to it. ``empty_cache``: torch.cuda.empty_cache() before each step but
    the first.
    """
    allocator, blocks = Allocator(settings), list[Block | None]([None] * len(timeline.storages))
    ends = [*starts[1:], len(timeline.events)]
    found, at = list[Step](), 0
    for end in ends:
        if empty_cache and found:
            release_all(allocator)
        found.append(_play_step(timeline, allocator, blocks, range(at, end)))
        at = end
    return found


def _play_step(timeline: Timeline, allocator: Allocator, blocks: list[Block | None], events: range) -> Step:
    most, reserved, idle = allocator.allocated, allocator.reserved, allocator.reserved - allocator.allocated
    for at in events:
        event = timeline.events[at]
        if event < 0:
            if (gone := blocks[~event]) is not None:
                free_block(allocator, gone)
            continue
        storage = timeline.storages[event]
        size = block_bytes(storage.bytes, allocator.settings)
        if size:
            blocks[event] = allocate_block(allocator, allocator.pool(storage.stream, size), size)
        reserved = max(reserved, allocator.reserved)
        if allocator.allocated > most:
            most, idle = allocator.allocated, allocator.reserved - allocator.allocated
    return Step(allocated_bytes=most, reserved_bytes=reserved, idle_bytes=idle)
