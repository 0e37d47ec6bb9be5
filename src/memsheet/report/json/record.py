"""A run as a record, ``memsheet/record/1``: what was asked, where it ran, and the sheet, or how it failed.
Read by readers/record.py.
"""

import gzip
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memsheet.budget import Answer
from memsheet.readers.record import RECORD_SCHEMA
from memsheet.report.json.document import Document, optional_key
from memsheet.report.json.sheet import Sheet, sheet_document
from memsheet.report.shared.files import write_whole
from memsheet.report.shared.json_text import dump_json_line
from memsheet.timeline import Timeline, events_document


class Record(Document):
    """``memsheet/record/1``: what was asked of one run, where it ran, its sheet or how it failed, and files
    beside it.
    """

    schema_: str = RECORD_SCHEMA
    at: str
    asked: dict[str, Any]
    environment: dict[str, Any]
    sheet: Sheet | None
    failure: str = optional_key()
    files: dict[str, str] = optional_key()


def record_document(
    answer: Answer, *, asked: Mapping[str, Any], files: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A measured answer as a record. ``files``: names beside the record, such as ``{"events":
    "name.events.json.gz"}``.
    """
    sheet = sheet_document(answer)
    environment = ((answer.trace or {}).get("measured") or {}).get("environment", {})
    return record_of(sheet, asked=asked, environment=environment, files=files)


def record_of(
    sheet: Mapping[str, Any] | None,
    *,
    asked: Mapping[str, Any],
    environment: Mapping[str, Any],
    files: Mapping[str, str] | None = None,
    failure: str | None = None,
) -> dict[str, Any]:
    """The record of a sheet as JSON, or of what there is instead of one. None in ``asked`` is left out."""
    return Record.document_of(
        None,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        asked={key: value for key, value in asked.items() if value is not None},
        environment=environment,
        sheet=sheet,
        failure=failure,
        files=files or None,
    )


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """Write a record, whole or not at all; compressed under a name that ends in ``.gz``. Raises InputError as
    ``write_whole`` does.
    """
    text = dump_json_line(record).encode()
    write_whole(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text, "record")


def write_events_beside(timeline: Timeline, path: Path) -> None:
    """Every allocation and release of a run (``memsheet/events/1``), to lie beside its record; compressed as
    ``write_record`` does.
    """
    text = dump_json_line(events_document(timeline)).encode()
    write_whole(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text, "events")
