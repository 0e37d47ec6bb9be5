"""A diagnosis as a screen: what the job died of, the arithmetic that shows it, what to change, what would not
help.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.budget import Answer, Result
from memsheet.diagnose.interval import Interval, size_words
from memsheet.diagnose.message import NO, YES, Cause, Cure
from memsheet.diagnose.printed import Printed
from memsheet.diagnose.verdict import Diagnosis
from memsheet.report.screen.died.held import held_sections
from memsheet.report.screen.layout import labelled_row, one_line, render_parts
from memsheet.report.shared.look import Look
from memsheet.report.shared.words import INSTANTS

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part

TITLES = {
    Cause.REAL_NEED: "a real need: more than is left",
    Cause.FRAGMENTATION: "fragmentation: what is kept lies in pieces",
    Cause.OTHER_PROCESS: "another process on the card",
    Cause.OUTSIDE_ALLOCATOR: "memory outside PyTorch's allocator",
    Cause.LIMIT_SET: "a limit that is set, not the card",
    Cause.NOT_GPU_MEMORY: "not the GPU's memory: the host's, or another limit",
    Cause.LEAK: "a leak: what is held grows with every step",
    Cause.REGIME_CHANGE: "a step of another kind than those before it",
    Cause.ENGINE_OVERCOMMIT: "a server whose share of the card is too large",
    Cause.ENGINE_UNDERPROVISION: "a server whose share is too small",
    Cause.WAKE_UP_RACE: "a wake-up while somebody else holds the card",
    Cause.FOLLOW_UP_ERROR: "an earlier error, of which this is the echo",
    Cause.UNSUPPORTED_SETTING: "a setting that the card or the program does not take: no memory was short",
}
OF_ELSE = (Cause.NOT_GPU_MEMORY, Cause.FOLLOW_UP_ERROR, Cause.UNSUPPORTED_SETTING)
"""Causes that are no shortage of the card."""
HELPS = {YES: "would have helped", "maybe": "may help"}


def render_diagnosis(found: Diagnosis, look: Look) -> str:
    """The whole screen as text that ends in a newline."""
    return render_parts(_diagnosis_sections(found, look), look)


def _diagnosis_sections(found: Diagnosis, look: Look) -> Iterator[Part]:
    yield _diagnosis_headline(found, look)
    if found.found:
        lines = "\n".join(map(one_line, (found.because, *found.arithmetic)))
        yield labelled_row("Why", "bold", (lines,), look)
    if found.term is not None:
        yield labelled_row("Which", "bold", _term_words(found), look)
    if found.held is not None:
        yield from held_sections(found.held, found.answer, look)
    if found.answer is not None:
        yield labelled_row("Sheet", "bold", _sheet_words(found.answer, look, died=found.found), look)
    if found.printed:
        yield labelled_row("Printed", "bold", map(_printed_words, found.printed), look)
    helping = [cure for cure in found.cures if cure.helps != NO]
    useless = [cure for cure in found.cures if cure.helps == NO]
    if helping:
        yield _cure_table("Change", helping, look)
    if useless:
        yield labelled_row(
            "No use", "bold", (f"{cure.change}: {one_line(cure.why)}" for cure in useless), look, between="; "
        )
    if found.facts and (look.full or not (found.found or found.held)):
        yield labelled_row(
            "Figures", "bold", (_fact_words(name, size, look) for name, size in found.facts.items()), look
        )
    if found.notes:
        yield labelled_row("Notes", "bold", map(one_line, found.notes), look, between="; ")


def _diagnosis_headline(found: Diagnosis, look: Look) -> Part:
    if not found.found:
        return labelled_row("NOTHING TO DIAGNOSE", "bold", (found.because,), look)
    if found.cause is not Cause.UNKNOWN:
        style = "bold green" if found.cause in OF_ELSE else "bold red"
        return labelled_row("DIED OF", style, (TITLES[found.cause], *_shortage_words(found, look)), look)
    between = ", or ".join(TITLES[cause] for cause in found.open_between)
    otherwise = (
        "figures that contradict one another"
        if found.contradictory
        else "a memory error without enough figures"
    )
    return labelled_row("UNDECIDED", "bold yellow", (between or otherwise,), look)


def _shortage_words(found: Diagnosis, look: Look) -> tuple[str, ...]:
    missing = found.missing
    if missing is None or missing.high <= 0:
        return ()
    if (missing.high - missing.low) * 50 <= missing.high:
        return (f"short by {look.need(missing.middle, 2) if look.decimal else size_words(missing)}",)
    return (f"short by {look.room(missing.low, 2)} at least, {look.need(missing.high, 2)} at the most",)


def _term_words(found: Diagnosis) -> tuple[str, ...]:
    term, asked = found.term, found.facts.get("asked_bytes")
    if term is None:
        return ()
    words = " · or ".join(
        one_line(each.words or f"{each.component} {each.path}") for each in (term, *term.others)
    )
    if term.exact and asked is not None:
        return (f"{size_words(asked)} asked for = {words}",)
    if found.held is not None and asked is not None and term.path == term.words:
        return (f"{size_words(asked)} asked for at {words}",)
    return (words,) if " bytes" in words else (words, "by what ran, not by the size")


def _sheet_words(answer: Answer, look: Look, *, died: bool) -> tuple[str, ...]:
    worst = max(answer.sheets, key=lambda sheet: sheet.device.high)
    device = worst.device
    said = (
        f"predicted peak {look.need(int(device.value), 1)} (range {look.need(int(device.low), 1)} to "
        f"{look.need(int(device.high), 1)}) in {INSTANTS[worst.peak_instant]}"
    )
    if answer.verdict is None:
        return (said,)
    asked = {
        Result.FITS: "FITS, so that this run held something else" if died else "FITS",
        Result.DOES_NOT_FIT: "DOES NOT FIT",
        Result.UNCERTAIN: "UNCERTAIN",
    }
    return (said, f"memsheet says {asked[answer.verdict.result]}")


def _printed_words(beside: Printed) -> str:
    predicted = size_words(Interval(beside.expected_bytes, beside.expected_bytes))
    ends = beside.predicted
    inside = ends.low <= beside.printed.high and beside.printed.low <= ends.high
    low, high = (size_words(Interval(end, end)) for end in (ends.low, ends.high))
    said = "" if inside else f", outside {low} to {high}"
    return f"{beside.words} {size_words(beside.printed)}, predicted {predicted}{said}"


def _cure_table(word: str, cures: list[Cure], look: Look) -> Part:
    """Changes by number, each with what it may save, where it is written and whether it would have helped."""
    from memsheet.report.screen.written.parts import Table, Text

    grid = Table(gap=2, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for number, cure in enumerate(cures, start=1):
        saves = f"saves up to {look.need(cure.saves_bytes, 2)}" if cure.saves_bytes else ""
        said = " · ".join(part for part in (one_line(cure.change), saves, HELPS[cure.helps]) if part)
        grid.add_row(Text(word if number == 1 else "", "bold"), Text(str(number)), Text(said))
        for more, style in ((cure.why, "dim"), (f"→ {cure.where}" if cure.where else "", "")):
            if more:
                grid.add_row(Text(""), Text(""), Text(one_line(more), style))
    return grid


def _fact_words(name: str, size: Interval, look: Look) -> str:
    words = name.removesuffix("_bytes").replace("_", " ")
    low, high = look.room(size.low, 2), look.need(size.high, 2)
    return f"{words} {low if low == high else f'{low} to {high}'}"
