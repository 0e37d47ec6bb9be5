"""What a command found as a word, phrases and tables, whatever form it is then written in: one summary a
kind of finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memsheet.budget import Answer
from memsheet.frozen import NamedTuple
from memsheet.report.page.sheet import UNWRAPPED
from memsheet.report.screen.checked import (
    OUTCOMES,
    change_columns,
    change_headline,
    change_rows,
    common_card_cells,
    cure_effects,
    doubt_words,
    launch_reason,
    mistake_words,
    option_words,
    stop_words,
)
from memsheet.report.screen.comparison_table import comparison_headline, side_labels, signed_difference
from memsheet.report.screen.layout import one_line
from memsheet.report.screen.plans.ranking import best_plan_headline, ranking_columns, ranking_rows
from memsheet.report.screen.plans.serving import (
    serving_headline,
    serving_heads,
    serving_question,
    serving_rows,
)
from memsheet.report.screen.solution import (
    neighbour_columns,
    neighbour_rows,
    solution_headline,
    solution_look,
)
from memsheet.report.screen.table import choice_phrases, question_words
from memsheet.report.shared.against import Against
from memsheet.report.shared.checked import Checked, Launch, place_of
from memsheet.report.shared.comparison import Comparison
from memsheet.report.shared.look import Look
from memsheet.report.shared.words import component_name

if TYPE_CHECKING:
    from memsheet.search.advice import Advice
    from memsheet.search.serve.cuts import Deployment
    from memsheet.search.solve.targets import Solution

LOOK = Look(width=UNWRAPPED)


class Table(NamedTuple):
    """A table: of each column its heading and whether numbers stand below it, and the rows."""

    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]


class Summary(NamedTuple):
    """A finding in words. ``question``: the task, the name of what is asked about, and where; ``answer``: the
    one whose bars are drawn.
    """

    word: str
    phrases: Sequence[str]
    question: tuple[str, str, str] = ("", "", "")
    choices: Sequence[str] = ()
    tables: tuple[Table, ...] = ()
    lines: tuple[str, ...] = ()
    answer: Answer | None = None


def solution_summary(solution: Solution) -> Summary:
    """What was solved for: the last value that fits, and what stands around it."""
    look, answer = solution_look(solution, LOOK), solution.shown.answer
    word, _, phrases = solution_headline(solution, look)
    table = Table(neighbour_columns(solution, look), tuple(neighbour_rows(solution, look)))
    said = choice_phrases(answer, look)
    return Summary(word, phrases, question_words(answer), said, (table,), answer=answer)


def plans_summary(advice: Advice) -> Summary:
    """The plans that fit, or the one that lacks least."""
    ranking = advice.ranking
    best = ranking.plans[0] if ranking.plans else ranking.least
    if best is None:
        return Summary("NO LEGAL PLAN", ranking.notes)
    look, answer = LOOK.fitted(int(best.verdict.device.high)), best.tried.answer
    word, _, phrases = best_plan_headline(ranking, best, look)
    columns = tuple((name, side == "right") for name, side in ranking_columns(look))
    rows = tuple(ranking_rows(ranking, look))
    tables = (Table(columns, rows),) if rows else ()
    return Summary(word, phrases, question_words(answer), choice_phrases(answer, look), tables, answer=answer)


def serving_summary(found: Deployment) -> Summary:
    """How a load is held, and every cut beside the others."""
    where, asked = serving_question(found)
    word, _, phrases = serving_headline(found, LOOK)
    heads = serving_heads(LOOK)
    columns = tuple((name, 0 < place < len(heads) - 1) for place, name in enumerate(heads))
    table = Table(columns, tuple(serving_rows(found, LOOK)))
    return Summary(word, phrases, ("serve", found.model.name, where), asked, (table,))


def comparison_summary(found: Comparison) -> Summary:
    """Two sheets: which is larger, and by which components, of the ranks that differ most."""
    pair, names = found.pairs[0], side_labels(found)
    look = LOOK.fitted(max(pair.sizes))
    word, _, phrases = comparison_headline(pair, names, look)

    def cells(name: str, left: int, right: int) -> tuple[str, ...]:
        change = signed_difference(right - left, look) if right != left else "="
        return name, look.cell(left), look.cell(right), change

    rows = [
        cells(component_name(each), int(row.left.value), int(row.right.value))
        for each, row in pair.components().items()
    ]
    columns = ((f"sizes in {look.unit}", False), *((name, True) for name in (*names, "difference")))
    table = Table(columns, (*rows, cells("= compared", *pair.sizes)))
    sides = f"{one_line(found.left.file)} and {one_line(found.right.file)}"
    return Summary(word, phrases, ("compare", sides, ""), (), (table,))


def checked_summary(checked: Checked) -> Summary:
    """What stands beside the sheet of configuration files: why there is none, and their mistakes."""
    word, phrases = "", list[str]()
    if checked.stops:
        word, phrases = OUTCOMES["does_not_start"], [stop_words(checked).partition(":")[0]]
    elif checked.answer is None:
        word = "KEYS ALONE" if checked.keys_alone else OUTCOMES["no_sheet"]
        phrases = [line for line in (checked.no_model, *checked.why_not) if line]
    cards = tuple(common_card_cells(checked, LOOK))
    columns = (("on common cards", False), ("needs", True), ("", False))
    tables = (Table(columns, cards),) if cards else ()
    if checked.mistakes:
        tables = (*tables, _mistake_table([("", checked)]))
    doubt = doubt_words(checked)
    lines = (doubt,) if doubt else ()
    if not checked.mistakes:
        lines = (*lines, "No known mistake found.")
    return Summary(word, phrases, tables=tables, lines=lines, answer=checked.answer)


def _mistake_table(files: Iterable[tuple[str, Checked]]) -> Table:
    """The mistakes of files. A name beside some of them is told where a mistake names no file itself."""
    rows = []
    for name, checked in files:
        for rule, found in checked.mistakes:
            place = place_of(checked, found)
            line = "" if place is None or place.line is None else str(place.line)
            cure = " · ".join((found.cure, *cure_effects(found, LOOK)))
            named = any(found.where.startswith(f"{one}:") for one in checked.reads)
            where = f"{name}: {found.where}" if name and not named else found.where
            rows.append(("stops" if found.stops else "", where, line, found.says, f"{cure} [{rule.id}]"))
    columns = (("", False), ("where", False), ("line", True), ("mistake", False), ("cure", False))
    return Table(columns, tuple(dict.fromkeys(rows)))


def change_summary(found: Against) -> Summary:
    """What changed between two states of a job's files."""
    sheets = [int(sheet.device.value) for sheet in found.sheets if sheet is not None]
    look = LOOK.fitted(max(sheets)) if sheets else LOOK
    word, _, phrases = change_headline(found, look)
    differ = any(one != two for _, one, two in found.components())
    tables = (Table(change_columns(look), tuple(change_rows(found, look))),) if differ else ()
    told = (
        ("Changed", option_words(found)),
        ("New mistakes", mistake_words(found.new_mistakes)),
        ("Cured", mistake_words(found.gone_mistakes)),
    )
    lines = tuple(f"{name}: {'; '.join(held)}" for name, held in told if held)
    return Summary(word, phrases, tables=tables, lines=lines)


def launches_summary(launches: Iterable[Launch]) -> Summary:
    """Every launch of several files, a row each."""
    held = tuple(launches)
    rows = []
    for one in held:
        verdict = one.checked.answer.verdict if one.checked and one.checked.answer else None
        need = LOOK.need(verdict.device.value) if verdict else ""
        mistakes = str(len(one.checked.mistakes)) if one.checked else ""
        rows.append((OUTCOMES[one.outcome], one.file, need, mistakes, launch_reason(one)))
    columns = (("", False), ("file", False), ("needs", True), ("mistakes", True), ("why", False))
    word = OUTCOMES[min((one.outcome for one in held), key=list(OUTCOMES).index, default="fits")]
    told = _mistake_table((one.file, one.checked) for one in held if one.checked)
    tables = (Table(columns, tuple(rows)), *((told,) if told.rows else ()))
    return Summary(word, (f"the worst of {len(held)}",), tables=tables)
