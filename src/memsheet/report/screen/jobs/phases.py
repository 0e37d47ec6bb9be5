"""A job of several models as a screen: the verdict and the phase that decides it, the roles, what a card
holds in every phase, and what takes the room in the fullest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from memsheet.budget import Answer, Result
from memsheet.errors import printable_line
from memsheet.formulas.runtime import driver_context
from memsheet.jobs.limits import SHARE, JobLimit
from memsheet.report.screen.layout import labelled_row, one_line, render_parts
from memsheet.report.screen.table import VERDICTS, answer_note_lines, deciding_sheet, percent_share
from memsheet.report.shared.jobs.phases import (
    LACKS,
    PhaseNeed,
    doubted_reasons,
    fullest_instant,
    highest_instant,
    phase_needs,
    role_rows,
)
from memsheet.report.shared.look import Look
from memsheet.report.shared.sizes import (
    headroom_phrase,
    look_with_exact_digits,
    need_and_room,
    size_range_suffix,
)
from memsheet.report.shared.words import INSTANTS
from memsheet.sheet import Sheet

if TYPE_CHECKING:
    from memsheet.plan.device import Cluster
    from memsheet.report.screen.written.parts import Part


LEAST_REASON = 16
"""Columns of a reason beside a change, with which it is read."""
Help = tuple[str, str, Answer]
"""What to write, what it mends, and the answer with it."""


def render_job(answer: Answer, look: Look, helps: tuple[Help, ...] = (), doubt: str = "") -> str:
    """The whole screen as text that ends in a newline. ``doubt``: why files leave the verdict open."""
    return render_parts(_job_sections(answer, look, helps, doubt), look)


def render_job_limit(limit: JobLimit, look: Look) -> str:
    """The most of what was solved for, what more comes to, and the job at it."""
    return render_parts(_limit_sections(limit, look), look)


def _limit_sections(limit: JobLimit, look: Look) -> Iterator[Part]:
    share, largest = limit.what == SHARE, limit.largest
    if largest is None:
        word = "NO SHARE" if share else "NONE"
        told = (f"no {limit.what} lets every phase fit", "memsheet job says what else helps")
        yield labelled_row(word, "bold red", told, look)
    else:
        size = f"{largest:g}" if share else f"{largest:,}"
        said = (f"{limit.what} up to {size}: every phase fits",)
        counted = (f"the job has {limit.counted:,}",) if limit.counted is not None else ()
        yield labelled_row(size, "bold green", (*said, *counted), look)
    none, more = ("with 0.01", "0.01 more") if share else ("with the least", "more")
    label = none if largest is None else more
    yield from _beyond_sections(label, limit.answer, limit.beyond, look)


def _beyond_sections(label: str, answer: Answer, beyond: Answer | None, look: Look) -> Iterator[Part]:
    if beyond is not None and beyond.verdict is not None:
        sheet = deciding_sheet(beyond)
        size = sheet.device
        needs = f"needs {look.need(size.value, look.digits)}{size_range_suffix(size, look)}"
        yield labelled_row(label, "bold", (needs, f"most in {INSTANTS[fullest_instant(sheet)]}"), look)
    yield from _job_sections(answer, look)


def _job_sections(
    answer: Answer, look: Look, helps: tuple[Help, ...] = (), doubt: str = ""
) -> Iterator[Part]:
    sheet = deciding_sheet(answer)
    look = look_with_exact_digits(answer.verdict, answer.cluster, look.fitted(sheet.device.high))
    yield _job_headline(answer, sheet, look)
    reasons = [*doubted_reasons(answer), *([doubt] if doubt else [])]
    if reasons:
        yield labelled_row("Because", "bold", reasons, look, between="; ")
    if helps:
        yield _help_table(helps, look)
    yield _role_table(answer)
    others = [each for each in answer.sheets if each is not sheet]
    for each in (sheet, *others):
        yield _phase_table(answer, each, look)
    yield _room_table(sheet, look)
    if sheet.host_bytes:
        yield labelled_row("Host memory", "bold", (f"{look.need(sheet.host_bytes)} a card",), look)
    if answer.assumed:
        yield labelled_row("Assumed", "bold", map(one_line, answer.assumed), look, between="; ")
    if notes := tuple(answer_note_lines(answer, look)):
        yield labelled_row("Notes", "bold", ("\n".join(notes),), look)


def _job_headline(answer: Answer, sheet: Sheet, look: Look) -> Part:
    verdict, cluster, fullest = answer.verdict, answer.cluster, fullest_instant(sheet)
    where = f"most in {INSTANTS[fullest]}"
    if verdict is None or cluster is None:
        size = sheet.device
        need = f"{look.need(size.value, look.digits)} a card{size_range_suffix(size, look)}"
        return labelled_row("PREDICTED", "bold", (need, where), look)
    word, style = VERDICTS[verdict.result]
    short = verdict.host_short_bytes
    host = (f"host memory lacks {look.need(short)} a node",) if short else ()
    if verdict.result is Result.DOES_NOT_FIT and not short:
        where = f"dies in {INSTANTS[fullest]}"
    room = cluster.device.framework_low_bytes
    highest = highest_instant(sheet, room)
    full = sheet.at(highest, without=()).high > room
    if verdict.result is Result.UNCERTAIN and highest is not fullest and full:
        where = f"{where}, and may die in {INSTANTS[highest]}"
    left: tuple[str, ...] = (headroom_phrase(cluster.device, verdict, look),)
    if (
        verdict.result is Result.DOES_NOT_FIT
        and not short
        and sheet.device.low <= cluster.device.framework_high_bytes
    ):
        left, where = (), "a server does not start: its pool is too small for one sequence of its longest"
    elif verdict.result is Result.UNCERTAIN and any(LACKS in note for note in answer.notes):
        left = ()  # what its pool lacks is none of the card's
    phrases = (*host, *need_and_room(cluster.device, verdict, look), *left, _card_words(sheet), where)
    return labelled_row(word, style, phrases, look)


def _help_table(helps: tuple[Help, ...], look: Look) -> Part:
    """Each change by itself: what to write, a flag a line where the screen is narrow, and what a card needs
    then.
    """
    from memsheet.report.screen.written.parts import Table, Text

    cells = [(words, *_needs_then(after, look), says) for words, says, after in helps]
    heads = ("What helps", "needs then", "", "because")
    narrow = _columns_width(heads, cells) > look.width
    if narrow:
        cells = [(words.replace(" --", "\n--"), need, told, says) for words, need, told, says in cells]
    table = Table(gap=2, header_style="bold")
    longest = max(len(line) for words, *_ in cells for line in (heads[0], *words.split("\n")))
    beside = _columns_width(heads[1:3], [row[1:3] for row in cells]) + 4
    left = look.width - longest - beside
    widths = (longest, None, None, left) if narrow and left >= LEAST_REASON else (None,) * 4
    for name, width in zip(heads, widths, strict=True):
        table.add_column(name, overflow="fold", width=width)
    for words, need, told, says in cells:
        table.add_row(Text(words, "bold"), need, told, Text(says))
    return table


def _needs_then(answer: Answer, look: Look) -> tuple[str, str]:
    """What a card needs with a change, and whether it fits."""
    told = VERDICTS[answer.verdict.result][0].lower() if answer.verdict else ""
    return look.need(deciding_sheet(answer).device.value, look.digits), told


def _card_words(sheet: Sheet) -> str:
    """A card, and how many are like it."""
    return f"card {sheet.rank}" + (f" and {len(sheet.same_as)} more alike" if sheet.same_as else "")


def _role_table(answer: Answer) -> Part:
    from memsheet.report.screen.written.parts import Table, Text

    table = Table(gap=2, show_header=False)
    for _ in range(2):
        table.add_column(overflow="fold")
    cards = f" on {answer.cluster.count}×{answer.cluster.device.name}" if answer.cluster else ""
    table.add_row(Text("job", "bold"), Text(f"{printable_line((answer.job or {}).get('name'))}{cards}"))
    for name, words in role_rows(answer):
        table.add_row(Text(name, "bold"), Text(printable_line(words)))
    return table


def _phase_table(answer: Answer, sheet: Sheet, look: Look) -> Part:
    """A row a phase: where it is fullest, what a card holds there, what is left, and what each role has of
    it, below by itself where both beside one another are wider than the screen.
    """
    from memsheet.report.screen.written.parts import Group

    roles = tuple(dict.fromkeys(item.path.partition("/")[0] for item in sheet.items))
    told = answer.verdict.device if answer.verdict is not None else None
    needs = tuple(phase_needs(sheet, answer.cluster, told if sheet is deciding_sheet(answer) else None))
    heads = ("phase", "fullest in", look.unit, "range", "free")
    rows = [_phase_cells(need, look, answer.cluster) for need in needs]
    shares = [[look.cell(need.by_role.get(role, 0)) for role in roles] for need in needs]
    deciding = [need.phase == fullest_instant(sheet).phase for need in needs]
    title = _card_words(sheet) if len(answer.sheets) > 1 else None
    both = [[*row, *share] for row, share in zip(rows, shares, strict=True)]
    if _columns_width((*heads, *roles), both) <= look.width:
        return _cell_table((*heads, *roles), both, deciding, left=2, title=title)
    below = [[row[0], *share] for row, share in zip(rows, shares, strict=True)]
    return Group(
        _cell_table(heads, rows, deciding, left=2, title=title),
        "",
        _cell_table((f"{look.unit} of it", *roles), below, deciding, left=1),
    )


def _phase_cells(need: PhaseNeed, look: Look, cluster: Cluster | None) -> list[str]:
    least = driver_context(cluster.device)[0].low if cluster else 0
    low = f"{look.cell(need.device.low)} to " if need.device.low > least else "up to "
    ends = f"{low}{look.cell(need.device.high)}"
    free = "" if need.free_bytes is None else look.cell(need.free_bytes, headroom=True)
    return [need.phase, INSTANTS[need.instant.step], look.cell(need.device.value), ends, free]


def _columns_width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How wide a table of these cells is, two spaces between its columns."""
    return sum(max(map(len, column)) + 2 for column in zip(heads, *rows, strict=True)) - 2


def _cell_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    deciding: Sequence[bool],
    *,
    left: int,
    title: str | None = None,
) -> Part:
    """A table of cells, the first ``left`` columns of words, the first bold where its row decides."""
    from memsheet.report.screen.written.parts import Table, Text

    table = Table(
        gap=2, header_style="bold", title=Text(title) if title else None, title_justify="left", title_style="bold"
    )  # fmt: skip
    for number, name in enumerate(heads):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=True)
    for row, bold in zip(rows, deciding, strict=True):
        table.add_row(Text(row[0], "bold" if bold else ""), *row[1:])
    return table


def _room_table(sheet: Sheet, look: Look) -> Part:
    """What takes the room where a card holds most, by role and component."""
    from memsheet.report.screen.written.parts import Table

    fullest = fullest_instant(sheet)
    sizes: dict[tuple[str, str], int] = {}
    for item in sheet.items:
        if fullest in item.at:
            key = (item.path.partition("/")[0], item.component.value.replace("_", " "))
            sizes[key] = sizes.get(key, 0) + int(item.at[fullest].value)
    whole = sum(sizes.values())
    table = Table(gap=2, header_style="bold")
    table.add_column(f"in {INSTANTS[fullest]}", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in (look.unit, "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for (role, component), size in sorted(sizes.items(), key=lambda row: -row[1]):
        if size:
            table.add_row(role, component, look.cell(size), percent_share(size, whole))
    table.add_row("= device", "", look.cell(whole), percent_share(whole, whole))
    return table
