"""What to change: the second thing on a screen, after the verdict. Every change was accounted again, and can
be typed as it is printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.budget import Answer, Fix, Result, Verdict, budget_of, worst_sheet
from memsheet.errors import printable_line
from memsheet.frozen import replace
from memsheet.report.screen.layout import labelled_row, one_line
from memsheet.report.screen.pool_shortage import pool_shortage_lines, refused_lines
from memsheet.report.screen.serving import prompt_lines
from memsheet.report.screen.ways_to_fit import ways_table
from memsheet.report.shared.look import Look
from memsheet.report.shared.sizes import look_with_exact_digits, size_range_suffix
from memsheet.report.shared.typed_changes import change_line
from memsheet.report.shared.uncertain_fit import DECIDES, deciding_notes, in_vain_words
from memsheet.report.shared.words import changed_keys
from memsheet.units import format_bytes

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part


def what_to_change(answer: Answer, look: Look) -> Iterator[Part]:
    """The changes that make a job fit, or what a server lacks and what makes room in it; nothing where all is
    well.
    """
    verdict = answer.verdict
    if decides := deciding_lines(answer):
        yield labelled_row("What decides", "bold", ("\n".join(decides),), look)
    if verdict is not None and verdict.cheapest_fix is not None:
        yield fix_rows(verdict.cheapest_fix, answer, look)
    elif answer.ways_to_fit:
        yield ways_table(answer.ways_to_fit, look, answer.plan.task)
    elif words := nothing_helps_words(answer):
        yield labelled_row("What helps", "bold", (words,), look)
    if lines := room_lines(answer, look):
        from memsheet.report.screen.written.parts import Text

        yield Text("\n".join(lines))


def deciding_lines(answer: Answer) -> list[str]:
    """What decides, and how: expert routing, or which types lie in a file."""
    return [
        f"{named}: {one_line(note).removeprefix(prefix)}"
        for note in deciding_notes(answer)
        for prefix, named in DECIDES.items()
        if note.startswith(prefix)
    ]


def nothing_helps_words(answer: Answer) -> str:
    """That changes were looked for and none helps; nothing elsewhere."""
    verdict = answer.verdict
    if verdict is None or not _in_vain(verdict, answer):
        return ""
    return FITS_AS_KNOWN if _fits_as_known(verdict, answer) else in_vain_words(verdict)


FITS_AS_KNOWN = "by what is known it fits as it stands: what is open decides, and is told below"


def _fits_as_known(verdict: Verdict, answer: Answer) -> bool:
    """Whether the sheet itself fits, beside which its files leave something open."""
    room = budget_of(answer.cluster).low_bytes if answer.cluster else 0
    known = bool(answer.sheets) and worst_sheet(answer.sheets).device.high <= room
    known = known and int(verdict.device.value) <= room
    return known and verdict.result is Result.UNCERTAIN and not verdict.host_short_bytes


def room_lines(answer: Answer, look: Look) -> list[str]:
    """What a server lacks, and what makes room in it."""
    short = (answer.serving or {}).get("short_bytes")
    lines = [
        *prompt_lines(answer, look),
        *(refused_lines(answer, look) if short is not None and short.high > 0 else ()),
    ]
    if short is None or short.value <= 0:
        lines += pool_shortage_lines(answer, look)
    return lines


def _in_vain(verdict: Verdict, answer: Answer) -> bool:
    """Whether changes were looked for, and none helps."""
    searched = (
        not verdict.unsought
        and answer.plan.task == "train"
        and answer.trace is None
        and bool(answer.model.model_type)
    )
    return searched and verdict.result is not Result.FITS and not _has_room(verdict, answer)


def _has_room(verdict: Verdict, answer: Answer) -> bool:
    """Whether the sheet fits whole, so that the doubt is of something else and there is nothing to save."""
    return (
        answer.cluster is not None
        and verdict.device.high <= budget_of(answer.cluster).low_bytes
        and not verdict.host_short_bytes
    )


def fix_title(fix: Fix, answer: Answer) -> str:
    """What a list of changes is."""
    together = "both" if len(fix.changes) == 2 else f"all {len(fix.changes)}"
    sure = answer.verdict is not None and answer.verdict.result is Result.UNCERTAIN
    fits = "fits by what is known" if fix.open_ended else "is sure to fit" if sure else "fits"
    if fix.host_short_bytes:
        fits += f" once the job asks for {format_bytes(fix.host_short_bytes)} more of a node's host memory"
    if len(fix.changes) == 1:
        return f"The cheapest change that {fits}"
    return f"The shortest list found that {fits}: {together} changes together"


def change_cells(fix: Fix, look: Look) -> Iterator[tuple[str, str, str]]:
    """Of each change what it is, the expected need before and after it, and what it costs."""
    for change in fix.changes:
        steps = f"{look.cell(change.before_bytes)} → {look.cell(change.after_bytes)} {look.unit}"
        yield printable_line(change.words), steps, printable_line(change.needs)


def fix_rows(fix: Fix, answer: Answer, look: Look) -> Part:
    """The changes one after another, each with the expected need before and after it, and the flags that make
    them.
    """
    from memsheet.report.screen.written.parts import Group, Table, Text

    table = Table(gap=1, show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("change", overflow="fold")
    table.add_column("before", justify="right", no_wrap=True)
    table.add_column("needs", overflow="fold")
    for number, (words, steps, needs) in enumerate(change_cells(fix, look), start=1):
        mark = "→" if len(fix.changes) == 1 else f"{number}"
        table.add_row(mark, Text(words), steps, Text(needs, "dim"))
    return Group(
        Text(fix_title(fix, answer), "bold"),
        table,
        *(Text(line) for line in _most_moved(fix, answer, look)),
        Text(memory_after_fix(fix, answer, look)),
        Text(change_line(changed_keys(fix), look, answer.plan.task)),
        *(Text(f"in {printable_line(name)}  {_joined(keys)}") for name, keys in fix.in_files),
    )


def _most_moved(fix: Fix, answer: Answer, look: Look) -> Iterator[str]:
    """What a change moves where the expected need fits without it: the most that may be needed."""
    verdict = answer.verdict
    if verdict is None or answer.cluster is None or fix.open_ended or verdict.no_most:
        return
    if verdict.device.value <= budget_of(answer.cluster).low_bytes and fix.device.high < verdict.device.high:
        before, after = look.cell(int(verdict.device.high)), look.cell(int(fix.device.high))
        yield f"the most that it may need  {before} → {after} {look.unit}"


def _joined(keys: tuple[str, ...]) -> str:
    return ", ".join(map(printable_line, keys))


def memory_after_fix(fix: Fix, answer: Answer, look: Look) -> str:
    """What a GPU needs then, in as many digits as show that it fits."""
    fitted = replace(answer.verdict, device=fix.device) if answer.verdict else None
    look = look_with_exact_digits(fitted, answer.cluster, look)
    after = f"then {look.need(fix.device.value, look.digits)} a GPU{size_range_suffix(fix.device, look)}"
    if answer.cluster:
        after += f", {look.room(answer.cluster.device.framework_bytes - fix.device.value, look.digits)} free"
    if fix.host_bytes:
        ranks = answer.cluster.per_node if answer.cluster else 1
        node = f" ({look.need(fix.host_bytes * ranks)} a node of {ranks})" if ranks > 1 else ""
        after += f", and {look.need(fix.host_bytes)} of host memory a rank{node}"
    return after
