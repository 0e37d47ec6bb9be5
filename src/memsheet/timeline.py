"""What was allocated and released, in order: the record behind a traced or measured sheet. No torch here.

A timeline is compact: an allocation of storage ``k`` is the integer ``k``, its release ``~k``. Instants are
marked at positions in the events; the sheet is read off each instant's high-water mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.errors import input_error
from memsheet.frozen import dataclass, replace
from memsheet.sheet import Bytes, Component, Instant, Item, Sheet, Traced, Witness

EVENTS_SCHEMA = "memsheet/events/1"


@dataclass(frozen=True, slots=True)
class Storage:
    """One piece of memory. ``bytes`` as requested, ``path`` with layer indices folded, ``stream`` 0 for the
    default one.
    """

    bytes: int
    component: Component
    path: str
    op: str
    stream: int = 0
    line: str = ""  # the user's own line that asked for it, where known


@dataclass(frozen=True, slots=True)
class Mark:
    """From event number ``at`` on, the step is in ``instant``."""

    at: int
    instant: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Everything one rank allocated. ``marks`` begin with the steady step: what happened before it is the way
    there.
    """

    storages: tuple[Storage, ...]
    events: tuple[int, ...]
    marks: tuple[Mark, ...]

    @property
    def start(self) -> int:
        """The event at which the steady step begins."""
        return self.marks[0].at if self.marks else 0


@dataclass(frozen=True, slots=True)
class Peak:
    """A high-water mark: just after event ``at``, which allocated ``storage``."""

    instant: Instant
    at: int
    bytes: int
    storage: Storage | None


def without_hidden(timeline: Timeline) -> Timeline:
    """The timeline of tensors alone: what kernels allocate inside an operation (``op/name``) and libraries'
    workspaces hold nothing.
    """
    hides = {s for s in timeline.storages if s.component is Component.WORKSPACES or "/" in s.op}
    return (
        replace(timeline, storages=tuple(replace(s, bytes=0) if s in hides else s for s in timeline.storages))
        if hides
        else timeline
    )


def held_bytes_after_events(timeline: Timeline) -> Iterator[int]:
    """Bytes held after each event."""
    held, storages = 0, timeline.storages
    for event in timeline.events:
        held += storages[event].bytes if event >= 0 else -storages[~event].bytes
        yield held


def instant_peaks(timeline: Timeline) -> dict[Instant, Peak]:
    """The high-water mark of each instant of the steady step; an instant that comes again (micro-batches)
    counts as one.
    """
    curve = list(held_bytes_after_events(timeline))
    found: dict[Instant, Peak] = {}
    for mark, end in zip(timeline.marks, [*(m.at for m in timeline.marks[1:]), len(curve)], strict=True):
        at = max(range(max(mark.at - 1, 0), max(end, mark.at)), key=curve.__getitem__, default=-1)
        held = curve[at] if curve and at >= 0 else 0
        if mark.instant not in found or held > found[mark.instant].bytes:
            event = timeline.events[at] if curve else -1
            found[mark.instant] = Peak(
                mark.instant, at, held, timeline.storages[event] if event >= 0 else None
            )
    return found


def highest_peak(timeline: Timeline) -> Peak:
    """The largest of the instants' high-water marks."""
    return max(instant_peaks(timeline).values(), key=lambda p: p.bytes)


def live_storages(timeline: Timeline, at: int) -> set[int]:
    """The storages that are there just after event ``at``."""
    held: set[int] = set()
    for event in timeline.events[: at + 1]:
        if event >= 0:
            held.add(event)
        else:
            held.discard(~event)
    return held


def sheet_of(
    timeline: Timeline,
    *,
    rank: int = 0,
    stage: int = 0,
    same_as: tuple[int, ...] = (),
    notes: tuple[str, ...] = (),
) -> Sheet:
    """The sheet of a traced timeline: its items at each instant's high-water mark, which they add up to."""
    rows: dict[tuple[Component, str], dict[Instant, int]] = {}
    ops: dict[tuple[Component, str], Storage] = {}
    for instant, found in instant_peaks(timeline).items():
        for number in sorted(live_storages(timeline, found.at)):
            storage = timeline.storages[number]
            key = (storage.component, storage.path)
            row = rows.setdefault(key, {})
            row[instant] = row.get(instant, 0) + storage.bytes
            if key not in ops or storage.bytes > ops[key].bytes:
                ops[key] = storage
    order = {component: place for place, component in enumerate(Component)}
    items = [
        Item(component, path, {i: Bytes.exact(b) for i, b in at.items()}, Traced(ops[component, path].op))
        for (component, path), at in sorted(
            rows.items(), key=lambda row: (order[row[0][0]], -max(row[1].values()))
        )
    ]
    return Sheet(
        rank=rank,
        stage=stage,
        same_as=same_as,
        witness=Witness.TRACED,
        items=tuple(items),
        notes=notes,
        gradients=ended_gradients(timeline),
    )


def ended_gradients(timeline: Timeline) -> Bytes | None:
    """Gradients when the last backward has ended; None where no optimizer steps."""
    at = max((mark.at for mark in timeline.marks if mark.instant is Instant.OPTIMIZER_STEP), default=None)
    if at is None:
        return None
    there = (timeline.storages[number] for number in live_storages(timeline, at - 1))
    return Bytes.exact(sum(storage.bytes for storage in there if storage.component is Component.GRADIENTS))


# ---- as JSON -----------------------------------------------------------------------------------------------


def events_document(timeline: Timeline) -> dict[str, Any]:
    """``memsheet/events/1``: storages as rows of indices into tables of words, events as integers."""
    words: dict[str, int] = {}

    def word(text: str) -> int:
        return words.setdefault(text, len(words))

    rows = [
        [s.bytes, word(s.component.value), word(s.path), word(s.op), s.stream, word(s.line)]
        for s in timeline.storages
    ]
    marks = [[mark.at, mark.instant.value] for mark in timeline.marks]
    return {
        "schema": EVENTS_SCHEMA, "columns": ["bytes", "component", "path", "op", "stream", "line"], "words": list(words),
        "storages": rows, "events": list(timeline.events), "marks": marks,
    }  # fmt: skip


def timeline_from(document: Mapping[str, Any]) -> Timeline:
    """The timeline of an events document. Raises InputError where it is none."""
    if document.get("schema") != EVENTS_SCHEMA:
        raise input_error("events", document.get("schema"), f"is not {EVENTS_SCHEMA}")
    try:
        words = document["words"]
        storages = tuple(_parse_storage_row(row, words) for row in document["storages"])
        marks = tuple(Mark(int(at), Instant(name)) for at, name in document["marks"])
        events = tuple(int(event) for event in document["events"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise input_error(
            "events", type(error).__name__, "the rows of the document are not as its schema says"
        ) from None
    _check_event_order(events, len(storages))
    return Timeline(storages=storages, events=events, marks=marks)


def _parse_storage_row(row: Sequence[Any], words: Sequence[str]) -> Storage:
    size, component, path, op, stream, line = (int(cell) for cell in row)
    return Storage(size, Component(words[component]), words[path], words[op], stream, words[line])


def _check_event_order(events: Sequence[int], count: int) -> None:
    """Each storage is allocated once, and released at most once, after that."""
    held: set[int] = set()
    seen: set[int] = set()
    for event in events:
        number = event if event >= 0 else ~event
        fresh = event >= 0 and number < count and number not in seen
        if not fresh and not (event < 0 and number in held):
            raise input_error("events", event, "releases what is not there, or allocates a storage twice")
        if event >= 0:
            held.add(number)
            seen.add(number)
        else:
            held.discard(number)
