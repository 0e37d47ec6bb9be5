"""The CUDA caching allocator's own history of a few steps, as JSON: what it was asked and what it took from
the device.

torch.cuda.memory._snapshot() is a plain dict (torch/csrc/cuda/Module.cpp, THCPModule_memorySnapshot), which
PyTorch's own tools pickle; here it is written as JSON, so that nobody has to unpickle a stranger's file.
Stacks are left out: they are most of it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

SNAPSHOT_SCHEMA = "memsheet/snapshot/1"
ENTRIES = 400_000
"""Events that are kept; the oldest go first, and a history without its beginning cannot be replayed."""
EVENT_KEYS = ("action", "addr", "device_free", "size", "stream", "pool_id")
SEGMENT_KEYS = (
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "stream",
    "segment_type",
    "is_expandable",
    "segment_pool_id",
)
BLOCK_KEYS = ("address", "size", "requested_size", "state")


def record_allocator_history(run: Callable[[], None], memory: Any) -> dict[str, Any]:
    """Call ``run`` with the history on, and what the allocator then says. ``memory``:
    ``torch.cuda.memory``.
    """
    memory._record_memory_history(max_entries=ENTRIES, stacks="python", context=None)
    try:
        run()
        found = memory._snapshot()
    finally:
        memory._record_memory_history(enabled=None)
    return snapshot_document(found)


def snapshot_document(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A snapshot without its stacks, of the device that has a history."""
    traces = snapshot.get("device_traces") or [[]]
    device = max(range(len(traces)), key=lambda number: len(traces[number]))
    return {
        "schema": SNAPSHOT_SCHEMA,
        "events": [{key: event[key] for key in EVENT_KEYS if key in event} for event in traces[device]],
        "segments": [_segment_document(segment) for segment in snapshot.get("segments", ()) if segment.get("device", device) == device],
        "settings": {key: value for key, value in snapshot.get("allocator_settings", {}).items() if isinstance(value, str | int | float | bool)},
    }  # fmt: skip


def _segment_document(segment: dict[str, Any]) -> dict[str, Any]:
    blocks = [{key: block[key] for key in BLOCK_KEYS if key in block} for block in segment.get("blocks", ())]
    return {**{key: segment[key] for key in SEGMENT_KEYS if key in segment}, "blocks": blocks}


def write_packed_history(found: dict[str, Any], path: Path) -> None:
    """Compressed, whole or not at all."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))
    beside.replace(path)
