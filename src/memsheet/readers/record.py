"""A run's record (``memsheet/record/1``) read back: one JSON object, as it stands or compressed. Written by
report/json/record.py.

It is a stranger's file: read as data, within limits on its size packed and unpacked.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memsheet.errors import input_error, printable_line
from memsheet.frozen import dataclass
from memsheet.guard import MAX_JSON_BYTES, MAX_VALUES, parse_json, read_bytes
from memsheet.guard.spending import spend_bytes

RECORD_SCHEMA = "memsheet/record/1"
GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib: 15 bits of window, and a gzip header


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was asked, where it ran, and the measured sheet as JSON; or ``failure`` in its place. ``files``:
    names beside the record.
    """

    name: str
    asked: Mapping[str, Any]
    environment: Mapping[str, Any]
    sheet: Mapping[str, Any] | None
    failure: str | None
    files: Mapping[str, Any]


def read_record(path: Path) -> Record:
    """The record in a file. Raises InputError where it is none."""
    found = parse_packed(read_bytes(path, MAX_JSON_BYTES), str(path))
    if not isinstance(found, dict) or found.get("schema") != RECORD_SCHEMA:
        schema = found.get("schema") if isinstance(found, dict) else None
        raise input_error(
            str(path), schema, f"is not {RECORD_SCHEMA}", "make one with `memsheet measure … --record FILE`"
        )
    return record_from(found, path.name.split(".")[0])


def record_from(found: Mapping[str, Any], name: str) -> Record:
    """The record of a document. Raises InputError where its parts are not what the schema says."""
    for key in ("asked", "environment", "sheet", "files"):
        if found.get(key) is not None and not isinstance(found[key], Mapping):
            raise input_error(f"{name}: {key}", None, "is not an object")
    failure = found.get("failure")
    if found.get("sheet") is None and not isinstance(failure, str):
        raise input_error(name, None, "holds neither a sheet nor how it failed")
    return Record(
        name=name,
        asked=found.get("asked") or {},
        environment=found.get("environment") or {},
        sheet=found.get("sheet"),
        failure=failure if isinstance(failure, str) else None,
        files=found.get("files") or {},
    )


def sheet_within(found: Mapping[str, Any], file: str) -> Mapping[str, Any]:
    """The sheet of a record; a document that is none as it is. Raises InputError for a run that failed."""
    if found.get("schema") != RECORD_SCHEMA:
        return found
    record = record_from(found, file)
    if record.sheet is None:
        raise input_error(
            file, None, f"is the record of a run that failed: {printable_line(record.failure or '')}"
        )
    return record.sheet


def parse_packed(
    data: bytes,
    field: str,
    *,
    max_bytes: int = MAX_JSON_BYTES,
    max_values: int = MAX_VALUES,
    taken: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """The value of JSON text that may be compressed. ``taken`` as for ``parse_json``. Raises InputError for
    what is damaged or grows beyond ``max_bytes``.
    """
    if not data.startswith(GZIP):
        return parse_json(data, field, max_bytes=max_bytes, max_values=max_values, taken=taken)
    unpack = zlib.decompressobj(_GZIP_WINDOW)
    try:
        text = unpack.decompress(data, max_bytes + 1)
    except zlib.error:
        raise input_error(field, None, "is not compressed as its first bytes say") from None
    if len(text) <= max_bytes and not unpack.eof:
        raise input_error(field, None, "ends early", "was it copied completely?")
    spend_bytes(f"{field} (unpacked)", len(text))
    return parse_json(text, field, max_bytes=max_bytes, max_values=max_values, taken=taken)
