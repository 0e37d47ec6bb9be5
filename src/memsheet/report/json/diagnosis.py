"""What a job died of, as JSON (``memsheet/diagnosis/1``)."""

from typing import Any, Literal

from memsheet.diagnose.interval import Interval
from memsheet.diagnose.verdict import Diagnosis as Diagnosed
from memsheet.errors import printable_line
from memsheet.report.json.document import Document, read_from
from memsheet.report.json.sheet import Sheet

Verdict = Literal[
    "real_need", "fragmentation", "other_process", "outside_allocator", "limit_set", "not_gpu_memory", "leak", "regime_change",
    "engine_overcommit", "engine_underprovision", "wake_up_race", "follow_up_error", "unknown",
]  # fmt: skip


def _two_ends(size: Interval | None) -> list[int] | None:
    return None if size is None else [size.low, size.high]


class Term(Document):
    """The tensor that was asked for. ``exact``: its shape is the size; else what ran says what it was."""

    component: str
    path: str
    shape: str
    exact: bool


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


class Diagnosis(Document):
    """``memsheet/diagnosis/1``. Figures of a message are rounded, so each fact is its least and its most.
    ``verdict`` is unknown where there is no memory error (``found`` is false), or where ``open_between``
    names what could not be told apart. ``missing_bytes``: the shortage, at least and at the most. ``sheet``:
    of the plan that ran, where one was named.
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


def diagnosis_document(found: Diagnosed) -> dict[str, Any]:
    """The diagnosis as plain values."""
    return Diagnosis.document_of(found)
