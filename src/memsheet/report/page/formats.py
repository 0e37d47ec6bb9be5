"""What each command finds in the forms that other programs take, by their names: one table for all."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsheet.errors import input_error
from memsheet.late import late_functions
from memsheet.report.shared.json_text import dump_json_line

if TYPE_CHECKING:
    from memsheet.budget import Answer
    from memsheet.report.page.summaries import Summary
    from memsheet.report.shared.against import Against
    from memsheet.report.shared.checked import Checked, Launch
    from memsheet.report.shared.comparison import Comparison
    from memsheet.search.advice import Advice
    from memsheet.search.serve.cuts import Deployment
    from memsheet.search.solve.targets import Solution


with late_functions(__name__):
    from memsheet.report.json.change import change_document
    from memsheet.report.json.checked import checked_document, launches_document
    from memsheet.report.json.plans import plans_document
    from memsheet.report.json.serve_plans import serving_document
    from memsheet.report.json.sheet import sheet_document
    from memsheet.report.json.solution import solution_document
    from memsheet.report.page.annotations import annotation_lines
    from memsheet.report.page.html import answer_html, bars_svg, html_page, summary_html, whole_page
    from memsheet.report.page.sarif import sarif_document
    from memsheet.report.page.sheet import answer_view, evidence_words
    from memsheet.report.page.summaries import (
        change_summary,
        checked_summary,
        comparison_summary,
        launches_summary,
        plans_summary,
        serving_summary,
        solution_summary,
    )
    from memsheet.report.shared.comparison import comparison_document

# ---- markdown ----------------------------------------------------------------------------------------------


def markdown_text(answer: Answer) -> str:
    """The verdict and the table of components, for a pull request or a job's summary."""
    view = answer_view(answer)
    lines = [*_markdown_head(view["word"], view["phrases"], view["question"].values(), view["choices"])]
    if change := view["change"]:
        rows = [
            f"- {_one_cell(words)} {steps} ({_one_cell(needs)})" for words, steps, needs in change["rows"]
        ]
        lines += [f"**{change['title']}**", "", *rows, "", change["after"], ""]
    columns = ((f"at the peak, in {view['instant'].replace('_', ' ')}", False), (view["unit"], True), ("share", True), ("why", False))  # fmt: skip
    body = [
        (
            _one_cell(row["name"]) if row["component"] else f"**{_one_cell(row['name'])}**",
            row["size"],
            row["share"],
            _one_cell(", ".join(filter(None, (row["words"], row["range"])))),
        )
        for row in view["rows"]
    ]
    return "\n".join([*lines, *_markdown_table(columns, body)]) + "\n"


def summary_markdown(summary: Summary) -> str:
    """A word, phrases and tables as Markdown."""
    lines = [*_markdown_head(summary.word, summary.phrases, summary.question, summary.choices)]
    for table in summary.tables:
        rows = [tuple(map(_one_cell, row)) for row in table.rows]
        lines += [*_markdown_table(table.columns, rows), ""]
    lines += [part for line in summary.lines for part in (_one_cell(line), "")]
    return "\n".join(lines).rstrip("\n") + "\n"


def _markdown_head(
    word: str, phrases: Iterable[str], question: Iterable[str], choices: Sequence[str]
) -> Iterator[str]:
    if word:
        yield f"**{word}** {_one_cell(' · '.join(filter(None, phrases)))}"
        yield ""
    task, name, where = question
    if task:
        asked = " ".join(
            filter(None, (task, f"**{_one_cell(name)}**" * bool(name), _one_cell(where.strip())))
        )
        yield f"{asked}: {_one_cell(' · '.join(filter(None, choices)))}" if choices else asked
        yield ""


def _markdown_table(columns: Iterable[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    columns = tuple(columns)
    yield f"| {' | '.join(name for name, _ in columns)} |"
    yield f"| {' | '.join('---:' if numbers else '---' for _, numbers in columns)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _one_cell(text: str) -> str:
    """Words that stay inside a cell, and are no markup."""
    return "".join(f"\\{letter}" if letter in "|<>*_`[]\\" else letter for letter in text)


def checked_markdown(checked: Checked) -> str:
    """The sheet, if there is one, with what the files say beside it."""
    beside = summary_markdown(checked_summary(checked))
    if checked.answer is None:
        return beside
    sheet = markdown_text(checked.answer)
    return f"{beside}\n{sheet}" if checked.stops else f"{sheet}\n{beside}"


# ---- HTML and pictures -------------------------------------------------------------------------------------


def summary_page(summary: Summary) -> str:
    """A word, the bars of the answer and tables, as a document of its own."""
    title = " ".join(filter(None, (*summary.question[:2], summary.word)))
    return str(whole_page(title, summary_html(summary, _bars_of(summary.answer))))


def checked_page(checked: Checked) -> str:
    """The sheet, if there is one, with what the files say beside it, as a document of its own."""
    beside = summary_html(checked_summary(checked))
    sheet = answer_html(answer_view(checked.answer)) if checked.answer else ""
    return str(whole_page("check", f"{beside}{sheet}" if checked.stops else f"{sheet}{beside}"))


def _bars_of(answer: Answer | None) -> str:
    return bars_svg(answer_view(answer)) if answer else ""


def _picture_of(summary: Summary) -> str:
    """The bars of the answer that a summary is of. Raises InputError where there is none."""
    if summary.answer is None:
        raise input_error("format", "svg", "draws a sheet, and there is none", "--format markdown says why")
    return f"{_bars_of(summary.answer)}\n"


# ---- rows --------------------------------------------------------------------------------------------------


def csv_text(answer: Answer) -> str:
    """One row an item and instant, in bytes, of every distinct rank (RFC 4180 but for the ends of lines)."""
    heads = ("rank", "stage", "component", "path", "instant", "bytes", "low_bytes", "high_bytes", "evidence")
    return _csv_rows(
        heads,
        (
            (sheet.rank, sheet.stage, item.component.value, item.path, when.value,
             int(size.value), int(size.low), int(size.high), evidence_words(item.evidence))
            for sheet in answer.sheets for item in sheet.items for when, size in item.at.items()
        ),
    )  # fmt: skip


def records_csv(records: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> str:
    """A row of ``keys`` for each object of a JSON document; of objects inside it the keys are dotted."""
    return _csv_rows(keys, ([_value_at(record, key) for key in keys] for record in records))


def _value_at(record: Any, key: str) -> Any:
    for part in key.split("."):
        record = record.get(part) if isinstance(record, Mapping) else None
    return record


def _csv_rows(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    import csv

    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return file.getvalue()


SIZES = ("device_bytes", "device_low_bytes", "device_high_bytes")
NAMED_TRIES = ("found", "next", "last_fitting", "expected", "possible", "least")


def _solution_csv(solution: Solution, curves: Any) -> str:
    document = solution_document(solution, curves)
    rows = ({"name": name, **held} for name in NAMED_TRIES if (held := document[name]))
    return records_csv(rows, ("name", "value", "gpus", "result", *SIZES, "headroom_bytes"))


def _plans_csv(advice: Advice, seconds: float, tokens: int | None) -> str:
    document = plans_document(advice, seconds=seconds, tokens=tokens)
    rows = (*document["plans"], *document["unsure"], *filter(None, (document["least"],)))
    keys = ("verdict", *SIZES, "step_time_s.value", "step_time_s.low", "step_time_s.high", "tokens_per_s", "mfu", "command")  # fmt: skip
    return records_csv(rows, keys)


def _serving_csv(found: Deployment, seconds: float) -> str:
    keys = ("cut", "holds", "verdict", *SIZES, "weights_bytes", "kv_cache_bytes", "replicas", "sequences", "users", "decode_s.value", "prefill_s.value", "tokens_per_s", "command")  # fmt: skip
    return records_csv(serving_document(found, seconds=seconds)["plans"], keys)


def _comparison_csv(found: Comparison) -> str:
    rows = (
        {"left_rank": pair["left_rank"], "right_rank": pair["right_rank"], **row}
        for pair in comparison_document(found)["ranks"]
        for row in pair["rows"]
    )
    keys = ("left_rank", "right_rank", "component", "path", "left_bytes", "right_bytes", "difference_bytes")
    return records_csv(rows, keys)


def _change_csv(found: Against) -> str:
    keys = ("component", "before_bytes", "after_bytes", "difference_bytes")
    return records_csv(change_document(found)["components"], keys)


MISTAKE = ("rule", "stops", "file", "line", "where", "says", "cure", "saves_bytes", "gains_bytes", "source")


def _checked_csv(checked: Checked) -> str:
    return records_csv(checked_document(checked)["mistakes"], MISTAKE)


def _launches_csv(folder: str, launches: Sequence[Launch], _: Path) -> str:
    return records_csv(_launch_records(folder, launches), ("launch", "outcome", *MISTAKE))


def _launch_records(folder: str, launches: Sequence[Launch]) -> Iterator[dict[str, Any]]:
    """A record for each mistake of a launch, or one for a launch without any."""
    for one in launches_document(folder, launches)["launches"]:
        told = {"launch": one["file"], "outcome": one["outcome"]}
        mistakes = one["checked"]["mistakes"] if one["checked"] else []
        yield from [{**told, **mistake} for mistake in mistakes] or [told]


# ---- the table ---------------------------------------------------------------------------------------------

Writer = Callable[..., str]


def _launched_alone(checked: Checked) -> list[Launch]:
    from memsheet.report.shared.checked import Launch

    return [Launch(file="", checked=checked)]


ANSWER: Mapping[str, Writer] = {
    "json": lambda answer: dump_json_line(sheet_document(answer)), "markdown": markdown_text, "html": lambda answer: html_page(answer_view(answer)),
    "svg": lambda answer: f"{_bars_of(answer)}\n", "csv": csv_text,
}  # fmt: skip
FORMATS: Mapping[str, Mapping[str, Writer]] = {
    "train": ANSWER, "infer": ANSWER, "job": {form: ANSWER[form] for form in ("json", "csv")},
    "solve": {
        "json": lambda solution, curves: dump_json_line(solution_document(solution, curves)), "markdown": lambda solution, _: summary_markdown(solution_summary(solution)),
        "html": lambda solution, _: summary_page(solution_summary(solution)), "svg": lambda solution, _: _picture_of(solution_summary(solution)), "csv": _solution_csv,
    },
    "plan train": {
        "json": lambda advice, seconds, tokens: dump_json_line(plans_document(advice, seconds=seconds, tokens=tokens)), "markdown": lambda advice, *_: summary_markdown(plans_summary(advice)),
        "html": lambda advice, *_: summary_page(plans_summary(advice)), "svg": lambda advice, *_: _picture_of(plans_summary(advice)), "csv": _plans_csv,
    },
    "plan infer": {
        "json": lambda found, seconds: dump_json_line(serving_document(found, seconds=seconds)), "markdown": lambda found, _: summary_markdown(serving_summary(found)),
        "html": lambda found, _: summary_page(serving_summary(found)), "csv": _serving_csv,
    },
    "compare": {
        "json": lambda found: dump_json_line(comparison_document(found)), "markdown": lambda found: summary_markdown(comparison_summary(found)),
        "html": lambda found: summary_page(comparison_summary(found)), "csv": _comparison_csv,
    },
    "check": {
        "json": lambda checked: dump_json_line(checked_document(checked)), "markdown": checked_markdown, "html": checked_page,
        "svg": lambda checked: _picture_of(checked_summary(checked)), "csv": _checked_csv, "sarif": lambda checked: dump_json_line(sarif_document(_launched_alone(checked))),
        "github": lambda checked: annotation_lines(_launched_alone(checked)),
    },
    "check --against": {
        "json": lambda found: dump_json_line(change_document(found)), "markdown": lambda found: summary_markdown(change_summary(found)),
        "html": lambda found: summary_page(change_summary(found)), "csv": _change_csv,
    },
    "check of several": {
        "json": lambda folder, launches, _: dump_json_line(launches_document(folder, launches)), "markdown": lambda _, launches, __: summary_markdown(launches_summary(launches)),
        "html": lambda _, launches, __: summary_page(launches_summary(launches)), "csv": _launches_csv, "sarif": lambda _, launches, root: dump_json_line(sarif_document(launches, root)),
        "github": lambda _, launches, root: annotation_lines(launches, root),
    },
}  # fmt: skip
"""Text of what a command found, by the command and the name of the form."""
