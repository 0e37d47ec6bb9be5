"""A ``memsheet/sheet/1`` document read back: what ``memsheet train|infer|trace --json`` printed, from a file
or from stdin.

It is a stranger's file like any other: every value that is used is checked, and a document whose rows do not
add up to its totals is refused, because a comparison of its rows would explain nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from memsheet.errors import Problem, input_error, printable_line, raise_if_problems
from memsheet.frozen import dataclass
from memsheet.guard import MAX_JSON_BYTES, parse_json, read_bytes, read_stdin
from memsheet.readers.fields import Fields
from memsheet.readers.record import parse_packed, sheet_within
from memsheet.sheet import Bytes, Component, Derived, Instant, Item, Sheet, Witness

SCHEMA = "memsheet/sheet/1"
MAX_RANKS, MAX_ITEMS, MAX_PATH = 4096, 20_000, 500  # a document holds distinct ranks only, and folded paths
MAX_BYTES = 2**60  # no machine holds an EiB; sums of so many rows stay exact
MAX_RANK = 2**31
INSTANTS = tuple(instant.value for instant in Instant)
SHOWN = 5
"""Problems told at most: a document that is wrong throughout is wrong in one way."""

E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The sheets of one document, one for each distinct rank, and what they are of. ``file`` is the name it
    was asked for by.
    """

    file: str
    witness: Witness
    model: str
    sheets: tuple[Sheet, ...]


def read_sheets(name: str) -> Document:
    """The document in the file ``name``, or on stdin for ``-``; of a record (``memsheet/record/1``), its
    sheet.

    Raises InputError where it is none, with every problem found.

    An item's range is known for its largest instant only and stands at those that equal it. Evidence is not
    read back.
    """
    shown = "stdin" if name == "-" else name
    return sheets_within(_parse_sheet_stdin() if name == "-" else _parse_sheet_file(Path(name)), shown)


def sheets_within(document: Mapping[str, Any], shown: str) -> Document:
    """As ``read_sheets``, of what has been parsed; ``shown``: where it is from."""
    found = sheet_within(document, shown)
    if found.get("schema") != SCHEMA:
        hint = (
            "make one with `memsheet train … --json > FILE`, `memsheet infer … --json` or `memsheet "
            "trace … --json`"
        )
        raise input_error(shown, found.get("schema"), f"is not {SCHEMA}", hint)
    fields = Fields(found)
    read = _read_sheet_document(fields, shown)
    raise_if_problems([_prefix_problem_file(shown, problem) for problem in fields.problems[:SHOWN]])
    return read


def _parse_sheet_stdin() -> dict[str, Any]:
    return _require_json_object(parse_json(read_stdin("sheet", MAX_JSON_BYTES), "stdin"), "stdin")


def _parse_sheet_file(path: Path) -> dict[str, Any]:
    return _require_json_object(parse_packed(read_bytes(path, MAX_JSON_BYTES), str(path)), str(path))


def _require_json_object(found: Any, name: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise input_error(name, found, "holds no object of keys and values at its top level")
    return found


def _prefix_problem_file(file: str, problem: Problem) -> Problem:
    return Problem(
        field=f"{file}: {problem.field}", value=problem.value, reason=problem.reason, hint=problem.hint
    )


def _read_sheet_document(fields: Fields, file: str) -> Document:
    witness = _enum_member(fields, "witness", Witness)
    rows = _read_object_list(fields, "ranks", MAX_RANKS)
    if not rows and not fields.problems:
        fields.wrong("ranks", None, "is empty", "a sheet has at least one rank")
    sheets = tuple(_read_rank_sheet(row, witness) for row in rows)
    twice = _first_duplicate([rank for sheet in sheets for rank in (sheet.rank, *sheet.same_as)])
    if twice is not None:
        fields.wrong("ranks", twice, "is a rank that stands there twice")
    return Document(
        file=file,
        witness=witness,
        model=printable_line(fields.sub("model").text("name", default="")),
        sheets=sheets,
    )


def _read_rank_sheet(fields: Fields, witness: Witness) -> Sheet:
    items = tuple(_read_sheet_item(row) for row in _read_object_list(fields, "items", MAX_ITEMS))
    stated = _bytes_by_instant(fields.sub("instants"))
    named = dict.fromkeys((*stated, *(when for item in items for when in item.at)))
    sheet = Sheet(
        rank=_read_rank_number(fields),
        stage=fields.count("stage", default=0, low=0, high=MAX_RANK),
        witness=witness,
        same_as=fields.counts("same_as", high=MAX_RANK),
        items=items,
        host_bytes=fields.count("host_bytes", default=0, low=0, high=MAX_BYTES),
        phased=tuple(when for when in named if when.phase),
    )
    if not sheet.instants:
        fields.wrong("items", None, "hold nothing at any instant")
    for instant in () if fields.problems else sheet.instants:
        size = int(sheet.at(instant).value)
        if stated.get(instant, size) != size:
            reason = f"is not what its items add up to, {size}"
            fields.wrong(f"instants.{instant.value}", stated[instant], reason, "was it edited by hand?")
    return sheet


def _read_rank_number(fields: Fields) -> int:
    if fields.data.get("rank") is None:
        fields.wrong("rank", None, "is missing")
    return fields.count("rank", default=0, low=0, high=MAX_RANK)


def _read_sheet_item(fields: Fields) -> Item:
    component, path = _enum_member(fields, "component", Component), fields.text("path", default="")
    if len(path) > MAX_PATH:
        fields.wrong("path", path, f"is longer than {MAX_PATH} characters")
    least = (
        -MAX_BYTES if component is Component.UNEXPLAINED else 0
    )  # a device may have counted less than was seen
    sizes = _bytes_by_instant(fields.sub("at"), least)
    largest = fields.count("bytes", default=max(sizes.values(), default=0), low=least, high=MAX_BYTES)
    low = fields.count("low_bytes", default=largest, low=least, high=MAX_BYTES)
    high = fields.count("high_bytes", default=largest, low=least, high=MAX_BYTES)
    if not low <= largest <= high:
        fields.wrong("bytes", largest, f"is outside its own range, {low} to {high}")
    at = {
        instant: Bytes(low, size, high) if size == largest else Bytes.exact(size)
        for instant, size in sizes.items()
    }
    return Item(component, path, at, Derived("as the document says"))


def _bytes_by_instant(fields: Fields, least: int = 0) -> dict[Instant, int]:
    """An object of instants and bytes."""
    known = {name: found for name in fields.data if (found := _instant_named(name)) is not None}
    for name, size in fields.data.items():
        if name not in known:
            fields.wrong(name, None, f"is no instant of a step: {', '.join(INSTANTS)}")
        elif size is None:
            fields.wrong(name, None, "is not a whole number")
    return {
        known[name]: fields.count(name, default=0, low=least, high=MAX_BYTES)
        for name in fields.data
        if name in known
    }


def _instant_named(name: object) -> Instant | None:
    """An instant of a step, or of a phase of a job."""
    try:
        return Instant(name)
    except ValueError:
        return None


def _enum_member(fields: Fields, key: str, kind: type[E]) -> E:
    """A text that names a member of an enum; its first where it does not, which is then a problem."""
    values = [member.value for member in kind]
    if fields.data.get(key) is None:
        fields.wrong(key, None, "is missing")
    return kind(fields.text(key, default=values[0], choices=values))


def _read_object_list(fields: Fields, key: str, most: int) -> list[Fields]:
    """A list of objects; their problems join those of ``fields``."""
    found = fields.data.get(key)
    if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
        fields.wrong(key, None, "is not a list of objects")
        return []
    if len(found) > most:
        fields.wrong(key, len(found), f"has more than {most} rows")
        return []
    where = f"{fields.where}.{key}" if fields.where else key
    return [Fields(row, f"{where}[{number}]", fields.problems) for number, row in enumerate(found)]


def _first_duplicate(numbers: list[int]) -> int | None:
    seen: set[int] = set()
    for number in numbers:
        if number in seen:
            return number
        seen.add(number)
    return None
