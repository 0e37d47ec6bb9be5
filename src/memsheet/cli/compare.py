"""`memsheet compare`."""

from __future__ import annotations

from memsheet.cli import screen
from memsheet.cli.forms import check_form, write_form
from memsheet.cli.line import Given
from memsheet.errors import input_error
from memsheet.plan.values import parse_whole_number
from memsheet.questions.compare import compare as compare_sheets


def compare(asked: Given) -> int:
    """Two sheets side by side: which rows differ, the largest difference first."""
    decimal = screen.wants_decimal_units(asked.units)
    check_form("compare", asked.output)
    only = _parse_rank(asked.rank)
    if asked.left == asked.right == "-":
        raise input_error(
            "sheet", "-", "is named twice, and stdin can be read once", "put one of the two in a file"
        )
    found = compare_sheets(asked.left, asked.right, instant=asked.instant, rank=only, parts=asked.full)
    if asked.output is not None:
        write_form("compare", asked.output, found)
    elif asked.json:
        from memsheet.report.shared.comparison import comparison_document

        screen.write_json(comparison_document(found))
    else:
        from memsheet.report.screen.comparison_table import render_comparison

        look = screen.terminal_look(decimal=decimal, full=asked.full)
        screen.write_stdout(render_comparison(found, look))
    return 0


def _parse_rank(text: str | None) -> int | None:
    if text is None:
        return None
    found = parse_whole_number(text)
    if isinstance(found, str) or found < 0:
        raise input_error("rank", text, "is not a whole number from 0")
    return found
