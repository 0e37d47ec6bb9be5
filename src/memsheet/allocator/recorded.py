"""What a real caching allocator recorded of itself, beside what the simulation makes of the same requests.

A GPU that runs short returns cached segments, and a person may call empty_cache(): where the history says
that segments went back, the simulation gives back all it can at that moment, for of a device's end it knows
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.allocator.blocks import Block
from memsheet.allocator.caching import allocate_block, free_block
from memsheet.allocator.memory import release_all
from memsheet.allocator.settings import Settings, block_bytes
from memsheet.allocator.state import Allocator
from memsheet.frozen import dataclass

ALLOC, FREED, TAKEN, GIVEN = (
    "alloc",
    "free_completed",
    ("segment_alloc", "segment_map"),
    ("segment_free", "segment_unmap"),
)
"""Actions of a history, torch 2.13 torch/csrc/cuda/Module.cpp (THCPModule_memorySnapshot). ``free_requested``
comes before the streams that use a block are done with it; from ``free_completed`` on it serves others.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """``bytes`` as requested for blocks, whole for segments."""

    action: str
    address: int
    bytes: int
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A history. ``segments_bytes``: all segments when it ends; ``other_pools``: events of private pools,
    which are left out.
    """

    events: tuple[Event, ...]
    segments_bytes: int
    settings: Settings
    other_pools: int = 0

    @property
    def before_bytes(self) -> int:
        """Segments that were there before the history begins: what no replay can know."""
        return self.segments_bytes - sum(_reserved_bytes_change(event) for event in self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Reserved bytes, recorded and replayed, at the peak and at the end; ``worst_bytes``: the largest
    difference after any request.

    ``unknown``: releases of blocks that were there before the history began.
    """

    requests: int
    recorded_peak_bytes: int
    replayed_peak_bytes: int
    recorded_end_bytes: int
    replayed_end_bytes: int
    worst_bytes: int
    before_bytes: int
    unknown: int

    @property
    def error(self) -> float:
        """(replayed - recorded) / recorded, at the peaks."""
        return (
            (self.replayed_peak_bytes - self.recorded_peak_bytes) / self.recorded_peak_bytes
            if self.recorded_peak_bytes
            else 0.0
        )


def compare_with_replay(recorded: Recorded) -> Truth:
    """Play the recorded requests through the simulation, and compare what both reserve. What was there before
    is taken as given.
    """
    before, unknown = recorded.before_bytes, 0
    curve = list[tuple[int, int]]()
    for real, replayed, lost in _reserved_curve(recorded, before):
        unknown += lost
        curve.append((real, replayed))
    real, replayed = curve[-1] if curve else (before, before)
    return Truth(
        requests=sum(event.action == ALLOC for event in recorded.events),
        unknown=unknown,
        before_bytes=before,
        recorded_peak_bytes=max((one for one, _ in curve), default=before),
        replayed_peak_bytes=max((one for _, one in curve), default=before),
        recorded_end_bytes=real,
        replayed_end_bytes=replayed,
        worst_bytes=max((abs(one - other) for one, other in curve), default=0),
    )


def _reserved_curve(recorded: Recorded, before: int) -> Iterator[tuple[int, int, int]]:
    """(recorded, replayed, releases of unknown blocks) after each request and release; a request's own
    segments come before it.
    """
    allocator, blocks, real, giving = Allocator(recorded.settings), dict[int, Block](), before, False
    for event in recorded.events:
        real += _reserved_bytes_change(event)
        if event.action in GIVEN and not giving:
            release_all(allocator)
        giving = event.action in GIVEN
        lost = 0
        if event.action == ALLOC:
            size = block_bytes(event.bytes, recorded.settings)
            block = allocate_block(allocator, allocator.pool(event.stream, size), size)
            assert block is not None  # a device without end
            blocks[event.address] = block
        elif event.action == FREED:
            gone = blocks.pop(event.address, None)
            lost = int(gone is None)
            if gone is not None:
                free_block(allocator, gone)
        else:
            continue
        yield real, before + allocator.reserved, lost


def _reserved_bytes_change(event: Event) -> int:
    return event.bytes if event.action in TAKEN else -event.bytes if event.action in GIVEN else 0
