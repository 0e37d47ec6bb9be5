"""`memsheet compare`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from memsheet.cli import screen
from memsheet.cli.flags import Debug, Json, whole
from memsheet.errors import nearest, refuse
from memsheet.readers.sheet_json import read_sheets
from memsheet.report.comparison import compare as compared
from memsheet.sheet import Instant


def _document(words: str, metavar: str) -> Parameter:
    return Parameter(help=words, metavar=metavar, allow_leading_hyphen=True)


def _option(words: str, **more: object) -> Parameter:
    return Parameter(help=words, negative="", show_default=False, **more)  # type: ignore[arg-type]


def compare(
    left: Annotated[
        str, _document("A sheet that `memsheet train|infer|trace|measure --json` printed, a record, or - for stdin.", "A.json")
    ],
    right: Annotated[str, _document("The sheet to compare with it.", "B.json")],
    /,
    *,
    instant: Annotated[str | None, _option("Compare at this instant; without it, each sheet at its peak.", metavar="NAME")] = None,
    rank: Annotated[str | None, _option("Compare this rank only.", metavar="N")] = None,
    full: Annotated[bool, _option("Every row, with what is inside a module apart.")] = False,
    json: Json = False,
    units: Annotated[str, _option("GiB, or GB for decimal.", metavar="UNIT")] = "GiB",
    debug: Debug = False,
) -> int:
    """Two sheets side by side: which rows differ, the largest difference first."""
    del debug  # read from the command line itself
    decimal = screen.decimal(units)
    when, only = _instant(instant), _rank(rank)
    if left == right == "-":
        raise refuse("sheet", "-", "is named twice, and stdin can be read once", "put one of the two in a file")
    found = compared(read_sheets(left), read_sheets(right), instant=when, rank=only, parts=full)
    if json:
        from memsheet.report.comparison import comparison_document

        screen.write_json(comparison_document(found))
    else:
        from memsheet.report.bars import Look
        from memsheet.report.comparison_table import render_comparison

        look = Look(width=screen.width(), decimal=decimal, full=full, colour=screen.colour(), ascii=screen.plain_ascii())
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
