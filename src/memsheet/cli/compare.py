"""`memsheet compare`."""

from __future__ import annotations

from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import refuse
from memsheet.plan.values import whole
from memsheet.questions.compare import compare as compare_sheets


def compare(asked: Given) -> int:
    """Two sheets side by side: which rows differ, the largest difference first."""
    decimal = screen.decimal(asked.units)
    only = _rank(asked.rank)
    if asked.left == asked.right == "-":
        raise refuse("sheet", "-", "is named twice, and stdin can be read once", "put one of the two in a file")
    found = compare_sheets(asked.left, asked.right, instant=asked.instant, rank=only, parts=asked.full)
    if asked.json:
        from memsheet.report.shared.comparison import comparison_document

        screen.write_json(comparison_document(found))
    else:
        from memsheet.report.screen.comparison_table import render_comparison
        from memsheet.report.shared.look import Look

        look = Look(width=screen.width(), decimal=decimal, full=asked.full, colour=screen.colour(), ascii=screen.plain_ascii())
        screen.write(render_comparison(found, look))
    return 0


def _rank(text: str | None) -> int | None:
    if text is None:
        return None
    found = whole(text)
    if isinstance(found, str) or found < 0:
        raise refuse("rank", text, "is not a whole number from 0")
    return found
