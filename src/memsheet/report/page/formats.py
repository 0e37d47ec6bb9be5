"""An answer in the forms that other programs take, by their names."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping

from memsheet.budget import Answer
from memsheet.report.json.sheet import sheet_document
from memsheet.report.page.html import bars_svg, html_page
from memsheet.report.page.sheet import answer_view, evidence_words
from memsheet.report.shared.json_text import dump_json_line


def csv_text(answer: Answer) -> str:
    """One row an item and instant, in bytes, of every distinct rank (RFC 4180 but for the ends of lines)."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(
        ("rank", "stage", "component", "path", "instant", "bytes", "low_bytes", "high_bytes", "evidence")
    )
    for sheet in answer.sheets:
        for item in sheet.items:
            for when, size in item.at.items():
                ends = (int(size.value), int(size.low), int(size.high))
                where = (sheet.rank, sheet.stage, item.component.value, item.path, when.value)
                rows.writerow((*where, *ends, evidence_words(item.evidence)))
    return file.getvalue()


def markdown_text(answer: Answer) -> str:
    """The verdict and the table of components, for a pull request or a job's summary."""
    view = answer_view(answer)
    asked, when = view["question"], view["instant"].replace("_", " ")
    choices = _one_cell(" · ".join(view["choices"]))
    lines = [
        f"**{view['word']}** {_one_cell(' · '.join(view['phrases']))}",
        "",
        f"{asked['task']} **{_one_cell(asked['name'])}** {_one_cell(asked['where'])}: {choices}",
        "",
    ]
    if change := view["change"]:
        rows = [
            f"- {_one_cell(words)} {steps} ({_one_cell(needs)})" for words, steps, needs in change["rows"]
        ]
        lines += [f"**{change['title']}**", "", *rows, "", change["after"], ""]
    lines += [f"| at the peak, in {when} | {view['unit']} | share | why |", "| --- | ---: | ---: | --- |"]
    for row in view["rows"]:
        why = _one_cell(", ".join(filter(None, (row["words"], row["range"]))))
        name = row["name"] if row["component"] else f"**{row['name']}**"
        lines.append(f"| {name} | {row['size']} | {row['share']} | {why} |")
    return "\n".join(lines) + "\n"


def _one_cell(text: str) -> str:
    """Words that stay inside a cell, and are no markup."""
    return "".join(f"\\{letter}" if letter in "|<>*_`[]\\" else letter for letter in text)


FORMATS: Mapping[str, Callable[[Answer], str]] = {
    "json": lambda answer: dump_json_line(sheet_document(answer)), "markdown": markdown_text, "html": lambda answer: html_page(answer_view(answer)),
    "svg": lambda answer: f"{bars_svg(answer_view(answer))}\n", "csv": csv_text,
}  # fmt: skip
"""Text of an answer, by the name of its form."""
