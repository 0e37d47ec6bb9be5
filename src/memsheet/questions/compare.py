"""Two sheets side by side."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from memsheet import budget
from memsheet.errors import input_error, nearest_words
from memsheet.readers.sheet_json import Document, read_sheets, sheets_within
from memsheet.report.json.sheet import sheet_document
from memsheet.report.shared.comparison import Comparison
from memsheet.report.shared.comparison import compare_sheets as compare_documents
from memsheet.sheet import Instant

SheetSource = budget.Answer | Mapping[str, Any] | str | PathLike[str]


def compare(
    left: SheetSource,
    right: SheetSource,
    *,
    instant: Instant | str | None = None,
    rank: int | None = None,
    parts: bool = False,
) -> Comparison:
    """Which rows of two sheets differ, the largest difference first.

    ``left``, ``right``: answers, objects of memsheet/sheet/1, or files of one (a record too). ``instant``:
    compare there, else each sheet at its peak; ``rank``: only that one; ``parts``: what is inside a module
    apart. Raises InputError where a side is no sheet or has no such instant or rank.
    """
    when = instant_named(instant) if isinstance(instant, str) else instant
    return compare_documents(
        _source_sheet_document(left, "left"),
        _source_sheet_document(right, "right"),
        instant=when,
        rank=rank,
        parts=parts,
    )


def instant_named(name: str) -> Instant:
    """The instant of that name, of a step or of a phase. Raises InputError for another one."""
    known = [instant.value for instant in Instant]
    key = name.strip().lower().replace("-", "_")
    try:
        return Instant(key)
    except ValueError:
        near = nearest_words(key, known)
        raise input_error(
            "instant",
            name,
            "is no instant of a step",
            f"did you mean {near[0]}?" if near else ", ".join(known),
        ) from None


def _source_sheet_document(source: SheetSource, side: str) -> Document:
    if isinstance(source, budget.Answer):
        return sheets_within(sheet_document(source), side)
    if not isinstance(source, str | PathLike | Mapping):
        raise input_error(
            side, source, "is neither an answer, an object of memsheet/sheet/1 nor a file of one"
        )
    return sheets_within(source, side) if isinstance(source, Mapping) else read_sheets(str(source))
