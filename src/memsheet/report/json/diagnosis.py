"""What a job died of, as JSON (``memsheet/diagnosis/1``)."""

from typing import Any, Literal

from memsheet.diagnose.interval import Interval
from memsheet.diagnose.verdict import Diagnosis as Diagnosed
from memsheet.errors import printable_line
from memsheet.report.json.document import Document, Natural, read_from
from memsheet.report.json.sheet import Sheet

Verdict = Literal[
    "real_need", "fragmentation", "other_process", "outside_allocator", "limit_set", "not_gpu_memory", "leak", "regime_change",
    "engine_overcommit", "engine_underprovision", "wake_up_race", "follow_up_error", "unsupported_setting", "unknown",
]  # fmt: skip


def _two_ends(size: Interval | None) -> list[int] | None:
    return None if size is None else [size.low, size.high]


class EqualTerm(Document):
    """A tensor that is as large as another, and as likely."""

    component: str
    path: str
    shape: str


class Term(Document):
    """The tensor that was asked for. ``exact``: its shape is the size; else what ran says what it was, or
    ``others`` are as large and as likely. ``words``: what it is, as the screen says it.
    """

    component: str
    path: str
    shape: str
    exact: bool
    words: str = read_from(lambda term: printable_line(term.words))
    others: list[EqualTerm]


class Cure(Document):
    """A change. ``helps``: whether the request that failed would have been served, or the check passed: yes
    where that is certain, no where it is certain that not; ``saves_bytes``: at the most, null where nobody
    can say; ``where``: the line to write.
    """

    change: str
    saves_bytes: int | None
    helps: Literal["yes", "no", "maybe"]
    where: str
    why: str


class Printed(Document):
    """A figure of the log by its fact, and what the sheet of the plan has of the same: least and most."""

    fact: str
    printed_bytes: list[int] = read_from(lambda beside: _two_ends(beside.printed))
    predicted_bytes: list[int] = read_from(lambda beside: _two_ends(beside.predicted))


class Group(Document):
    """What is live of a component, or of one line of it."""

    component: str
    line: str = read_from(lambda group: printable_line(group.line))
    bytes: Natural
    blocks: Natural


class Growth(Document):
    """What is live at the lowest place of each step, where that grows steadily; ``line``: whose grows."""

    steps: Natural
    first_bytes: Natural
    last_bytes: Natural
    bytes_per_step: Natural
    component: str
    line: str = read_from(lambda growth: printable_line(growth.line))
    line_bytes_per_step: int


class Replayed(Document):
    """The recorded requests through the simulated allocator: segment events in all and reproduced, and the
    peaks of what is reserved. ``complete``: whether the history begins with an empty allocator.
    """

    matched: Natural
    events: Natural
    recorded_peak_bytes: Natural
    replayed_peak_bytes: Natural
    complete: bool


class WhatIf(Document):
    """The same requests under other settings (``conf``), or with more memory. ``reserved_bytes``: the most,
    null where it died.
    """

    change: str
    conf: str
    lived: bool
    reserved_bytes: int | None


class RankState(Document):
    """One of several snapshots of a job."""

    name: str = read_from(lambda rank: printable_line(rank.name))
    live_bytes: Natural
    reserved_bytes: Natural
    died: bool


class Snapshot(Document):
    """What an allocator's own history shows, where it died or else where most was live. ``failures``:
    requests that failed in it; ``room_bytes``: what it had and could have had; ``least_bytes``: what tensors
    and the failed request come to in blocks; ``checkpoints``: whether any stack recomputes, null
    where that cannot be seen.
    """

    name: str = read_from(lambda held: printable_line(held.name))
    events: Natural
    failures: Natural
    died: bool
    complete: bool
    live_bytes: Natural
    reserved_bytes: Natural
    room_bytes: int | None
    least_bytes: int | None
    settings: str = read_from(lambda held: printable_line(held.conf))
    components: list[Group]
    lines: list[Group]
    request_line: str = read_from(lambda held: printable_line(held.request_line))
    checkpoints: bool | None
    steps: Natural
    growth: Growth | None
    replay: Replayed | None = read_from("replayed")
    what_if: list[WhatIf]
    ranks: list[RankState]


class Diagnosis(Document):
    """``memsheet/diagnosis/1``. Figures of a message are rounded, so each fact is its least and its most.
    ``verdict`` is unknown where there is no memory error (``found`` is false), or where ``open_between``
    names what could not be told apart. ``missing_bytes``: the shortage, at least and at the most. ``sheet``:
    of the plan that ran, where one was named; ``snapshot``: of the rank that died, where one was given.
    """

    schema_: str = "memsheet/diagnosis/1"
    inputs: list[str] = read_from(lambda found: [printable_line(name) for name in found.inputs])
    found: bool
    verdict: Verdict = read_from("cause")
    open_between: list[Verdict]
    because: str
    arithmetic: list[str]
    facts: dict[str, list[int]] = read_from(
        lambda found: {name: _two_ends(size) for name, size in found.facts.items()}
    )
    term: Term | None
    missing_bytes: list[int] | None = read_from(lambda found: _two_ends(found.missing))
    cures: list[Cure]
    notes: list[str] = read_from(lambda found: list(found.notes))
    sheet: Sheet | None = read_from("answer")
    printed: list[Printed]
    snapshot: Snapshot | None = read_from("held")


def diagnosis_document(found: Diagnosed) -> dict[str, Any]:
    """The diagnosis as plain values."""
    return Diagnosis.document_of(found)
