"""An answer as the page shows it: the words and figures of the screen, each in a place of its own.

The page composes no sentence: whatever it prints is here, or is a label of its form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.budget import Answer
from memsheet.plan.check import flatten_document
from memsheet.plan.document import plan_document
from memsheet.plan.names import OFFLOADABLE, SHORT
from memsheet.report.json.document import json_value
from memsheet.report.screen.bars import group_equal_sheets, rank_group_label
from memsheet.report.screen.changes import (
    change_cells,
    deciding_lines,
    fix_title,
    memory_after_fix,
    nothing_helps_words,
    room_lines,
)
from memsheet.report.screen.layout import one_line
from memsheet.report.screen.length_ladder import WORDS
from memsheet.report.screen.table import (
    answer_headline,
    answer_note_lines,
    choice_phrases,
    deciding_sheet,
    peak_table_rows,
    percent_share,
    question_words,
    quoted_sums,
)
from memsheet.report.screen.ways_to_fit import way_needs
from memsheet.report.shared.look import Look
from memsheet.report.shared.sizes import look_with_exact_digits, size_range_suffix
from memsheet.report.shared.words import changed_keys
from memsheet.sheet import Cited, Component, Derived, Evidence, Fitted, FromCode, Measured, Sheet, Traced

UNWRAPPED = 10**6
"""Columns of a line that the browser breaks."""
LISTED = 12
"""Items of a component that a row opens to, the largest first."""
PRECISION = "precision = "
"""How the line begins that names an assumed precision, which a plan has dtype by dtype."""
_SHORT_OF = {key: name for name, key in SHORT.items()}


def answer_view(answer: Answer) -> dict[str, Any]:
    """An answer in words and figures, all of one look: sizes in GiB, none wrapped."""
    sheet = deciding_sheet(answer)
    look = look_with_exact_digits(
        answer.verdict, answer.cluster, Look(width=UNWRAPPED).fitted(sheet.device.high)
    )
    head = answer_headline(answer, sheet, look)
    task, name, where = question_words(answer)
    fix = answer.verdict.cheapest_fix if answer.verdict else None
    return {
        "result": answer.verdict.result.value if answer.verdict else None,
        "word": head.word,
        "phrases": [phrase for phrase in head.phrases if phrase],
        "question": {"task": task, "name": name, "where": where.strip()},
        "choices": [phrase for phrase in choice_phrases(answer, look) if phrase],
        "change": None
        if fix is None
        else {
            "title": fix_title(fix, answer),
            "rows": [list(cells) for cells in change_cells(fix, look)],
            "after": memory_after_fix(fix, answer, look),
            "apply": typed_options(changed_keys(fix), answer),
        },
        "ways": [
            {"words": way.words, "needs": way_needs(way, look), "apply": typed_options(way.changes, answer)}
            for way in answer.ways_to_fit
        ],
        "remarks": [*deciding_lines(answer), *_nothing_helps(answer), *room_lines(answer, look)],
        "ladder": [_ladder_step(step, look) for step in answer.ladder],
        "others": [
            {"engine": other.engine, "needs": look.need(other.device.value, look.digits), "result": other.result.value}
            for other in answer.other_engines
        ],
        "unit": look.unit,
        "instant": sheet.peak_instant.value,
        "capacity_bytes": answer.cluster.device.framework_bytes if answer.cluster else None,
        "capacity": f"{look.room(answer.cluster.device.framework_bytes)} a GPU gives" if answer.cluster else "",
        "bars": [_stacked_bar(group, answer, look) for group in group_equal_sheets(answer)],
        "rows": list(_table_rows(answer, sheet, look)),
        "instants": [
            {"name": when.value.replace("_", " "), "bytes": int(sheet.at(when).value), "size": look.cell(sheet.at(when).value)}
            for when in sheet.instants
        ],
        "sums": quoted_sums(answer, sheet, look),
        "assumed": [one_line(line) for line in answer.assumed],
        "notes": list(answer_note_lines(answer, look)),
        "resolved": resolved_options(answer),
    }  # fmt: skip


def _nothing_helps(answer: Answer) -> Iterator[str]:
    """That nothing does, where something was looked for and nothing found."""
    found = (answer.verdict and answer.verdict.cheapest_fix) or answer.ways_to_fit
    if not found and (words := nothing_helps_words(answer)):
        yield words


def typed_options(changes: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """Changed keys of a plan as options by their short names; None takes an option away."""
    said = {
        _SHORT_OF.get(key, key): json_value(value)
        for key, value in changes.items()
        if not key.startswith("offload.")
    }
    moved = {
        key.removeprefix("offload."): value for key, value in changes.items() if key.startswith("offload.")
    }
    if moved:
        held = {name: bool(getattr(answer.plan.offload, name)) for name in OFFLOADABLE} | moved
        said["offload"] = ",".join(name for name, on in held.items() if on) or None
    return said


def resolved_options(answer: Answer) -> dict[str, Any]:
    """Every option of the plan as it was accounted, by its short name; those that it has not are left out."""
    document = flatten_document(plan_document(answer.plan))
    found = {_SHORT_OF[key]: held for key, held in document.items() if key in _SHORT_OF and held is not None}
    named = [line.removeprefix(PRECISION) for line in answer.assumed if line.startswith(PRECISION)]
    return {**found, **({"precision": named[0].partition(" ")[0]} if named else {})}


def _ladder_step(step: Any, look: Look) -> dict[str, Any]:
    again = step.recomputed_bytes
    return {
        "seq_len": step.seq_len, "size": look.cell(step.device_bytes), "words": WORDS[step.result],
        "result": step.result.value if step.result else None,
        "recomputed": None if again is None else {"size": look.cell(again), "words": WORDS[step.recomputed_result]},
    }  # fmt: skip


def _stacked_bar(group: list[Sheet], answer: Answer, look: Look) -> dict[str, Any]:
    sheet = group[0]
    parts = sorted(((each, sheet.of(each).value) for each in Component), key=lambda pair: -pair[1])
    device = sheet.device.ordered
    return {
        "label": rank_group_label(group, answer),
        "total": look.need(sheet.device.value, look.digits),
        "low_bytes": int(device.low), "bytes": int(device.value), "high_bytes": int(device.high),
        "range": size_range_suffix(sheet.device, look).strip(" ()"),
        "parts": [{"component": each.value, "bytes": int(size)} for each, size in parts if size > 0],
    }  # fmt: skip


def _table_rows(answer: Answer, sheet: Sheet, look: Look) -> Iterator[dict[str, Any]]:
    whole, instant = sheet.device.value, sheet.peak_instant
    for component, name, size, words in peak_table_rows(answer, sheet, look):
        held = [item for item in sheet.items if item.component is component and instant in item.at]
        held.sort(key=lambda item: -item.at[instant].value)
        yield {
            "component": component.value if component else None,
            "name": name,
            "size": look.cell(size.value),
            "share": percent_share(size.value, whole),
            "range": size_range_suffix(size.ordered, look).strip(" ()"),
            "words": words,
            "items": [
                {
                    "path": one_line(item.path) or "all",
                    "size": look.need(item.at[instant].value, 3),
                    "bytes": int(item.at[instant].value),
                    "source": evidence_words(item.evidence),
                }
                for item in held[:LISTED]
            ],
            "more": max(0, len(held) - LISTED),
        }


def evidence_words(evidence: Evidence) -> str:
    """Where a figure is from, in a line."""
    match evidence:
        case Cited():
            return f"{evidence.reference.title}, {evidence.reference.where}: {evidence.at}"
        case FromCode():
            return f"{evidence.project} {evidence.commit} {evidence.file}:{evidence.line}"
        case Derived():
            return evidence.why
        case Fitted():
            return f"fitted to {evidence.runs} on {evidence.hardware}, {evidence.date} ({evidence.spread})"
        case Traced():
            return f"traced: {evidence.op}"
        case Measured():
            return f"measured: {evidence.record}"
