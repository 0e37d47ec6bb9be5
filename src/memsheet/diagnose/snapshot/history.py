"""A snapshot's file read as data: millions of events as columns of numbers, each stack of frames once.

The shape is that of torch.cuda.memory._snapshot() (torch 2.13, torch/csrc/cuda/Module.cpp,
THCPModule_memorySnapshot; the pickle that _dump_snapshot writes, or the same as JSON) and of
``memsheet/snapshot/1``, which has no frames.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from memsheet.allocator.conf import settings_from
from memsheet.allocator.settings import Settings
from memsheet.errors import InputError, input_error
from memsheet.frozen import NamedTuple, dataclass, field
from memsheet.guard import parse_json
from memsheet.guard.pickled import is_pickle, parse_pickle
from memsheet.readers.record import GZIP, parse_packed

MAX_JSON_BYTES, MAX_VALUES = 64 * 2**20, 8_000_000
MOST_EVENTS, MOST_BLOCKS, MOST_STREAMS = 3_000_000, 2_000_000, 4096
MOST_FRAMES = 1024
ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom", "other",
)  # fmt: skip
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM, OTHER = (
    range(len(ACTIONS))
)
_NUMBER = {name: number for number, name in enumerate(ACTIONS)}
GROWS, SHRINKS = (SEGMENT_ALLOC, SEGMENT_MAP), (SEGMENT_FREE, SEGMENT_UNMAP)
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
JSON_MARKS = (b'"device_traces"', b'"memsheet/snapshot/1"', b'"segments"')
NO_POOL = (None, (0, 0), [0, 0])
"""The pool that all share; older releases do not name it."""


class Frame(NamedTuple):
    """One function of a stack, innermost first in it."""

    file: str
    line: int
    name: str


class Block(NamedTuple):
    """A block of a segment at the end; ``address`` None in the oldest snapshots."""

    address: int | None
    size: int
    requested: int
    active: bool
    stack: int


class Segment(NamedTuple):
    """A segment at the end, of one device."""

    device: int
    address: int
    size: int
    stream: int
    expandable: bool
    private: bool
    blocks: tuple[Block, ...]


@dataclass(slots=True)
class Columns:
    """Events, one a place: action, address (of ``oom``: what the device had free), size, stream by its
    number, stack by its number, component by its number (0 for none), whether of a private pool.
    """

    action: array[int] = field(default_factory=lambda: array("b"))
    address: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    stream: array[int] = field(default_factory=lambda: array("H"))
    stack: array[int] = field(default_factory=lambda: array("l"))
    category: array[int] = field(default_factory=lambda: array("B"))
    private: array[int] = field(default_factory=lambda: array("b"))

    def part_between(self, start: int, end: int) -> Columns:
        return Columns(*(getattr(self, name)[start:end] for name in self.__slots__))

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What one device's allocator recorded. ``stacks``: frames by number, innermost first; ``categories``:
    components by number, the first for none; ``known_settings``: False where they hold what is not modelled.
    """

    name: str
    events: Columns
    stacks: tuple[tuple[Frame, ...], ...]
    categories: tuple[str, ...]
    segments: tuple[Segment, ...]
    settings: Settings
    settings_text: str
    known_settings: bool = True

    @property
    def reserved_end(self) -> int:
        return sum(segment.size for segment in self.segments)


def is_snapshot(data: bytes) -> bool:
    """Whether a file is to be read as a snapshot."""
    head = data[:4096].lstrip()
    return (
        is_pickle(data)
        or data.startswith(GZIP)
        or (head.startswith(b"{") and any(mark in head for mark in JSON_MARKS))
    )


def read_history(data: bytes, name: str) -> History:
    """The history in a file's bytes: of the device that ran out, else of the one with the longest. Raises
    InputError for what is no snapshot.
    """
    rows = _Rows(name, shared=is_pickle(data))
    if is_pickle(data):
        found = parse_pickle(data, name, rows.taken_row)
    elif data.startswith(GZIP):
        found = parse_packed(
            data, name, max_bytes=MAX_JSON_BYTES, max_values=MAX_VALUES, taken=rows.taken_row
        )
    else:
        found = parse_json(data, name, max_bytes=MAX_JSON_BYTES, max_values=MAX_VALUES, taken=rows.taken_row)
    if not isinstance(found, Mapping):
        raise rows.refused_because("holds no segments and events")
    return rows.whole_history(found)


class _FramesMark:
    """What stands in place of a list of frames that was read."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class _Event:
    """What stands in place of an event that was read."""


EVENT = _Event()


class _Rows:
    """Events and blocks as they are read, before the whole file is."""

    def __init__(self, name: str, *, shared: bool) -> None:
        """``shared``: whether the file says each frame once, as a pickle does."""
        self.name, self.columns, self.shared = name, Columns(), shared
        self.stacks: dict[tuple[Frame, ...], _FramesMark] = {(): _FramesMark(0)}
        self.frames: dict[Frame, Frame] = {}
        self.known: dict[tuple[int, ...], _FramesMark] = {}
        self.by_identity: dict[int, Frame] = {}
        self.kept: list[Any] = []
        self.streams: dict[int, int] = {}
        self.categories: dict[str, int] = {"": 0}
        self.blocks = 0

    def refused_because(self, reason: str) -> InputError:
        return input_error(
            self.name,
            None,
            f"is no snapshot of PyTorch's allocator: it {reason}",
            "torch.cuda.memory._dump_snapshot(file) writes one",
        )

    def taken_row(self, found: dict[str, Any]) -> Any:
        """What stands for a dict that is full: an event is a row, a block a tuple."""
        if "action" in found:
            return self.event_row(found)
        if "state" in found and "size" in found:
            return self.block_row(found)
        return self.frame_of(found) if not self.shared and "filename" in found else None

    def event_row(self, found: dict[str, Any]) -> _Event:
        columns, said = self.columns, found["action"]
        action = _NUMBER.get(said, OTHER) if type(said) is str else OTHER
        if action == OOM and "device_free" not in found:
            action = OTHER  # without it nothing can be said of the failure
        place = found.get("device_free" if action == OOM else "addr", 0)
        category = found.get("category")
        try:
            columns.action.append(action)
            columns.address.append(place)
            columns.size.append(found.get("size", 0))
            columns.stack.append(self.stack_of(found.get("frames")))
            columns.stream.append(self.stream_number(found.get("stream", 0)))
            columns.category.append(
                self.categories.setdefault(category, len(self.categories)) if category else 0
            )
            columns.private.append(found.get("pool_id") not in NO_POOL)
        except (TypeError, OverflowError):
            raise self.refused_because("has an event whose numbers are none") from None
        if columns.size[-1] < 0 or columns.address[-1] < 0:
            raise self.refused_because("has an event of less than nothing")
        if len(columns) > MOST_EVENTS:
            raise input_error(
                self.name,
                None,
                f"holds more than {MOST_EVENTS:,} events",
                "record fewer: _record_memory_history(max_entries=1_000_000)",
            )
        return EVENT

    def stream_number(self, handle: int) -> int:
        number = self.streams.setdefault(handle, len(self.streams))
        if number >= MOST_STREAMS:
            raise self.refused_because(f"names more than {MOST_STREAMS} streams")
        return number

    def block_row(self, found: dict[str, Any]) -> Block:
        self.blocks += 1
        if self.blocks > MOST_BLOCKS:
            raise self.refused_because(f"has more than {MOST_BLOCKS:,} blocks")
        size = self.natural_number(found, "size")
        requested = self.natural_number(found, "requested_size") if "requested_size" in found else size
        history = found.get("history")
        frames = found.get("frames")
        if (
            frames is None and type(history) is list and history and isinstance(history[0], Mapping)
        ):  # until 2.0
            frames = history[0].get("frames")
        address = self.natural_number(found, "address") if "address" in found else None
        return Block(
            address, size, requested, str(found["state"]).startswith("active"), self.stack_of(frames)
        )

    def natural_number(self, found: Mapping[str, Any], key: str) -> int:
        value = found.get(key)
        if type(value) is not int or not 0 <= value < 2**63:
            raise self.refused_because(f"has a {key} that is no whole number from 0")
        return value

    def stack_of(self, frames: Any) -> int:
        """The number of a stack. The list is emptied: whatever else has it finds the number in it."""
        if type(frames) is not list or not frames:
            return 0
        if type(frames[0]) is _FramesMark:
            return int(frames[0].number)
        key = tuple(map(id, frames))
        seen = self.known.get(key)
        if seen is None:
            try:
                whole = tuple(map(self.by_identity.__getitem__, key))
            except KeyError:
                whole = tuple(self.identified_frame(each) for each in frames)
            seen = self.known[key] = self.stacks.setdefault(
                whole[:MOST_FRAMES], _FramesMark(len(self.stacks))
            )
        frames[:] = [seen]
        return seen.number

    def identified_frame(self, found: Any) -> Frame:
        frame = self.by_identity.get(id(found))
        if frame is None:
            frame = self.by_identity[id(found)] = self.frame_of(found)
            self.kept.append(found)  # so that no other gets its identity
        return frame

    def frame_of(self, found: Any) -> Frame:
        if type(found) is Frame:
            return found
        if not isinstance(found, Mapping):
            raise self.refused_because("has a frame that is none")
        file, line, name = found.get("filename"), found.get("line"), found.get("name")
        frame = Frame(
            file if isinstance(file, str) else "", line if type(line) is int and 0 <= line < 2**31 else 0, name if isinstance(name, str) else "",
        )  # fmt: skip
        return self.frames.setdefault(frame, frame)

    # ---- the whole file ------------------------------------------------------------------------------------

    def whole_history(self, found: Mapping[str, Any]) -> History:
        traces = found.get("device_traces", [found.get("events", [])])
        segments = found.get("segments", [])
        if "segments" not in found or type(traces) is not list or type(segments) is not list:
            raise self.refused_because("holds no segments and events")
        device, events = self.device_events(traces)
        if device is None:
            sizes: dict[int, int] = {}
            for segment in self.device_segments(segments, None):
                sizes[segment.device] = sizes.get(segment.device, 0) + segment.size
            device = max(sizes, key=sizes.__getitem__, default=0)
        text = _settings_text(found)
        settings, known = Settings(), True
        try:
            settings = settings_from(text) if text else settings
        except InputError:
            known = False
        given = found.get("allocator_settings")
        if (
            isinstance(given, Mapping)
            and given.get("expandable_segments") is True
            and not settings.expandable_segments
        ):
            settings = Settings(expandable_segments=True)
        return History(
            name=self.name, events=events, stacks=tuple(self.stacks), categories=tuple(self.categories),
            segments=tuple(self.device_segments(segments, device if "device_traces" in found else None)), settings=settings, settings_text=text,
            known_settings=known,
        )  # fmt: skip

    def device_events(self, traces: list[Any]) -> tuple[int | None, Columns]:
        """The device whose trace is told, and its events; None for a file without any."""
        parts, start = list[tuple[int, int]](), 0
        for trace in traces[:MOST_FRAMES]:
            if type(trace) is not list or trace.count(EVENT) != len(trace):
                raise self.refused_because("has events that are none")
            parts.append((start, start + len(trace)))
            start += len(trace)
        if start != len(self.columns) or len(traces) > MOST_FRAMES:
            raise self.refused_because("has events that are no device's")
        if not start:
            return None, self.columns
        dead = [OOM in self.columns.action[a:b] for a, b in parts]
        device = max(range(len(parts)), key=lambda each: (dead[each], parts[each][1] - parts[each][0]))
        return device, self.columns.part_between(*parts[device])

    def device_segments(self, found: list[Any], device: int | None) -> Iterator[Segment]:
        for each in found:
            if not isinstance(each, Mapping):
                raise self.refused_because("has a segment that is none")
            where = each.get("device", device or 0)
            if device is not None and where != device:
                continue
            blocks = each.get("blocks", [])
            if (
                type(blocks) is not list
                or not all(type(block) is Block for block in blocks)
                or len(blocks) > self.blocks
            ):
                raise self.refused_because("has a segment without blocks")
            with suppress(TypeError):
                yield Segment(
                    int(where), self.natural_number(each, "address"), self.natural_number(each, "total_size"), self.stream_number(each.get("stream", 0)),
                    each.get("is_expandable") is True, each.get("segment_pool_id") not in NO_POOL, tuple(blocks),
                )  # fmt: skip


def _settings_text(found: Mapping[str, Any]) -> str:
    """How the allocator was set, as the snapshot repeats it."""
    given = found.get("allocator_settings") or found.get("settings")
    if not isinstance(given, Mapping):
        return ""
    return next((text for key in SETTINGS if isinstance(text := given.get(key), str) and text), "")
