"""A timeline's allocations and releases played through the allocator: what it reserves, and where it runs out
of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from memsheet.allocator.blocks import Block
from memsheet.allocator.caching import allocate_block, free_block
from memsheet.allocator.settings import Settings, block_bytes
from memsheet.allocator.state import Allocator
from memsheet.errors import input_error
from memsheet.frozen import dataclass
from memsheet.sheet import Instant
from memsheet.timeline import Timeline

DEFAULT = Settings()
NOTHING_HELD: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The request that failed: event number ``at`` allocates storage number ``storage``; the sizes are of
    that moment.

    ``largest_free_bytes``: the largest free block that could not be given back to the device. Where it is
    larger than the request, it is another stream's, of the other pool, or kept whole by max_split_size.
    """

    at: int
    storage: int
    request_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the allocator held, in bytes, until the end or until it ``died``. Sizes are those just after an
    event.

    ``requested``: storages as asked for; ``allocated``: the blocks they lie in; ``reserved``: what was taken
    from the device. The peaks are those of the whole timeline; ``reserved`` and ``requested`` are the
    high-water marks of the instants of its steady step.
    """

    requested_peak_bytes: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    reserved_at_requested_peak_bytes: int
    fragmentation_bytes: int  # reserved but not allocated when reserved was first at its peak
    retries: int  # cudaMalloc retries, as torch.cuda.memory_stats counts them
    reserved: Mapping[Instant, int]
    requested: Mapping[Instant, int]
    died: Death | None

    @property
    def slack(self) -> dict[Instant, int]:
        """What is reserved beyond the bytes asked for: the difference of the high-water marks of each
        instant.
        """
        return {instant: size - self.requested[instant] for instant, size in self.reserved.items()}


def replay_timeline(
    timeline: Timeline,
    settings: Settings = DEFAULT,
    capacity_bytes: int | None = None,
    *,
    held: Mapping[int, int] = NOTHING_HELD,
) -> Replay:
    """``timeline`` under ``settings`` on a device that gives the allocator ``capacity_bytes``; None: as much
    as it asks for.

    ``held`` stands for Tensor.record_stream: a storage's number and how many events after its release the
    other streams have finished with it. Until then its block serves nobody, unless memory runs out, when the
    allocator waits (process_events, synchronize_and_free_events). How far a device lags behind its host no
    timeline tells: a large number is the cautious choice. Nothing is allocated for storages of 0 bytes.
    Raises InputError for a capacity below 0 and for numbers that are no storage's.
    """
    if capacity_bytes is not None and capacity_bytes < 0:
        raise input_error("capacity", capacity_bytes, "is less than nothing")
    unknown = [
        number for number, events in held.items() if not 0 <= number < len(timeline.storages) or events < 0
    ]
    if unknown:
        raise input_error(
            "held", unknown[0], "is not a storage of the timeline, or is held for less than no event"
        )
    allocator = Allocator(settings, capacity_bytes)
    allocated, reserved, failed = _play_events(timeline, allocator, held)
    died = None if failed is None else _out_of_memory_death(timeline, allocator, failed)
    requested = _requested_bytes_curve(timeline, len(reserved))
    top, full = _first_maximum_index(requested), _first_maximum_index(reserved)
    return Replay(
        requested_peak_bytes=requested[top] if requested else 0,
        allocated_peak_bytes=max(allocated, default=0),
        reserved_peak_bytes=reserved[full] if reserved else 0,
        reserved_at_requested_peak_bytes=reserved[top] if reserved else 0,
        fragmentation_bytes=reserved[full] - allocated[full] if reserved else 0,
        retries=allocator.retries,
        reserved=_peak_bytes_by_instant(timeline, reserved),
        requested=_peak_bytes_by_instant(timeline, requested),
        died=died,
    )


def _play_events(
    timeline: Timeline, allocator: Allocator, held: Mapping[int, int]
) -> tuple[list[int], list[int], int | None]:
    """Bytes allocated and reserved after each event, and the event that failed, if one did."""
    rounded = {
        size: block_bytes(size, allocator.settings)
        for size in {storage.bytes for storage in timeline.storages}
    }
    requests = [(allocator.pool(s.stream, rounded[s.bytes]), rounded[s.bytes]) for s in timeline.storages]
    blocks: list[Block | None] = [None] * len(requests)
    allocated, reserved = list[int](), list[int]()
    for at, event in enumerate(timeline.events):
        if event >= 0:
            pool, size = requests[event]
            if allocator.pending:
                allocator.settle(at)
            if size:
                block = allocate_block(allocator, pool, size)
                if block is None:
                    return allocated, reserved, at
                blocks[event] = block
        elif (gone := blocks[~event]) is not None:
            free_block(allocator, gone, at + held[~event] if ~event in held else None)
        allocated.append(allocator.allocated)
        reserved.append(allocator.reserved)
    return allocated, reserved, None


def _out_of_memory_death(timeline: Timeline, allocator: Allocator, at: int) -> Death:
    storage = timeline.events[at]
    return Death(
        at=at,
        storage=storage,
        request_bytes=timeline.storages[storage].bytes,
        allocated_bytes=allocator.allocated,
        reserved_bytes=allocator.reserved,
        largest_free_bytes=max(
            (block.size for pool in allocator.every_pool() for block in pool.blocks.values()), default=0
        ),
    )


def _requested_bytes_curve(timeline: Timeline, end: int) -> list[int]:
    sizes = [storage.bytes for storage in timeline.storages]
    return list(accumulate(sizes[event] if event >= 0 else -sizes[~event] for event in timeline.events[:end]))


def _first_maximum_index(curve: list[int]) -> int:
    """Where a curve first reaches its maximum."""
    return curve.index(max(curve)) if curve else 0


def _peak_bytes_by_instant(timeline: Timeline, curve: list[int]) -> dict[Instant, int]:
    """The high-water mark of each instant, as timeline.peaks takes it: with what stands when the instant
    begins.
    """
    found: dict[Instant, int] = {}
    for mark, end in zip(
        timeline.marks, [*(m.at for m in timeline.marks[1:]), len(curve)], strict=False
    ):  # no marks, one end
        window = curve[max(mark.at - 1, 0) : max(end, mark.at)]
        if window or not curve or mark.at == 0:  # one that ends before anything is made holds nothing
            found[mark.instant] = max(found.get(mark.instant, 0), max(window, default=0))
    return found
