"""What ``--json`` prints where there is no answer: ``memsheet/error/1``."""

from collections.abc import Iterable
from itertools import islice
from math import isfinite
from typing import Any, Literal

from memsheet.errors import printable_line
from memsheet.report.json.document import Document, read_from

_MOST = 2**63
MOST_PROBLEMS = 1000
"""In an object that a program reads."""


def _json_or_text_value(value: object) -> object:
    """A value as JSON has it where it is short, else as text."""
    plain = value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < _MOST)
    return value if plain or (isinstance(value, float) and isfinite(value)) else printable_line(value)


class Problem(Document):
    """One thing wrong with an input."""

    field: str = read_from(lambda problem: printable_line(problem.field))
    value: str | int | float | bool | None = read_from(lambda problem: _json_or_text_value(problem.value))
    reason: str
    hint: str


class ErrorDocument(Document):
    """What ``--json`` prints in place of an answer: every problem of the input, or an error of memsheet's
    own.
    """

    schema_: str = "memsheet/error/1"
    error: Literal["bad input", "does not start", "internal error"]
    exit_code: int
    problems: list[Problem]


def error_document(kind: str, code: int, problems: Iterable[Any]) -> dict[str, Any]:
    """Problems as one object of plain values. ``kind``: "bad input", "does not start" or "internal error";
    ``code``: of the exit.
    """
    rows = list(islice(problems, MOST_PROBLEMS))
    return ErrorDocument.document_of(None, error=kind, exit_code=code, problems=rows)
