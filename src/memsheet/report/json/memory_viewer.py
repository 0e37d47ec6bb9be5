"""A timeline as a snapshot that PyTorch's memory viewer opens (pytorch.org/memory_viz; ``python -m
torch.cuda._memory_viz``), and that `memsheet diagnose` reads.

The format is that of ``torch.cuda.memory._snapshot()``, as torch/utils/viz/MemoryViz.js (pytorch/pytorch at
00067369c93) and torch/cuda/_memory_viz.py (2.13.0) read it: a pickle of plain dicts, lists, texts and
numbers. It is written here and never loaded: loading a pickle runs what is in it.

A timeline knows sizes and order, not addresses and times. Segments and blocks are those of the simulated
allocator; on a device that has an end the history ends with the request that fails there, as torch records it
(``oom``). Event n is at n microseconds.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from memsheet.allocator.blocks import BUSY, UNMAPPED, Block, Pool
from memsheet.allocator.caching import allocate_block, free_block
from memsheet.allocator.consistency import segment_blocks
from memsheet.allocator.settings import Settings, block_bytes
from memsheet.allocator.state import Allocator
from memsheet.report.shared.files import write_whole
from memsheet.sheet import Instant
from memsheet.timeline import Storage, Timeline

PROTOCOL = 4  # the highest that MemoryViz.js unpickles (its unpickle(), case PROTO)
SPACE = 2**45
"""Addresses of a pool; those of 250 pools are whole numbers in JavaScript, which ends at 2^53."""
UNKNOWN = "unknown"
DEFAULT = Settings()


def write_snapshot(
    timeline: Timeline,
    path: Path,
    field: str = "snapshot",
    settings: Settings = DEFAULT,
    capacity_bytes: int | None = None,
) -> None:
    """Write all of a timeline, the way to the steady step too, as a memory snapshot of an allocator so set
    that gets ``capacity_bytes`` (None: as much as it asks for). Raises InputError as ``write_whole`` does.
    """
    found = memory_snapshot(timeline, settings, capacity_bytes)
    write_whole(path, pickle.dumps(found, protocol=PROTOCOL), field)


def memory_snapshot(
    timeline: Timeline, settings: Settings = DEFAULT, capacity_bytes: int | None = None
) -> dict[str, Any]:
    """The snapshot as plain values: events, and what is there after the last of them. Empty storages, which
    no allocator sees, are left out.
    """
    device = _Device(settings, capacity_bytes)
    for number, instant in _event_instants(timeline):
        event = timeline.events[number]
        storage = timeline.storages[event if event >= 0 else ~event]
        if not storage.bytes:
            continue
        if event < 0:
            device.free_storage(~event, storage, number)
        elif not device.allocate_storage(event, storage, number, _allocation_frames(storage, instant)):
            break
    # what closes a snapshot in torch too; its category is one that the viewer looks for once there are any
    end = {
        "action": "snapshot",
        "addr": 0,
        "size": 0,
        "stream": 0,
        "time_us": len(timeline.events),
        "category": UNKNOWN,
        "frames": [],
    }
    return {
        "segments": list(device.final_segments()), "device_traces": [[*device.events, end]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": _settings_words(settings), "expandable_segments": settings.expandable_segments},
    }  # fmt: skip


def _settings_words(settings: Settings) -> str:
    split = settings.max_split_size_bytes
    said = {
        "expandable_segments:True": settings.expandable_segments,
        f"max_split_size_mb:{(split or 0) // 2**20}": split is not None,
    }
    return ",".join(words for words, is_set in said.items() if is_set)


class _Device:
    """An allocator, and the events that torch would record of it. ``live``: the block of each storage that is
    there, with the event that made it; ``mapped``: stretches of device memory by their first address.
    """

    def __init__(self, settings: Settings, capacity: int | None) -> None:
        self.allocator = Allocator(settings, capacity)
        self.events: list[dict[str, Any]] = []
        self.live: dict[int, tuple[Block, dict[str, Any]]] = {}
        self.mapped: set[tuple[int, int, int]] = set()
        self.bases: dict[int, int] = {}
        self.streams: dict[int, int] = {}

    def allocate_storage(
        self, index: int, storage: Storage, number: int, frames: list[dict[str, Any]]
    ) -> bool:
        """Whether there is room; else the last event is the failure."""
        allocator = self.allocator
        size = block_bytes(storage.bytes, allocator.settings)
        pool = allocator.pool(storage.stream, size)
        self.streams.setdefault(id(pool), storage.stream)
        before = allocator.reserved, allocator.retries, len(allocator.segments)
        block = allocate_block(allocator, pool, size)
        if before != (allocator.reserved, allocator.retries, len(allocator.segments)):
            self.events += self.segment_events(storage.stream, number, frames)
        if block is None:
            free = (allocator.capacity or 0) - allocator.reserved
            self.events.append({
                "action": "oom", "device_free": free, "size": size, "stream": storage.stream, "time_us": number, "frames": frames,
                "category": storage.component.value,
            })  # fmt: skip
            return False
        made = _trace_event("alloc", self.address_of(block), storage, number, frames)
        self.live[index] = block, made
        self.events.append({**made, "category": storage.component.value})
        return True

    def free_storage(self, index: int, storage: Storage, number: int) -> None:
        block, made = self.live.pop(index)
        free_block(self.allocator, block)
        self.events += [
            _trace_event(action, made["addr"], storage, number, made["frames"])
            for action in ("free_requested", "free_completed")
        ]

    def address_of(self, block: Block) -> int:
        return self.pool_base(block.pool) + block.address

    def pool_base(self, pool: Pool) -> int:
        return self.bases.setdefault(id(pool), SPACE * (len(self.bases) + 1))

    def given_stretches(self) -> Iterator[tuple[int, int, int]]:
        """Address, bytes and stream of all memory that the device gave: segments, of expandable ones the
        pages.
        """
        expandable, page = self.allocator.settings.expandable_segments, 0
        for first in self.allocator.segments.values():
            stream = self.streams[id(first.pool)]
            for start, size in _mapped_runs(first):
                base = self.pool_base(first.pool) + start
                page = first.pool.page if expandable else size
                yield from ((base + at, page, stream) for at in range(0, size, page))

    def segment_events(
        self, stream: int, number: int, frames: list[dict[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """What the device gave and took back since this was asked last."""
        now, before = set(self.given_stretches()), self.mapped
        self.mapped = now
        expandable = self.allocator.settings.expandable_segments
        words = ("segment_unmap", "segment_map") if expandable else ("segment_free", "segment_alloc")
        for action, found in zip(words, (before - now, now - before), strict=True):
            for address, size, own in sorted(found):
                made = own if action == words[0] else stream
                yield {
                    "action": action,
                    "addr": address,
                    "size": size,
                    "stream": made,
                    "time_us": number,
                    "frames": frames,
                }

    def final_segments(self) -> Iterator[dict[str, Any]]:
        """The segments at the end, with their blocks."""
        events = {id(block): made for block, made in self.live.values()}
        for first in self.allocator.segments.values():
            blocks = [block for block in segment_blocks(first) if block.state != UNMAPPED]
            for run in _touching_blocks(blocks):
                yield self.segment_row(run, events)

    def segment_row(self, blocks: list[Block], events: dict[int, dict[str, Any]]) -> dict[str, Any]:
        rows = [self.block_row(block, events.get(id(block))) for block in blocks]
        active = sum(row["size"] for row in rows if row["state"] == "active_allocated")
        pool = blocks[0].pool
        return {
            "device": 0, "address": rows[0]["address"], "total_size": sum(row["size"] for row in rows), "allocated_size": active,
            "active_size": active, "requested_size": sum(row["requested_size"] for row in rows), "stream": self.streams[id(pool)],
            "segment_type": "small" if pool.small else "large", "segment_pool_id": (0, 0),
            "is_expandable": self.allocator.settings.expandable_segments, "frames": [], "blocks": rows,
        }  # fmt: skip

    def block_row(self, block: Block, made: dict[str, Any] | None) -> dict[str, Any]:
        state = "active_allocated" if block.state == BUSY else "inactive"
        return {
            "address": self.address_of(block), "size": block.size, "requested_size": made["size"] if made else 0, "state": state,
            "frames": made["frames"] if made else [],
        }  # fmt: skip


def _touching_blocks(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Blocks in runs that have no gap."""
    run: list[Block] = []
    for block in blocks:
        if run and run[-1].address + run[-1].size != block.address:
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _mapped_runs(first: Block) -> Iterator[tuple[int, int]]:
    """Where memory lies behind a segment's addresses: beginning and bytes."""
    for run in _touching_blocks(block for block in segment_blocks(first) if block.state != UNMAPPED):
        yield run[0].address, run[-1].address + run[-1].size - run[0].address


def _event_instants(timeline: Timeline) -> Iterator[tuple[int, Instant | None]]:
    """Every event with the instant it belongs to: None on the way to the steady step."""
    marks, instant = [*timeline.marks], None
    for number in range(len(timeline.events)):
        while marks and marks[0].at <= number:
            instant = marks.pop(0).instant
        yield number, instant


def _trace_event(
    action: str, address: int, storage: Storage, number: int, frames: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": storage.bytes,
        "stream": storage.stream,
        "time_us": number,
        "frames": frames,
    }


def _allocation_frames(storage: Storage, instant: Instant | None) -> list[dict[str, Any]]:
    """Innermost first, shown as file:line:name: the operation and its module, the user's line, the
    instant.
    """
    file, _, line = storage.line.rpartition(":")
    mine = (
        {"filename": file, "line": int(line), "name": ""}
        if line.isdecimal()
        else {"filename": storage.line, "line": 0, "name": ""}
    )
    step = {"filename": "step", "line": 0, "name": instant.value if instant else "before the steady step"}
    return [
        {"filename": storage.op, "line": 0, "name": storage.path},
        *([mine] if storage.line else []),
        step,
    ]
