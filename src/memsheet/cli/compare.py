"""`memsheet compare`."""

from __future__ import annotations

from memsheet.cli import screen
from memsheet.cli.flags import whole
from memsheet.cli.line import Given
from memsheet.errors import nearest, refuse
from memsheet.readers.sheet_json import read_sheets
from memsheet.report.comparison import compare as compared
from memsheet.sheet import Instant


def compare(asked: Given) -> int:
    """Two sheets side by side: which rows differ, the largest difference first."""
    decimal = screen.decimal(asked.units)
    when, only = _instant(asked.instant), _rank(asked.rank)
    if asked.left == asked.right == "-":
        raise refuse("sheet", "-", "is named twice, and stdin can be read once", "put one of the two in a file")
    found = compared(read_sheets(asked.left), read_sheets(asked.right), instant=when, rank=only, parts=asked.full)
    if asked.json:
        from memsheet.report.comparison import comparison_document

        screen.write_json(comparison_document(found))
    else:
        from memsheet.report.bars import Look
        from memsheet.report.comparison_table import render_comparison

        look = Look(width=screen.width(), decimal=decimal, full=asked.full, colour=screen.colour(), ascii=screen.plain_ascii())
        screen.write(render_comparison(found, look))
    return 0


def _instant(name: str | None) -> Instant | None:
    if name is None:
        return None
    known = [instant.value for instant in Instant]
    key = name.strip().lower().replace("-", "_")
    if key not in known:
        near = nearest(key, known)
        raise refuse("instant", name, "is no instant of a step", f"did you mean {near[0]}?" if near else ", ".join(known))
    return Instant(key)


def _rank(text: str | None) -> int | None:
    if text is None:
        return None
    found = whole(text)
    if isinstance(found, str) or found < 0:
        raise refuse("rank", text, "is not a whole number from 0")
    return found
