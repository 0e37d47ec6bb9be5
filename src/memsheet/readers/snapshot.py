"""The history of a CUDA caching allocator as JSON: what `memsheet measure --snapshot` writes, or
torch.cuda.memory._snapshot() dumped.

It is a stranger's file: read as data, within limits. A pickle is refused, for unpickling runs what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memsheet.allocator.conf import settings_from
from memsheet.allocator.recorded import ALLOC, FREED, GIVEN, TAKEN, Event, Recorded
from memsheet.allocator.settings import Settings
from memsheet.errors import input_error
from memsheet.guard import read_bytes
from memsheet.readers.record import parse_packed

MAX_BYTES, MAX_VALUES = 256 * 2**20, 8_000_000
MOST = 2**62
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_PICKLE = b"\x80"
_KNOWN = {ALLOC, FREED, *TAKEN, *GIVEN}


def read_snapshot(path: Path) -> Recorded:
    """The history in a file. Raises InputError where it is none."""
    data = read_bytes(path, MAX_BYTES)
    if data.startswith(_PICKLE):
        hint = (
            "json.dump(torch.cuda.memory._snapshot(), file) where it was made, or memsheet measure --snapshot"
        )
        raise input_error(str(path), None, "is a pickle, and to unpickle is to run what is in it", hint)
    found = parse_packed(data, str(path), max_bytes=MAX_BYTES, max_values=MAX_VALUES)
    if not isinstance(found, Mapping):
        raise input_error(str(path), found, "holds no object of keys and values at its top level")
    return recorded_from(found, str(path))


def recorded_from(found: Mapping[str, Any], name: str = "snapshot") -> Recorded:
    """The history of a document, of the device with the longest one. Raises InputError for rows that are no
    history's.
    """
    rows = found.get("events")
    if rows is None:
        traces = found.get("device_traces")
        rows = (
            max(traces, key=len, default=[])
            if isinstance(traces, list) and all(isinstance(one, list) for one in traces)
            else None
        )
    segments = found.get("segments", [])
    if not isinstance(rows, list) or not isinstance(segments, list):
        raise input_error(
            name,
            None,
            "holds no events and segments",
            "memsheet measure --device cuda --snapshot FILE makes one",
        )
    own = [row for row in rows if _memory_pool_id(row, name) in (None, (0, 0))]
    whole = [segment for segment in segments if _memory_pool_id(segment, name) in (None, (0, 0))]
    return Recorded(
        events=tuple(_allocator_events(own, name)),
        segments_bytes=sum(_nonnegative_integer(segment, "total_size", name) for segment in whole),
        settings=_snapshot_allocator_settings(found),
        other_pools=len(rows) - len(own),
    )


def _memory_pool_id(row: Any, name: str) -> tuple[Any, ...] | None:
    """The pool of an event or a segment: (0, 0) is the default one; None where an older torch does not
    say.
    """
    if not isinstance(row, Mapping):
        raise input_error(name, None, "has rows that are no objects")
    pool = row.get("pool_id", row.get("segment_pool_id"))
    return tuple(pool) if isinstance(pool, list) else None


def _allocator_events(rows: list[Any], name: str) -> Iterator[Event]:
    for row in rows:
        if row.get("action") in _KNOWN:
            yield Event(
                row["action"],
                _nonnegative_integer(row, "addr", name),
                _nonnegative_integer(row, "size", name),
                _nonnegative_integer(row, "stream", name),
            )


def _nonnegative_integer(row: Mapping[str, Any], key: str, name: str) -> int:
    """A size, an address, a stream's handle."""
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise input_error(f"{name}: {key}", value, "is not a whole number from 0")
    return value


def _snapshot_allocator_settings(found: Mapping[str, Any]) -> Settings:
    """How the allocator was set, as the history repeats it (allocator_settings,
    torch/csrc/cuda/Module.cpp).
    """
    given = found.get("settings") or found.get("allocator_settings")
    text = (
        next((given[key] for key in SETTINGS if isinstance(given.get(key), str)), "")
        if isinstance(given, Mapping)
        else ""
    )
    return settings_from(text) if text else Settings()
