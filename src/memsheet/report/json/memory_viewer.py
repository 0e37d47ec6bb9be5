"""A timeline as a snapshot that PyTorch's memory viewer opens (pytorch.org/memory_viz; ``python -m
torch.cuda._memory_viz``).

The format is that of ``torch.cuda.memory._snapshot()``, as torch/utils/viz/MemoryViz.js (pytorch/pytorch at
00067369c93) and torch/cuda/_memory_viz.py (2.13.0) read it: a pickle of plain dicts, lists, texts and
numbers. It is written here and never read: loading a pickle runs what is in it.

A timeline knows sizes and order, not addresses and times. Blocks are laid out best fit in one segment a
stream, so that they never overlap; a segment is as large as that takes, which says nothing of what a real
allocator would reserve. Event n is at n microseconds.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memsheet.arith import round_up
from memsheet.report.shared.files import write_whole
from memsheet.sheet import Instant
from memsheet.timeline import Storage, Timeline

PROTOCOL = 4  # the highest that MemoryViz.js unpickles (its unpickle(), case PROTO)
BLOCK = 512  # kMinBlockSize, pytorch/pytorch c10/core/AllocatorConfig.h
ARENA = (
    2**44
    # address space of a stream; the addresses of 500 streams are whole numbers in JavaScript, which ends at
    # 2^53
)
UNKNOWN = "unknown"


def write_snapshot(timeline: Timeline, path: Path, field: str = "snapshot") -> None:
    """Write all of a timeline, the way to the steady step too, as a memory snapshot. Raises InputError as
    ``write_whole`` does.
    """
    write_whole(path, pickle.dumps(memory_snapshot(timeline), protocol=PROTOCOL), field)


def memory_snapshot(timeline: Timeline) -> dict[str, Any]:
    """The snapshot as plain values: events, and what is there after the last of them. Empty storages, which
    no allocator sees, are left out.
    """
    arenas: dict[int, Arena] = {}
    live: dict[int, tuple[int, dict[str, Any]]] = {}  # storage → its address and event
    events: list[dict[str, Any]] = []
    for number, instant in _event_instants(timeline):
        event = timeline.events[number]
        index = event if event >= 0 else ~event
        storage = timeline.storages[index]
        if not storage.bytes:
            continue
        arena = arenas.setdefault(storage.stream, Arena(start=ARENA * (len(arenas) + 1)))
        if event >= 0:
            made = _trace_event(
                "alloc", arena.take(storage.bytes), storage, number, _allocation_frames(storage, instant)
            )
            live[index] = (made["addr"], made)
            events.append({**made, "category": storage.component.value})
        else:
            address, made = live.pop(index)
            arena.give(address, storage.bytes)
            events += [
                _trace_event(action, address, storage, number, made["frames"])
                for action in ("free_requested", "free_completed")
            ]
    # what closes a snapshot in torch too; its category is one that the viewer looks for once there are any
    events.append(
        {
            "action": "snapshot",
            "addr": 0,
            "size": 0,
            "stream": 0,
            "time_us": len(timeline.events),
            "category": UNKNOWN,
            "frames": [],
        }
    )
    return {
        "segments": [_allocator_segment(stream, arena, live.values()) for stream, arena in arenas.items()],
        "device_traces": [events],
    }


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


def _allocator_segment(stream: int, arena: Arena, live: Any) -> dict[str, Any]:
    """One segment with all blocks of a stream, the gaps between them inactive."""
    blocks: list[dict[str, Any]] = []
    at = arena.start
    for address, event in sorted(
        (pair for pair in live if pair[1]["stream"] == stream), key=lambda pair: pair[0]
    ):
        if address > at:
            blocks.append(_inactive_block(at, address))
        size = round_up(event["size"], BLOCK)
        requested = {"requested_size": event["size"], "frames": event["frames"]}
        blocks.append({"address": address, "size": size, "state": "active_allocated", **requested})
        at = address + size
    if at < arena.end:
        blocks.append(_inactive_block(at, arena.end))
    active = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": 0, "address": arena.start, "total_size": arena.end - arena.start, "allocated_size": active, "active_size": active,
        "requested_size": sum(block["requested_size"] for block in blocks), "stream": stream, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip


def _inactive_block(start: int, end: int) -> dict[str, Any]:
    return {"address": start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}


@dataclass(slots=True, kw_only=True)
class Arena:
    """Address space handed out best fit: the smallest hole that is large enough, the lowest of equals, else
    beyond what was ever taken.
    """

    start: int
    end: int = 0
    holes: list[tuple[int, int]] = field(default_factory=list)  # (bytes, address), sorted
    sizes: dict[int, int] = field(default_factory=dict)  # address of a hole → its bytes
    ends: dict[int, int] = field(default_factory=dict)  # end of a hole → its address

    def __post_init__(self) -> None:
        self.end = self.start

    def take(self, size: int) -> int:
        """The address of ``size`` bytes, rounded up to whole blocks."""
        need = round_up(size, BLOCK)
        found = bisect_left(self.holes, (need, 0))
        if found == len(self.holes):
            self.end += need
            return self.end - need
        whole, address = self.holes[found]
        self._drop(address)
        if whole > need:
            self._add(address + need, whole - need)
        return address

    def give(self, address: int, size: int) -> None:
        """Take back what ``take`` gave; holes that touch become one."""
        whole = round_up(size, BLOCK)
        if (after := address + whole) in self.sizes:
            whole += self._drop(after)
        if address in self.ends:
            address = self.ends[address]
            whole += self._drop(address)
        self._add(address, whole)

    def _add(self, address: int, size: int) -> None:
        insort(self.holes, (size, address))
        self.sizes[address] = size
        self.ends[address + size] = address

    def _drop(self, address: int) -> int:
        size = self.sizes.pop(address)
        del self.ends[address + size]
        del self.holes[bisect_left(self.holes, (size, address))]
        return size
