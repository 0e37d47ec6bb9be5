"""An answer as a screen: the verdict in words, what to change, what is asked, a bar, what takes the room,
what was assumed.

Complete without colour and without a terminal. Names that come from files are printed as plain text, never as
markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.budget import Answer, Result, budget_of, worst_sheet
from memsheet.errors import printable_line
from memsheet.frozen import NamedTuple, replace
from memsheet.plan.device import Basis, Cluster, Device
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.workload import Serving
from memsheet.report.screen.bars import components_by_size, marks_of, render_stacked_bars
from memsheet.report.screen.changes import what_to_change
from memsheet.report.screen.layout import join_phrases, labelled_row, one_line, render_parts
from memsheet.report.screen.length_ladder import ladder_table
from memsheet.report.screen.measured import (
    framework_name,
    measured_lines,
    measured_of,
    measured_speed_phrases,
    on_processor,
    out_of_memory_headline,
    over_steps,
)
from memsheet.report.screen.pool_shortage import pool_lacks, request_end
from memsheet.report.screen.pool_without_card import cache_size_phrases
from memsheet.report.screen.recompute_phrase import with_recompute
from memsheet.report.screen.serving import serving_lines
from memsheet.report.screen.traced import step_of, traced_lines
from memsheet.report.shared.look import Look
from memsheet.report.shared.plan_phrases import format_parameter_count, plan_choice_phrases, writes_tokens
from memsheet.report.shared.sizes import (
    headroom_phrase,
    look_with_exact_digits,
    need_and_room,
    size_range_suffix,
)
from memsheet.report.shared.uncertain_fit import SEGMENTS, beside_segments, deciding_notes
from memsheet.report.shared.words import INSTANTS, component_name, component_size_reason, model_state_bytes
from memsheet.sheet import OUTSIDE_TENSORS, Bytes, Component, Instant, Sheet, Witness
from memsheet.units import format_bytes

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part, Text

WIDE = 100
PROFILED = len("torch's profiler ")
NAMED = 80
"""Columns from which totals are called by the names that torch has for them."""
VERDICTS = {
    Result.FITS: ("FITS", "bold green"), Result.DOES_NOT_FIT: ("DOES NOT FIT", "bold red"), Result.UNCERTAIN: ("UNCERTAIN", "bold yellow"),
}  # fmt: skip


def render_answer(answer: Answer, look: Look, curve: Part | None = None) -> str:
    """The whole screen as text that ends in a newline. ``curve``: memory over the step, where it was
    traced.
    """
    return render_parts(_answer_sections(answer, look, curve), look)


def _answer_sections(answer: Answer, look: Look, curve: Part | None) -> Iterator[Part]:
    sheet = deciding_sheet(answer)
    look = look_with_exact_digits(answer.verdict, answer.cluster, look.fitted(sheet.device.high))
    died = out_of_memory_headline(answer, look)
    yield died or labelled_row(*answer_headline(answer, sheet, look), look)
    yield from what_to_change(answer, look)
    yield question_summary(answer, look)
    if answer.ladder:
        yield ladder_table(answer, look)
    for other in answer.other_engines:
        yield labelled_row(
            f"With {other.engine}",
            "bold",
            (
                VERDICTS[other.result][0],
                f"needs {look.need(other.device.value, look.digits)}",
                size_range_suffix(other.device, look).strip(" ()"),
                f"--engine {other.engine}",
            ),
            look,
        )
    if not any(cache_size_phrases(answer, sheet, look)):  # a bar of what nobody asked for would be all cache
        yield render_stacked_bars(answer, sheet, look)
    yield _peak_component_table(answer, sheet, look)
    yield from over_steps(answer, look)
    yield _in_words(answer, sheet, look)
    if curve is not None:
        yield curve
    if look.full:
        yield from (_all_items_table(each, answer, look) for each in answer.sheets)
    if answer.assumed:
        yield labelled_row("Assumed", "bold", map(one_line, answer.assumed), look, between="; ")
    if notes := tuple(answer_note_lines(answer, look)):
        yield labelled_row("Notes", "bold", ("\n".join(notes),), look)


class Headline(NamedTuple):
    """The verdict in a word, and the phrases beside it."""

    word: str
    style: str
    phrases: tuple[str, ...]


def answer_headline(answer: Answer, sheet: Sheet, look: Look) -> Headline:
    """What comes of an answer, in a word and phrases, whoever shows it."""
    verdict, cluster = answer.verdict, answer.cluster
    if verdict is None or cluster is None:
        if shorter := tuple(cache_size_phrases(answer, sheet, look)):
            return Headline(sheet.witness.value.upper(), "bold", shorter)
        peak = sheet.allocated
        tensors = f"{look.need(peak.value, look.digits)} of tensors{size_range_suffix(peak, look)}"
        where = (_deciding_rank_phrase(answer, sheet), _peak_instant_phrase(sheet))
        phrases = (tensors, *where, *measured_speed_phrases(answer))
        return Headline(sheet.witness.value.upper(), "bold", phrases)
    word, style = VERDICTS[verdict.result]
    if not answer.model.model_type and verdict.result is not Result.DOES_NOT_FIT:
        alone = "STATES" if answer.plan.task == "train" else "WEIGHTS"
        word, style = (
            f"{word}, {alone} ALONE",
            "bold yellow",
        )  # activations are not counted, so nobody knows that the job fits
    host = (
        (f"host memory lacks {look.need(verdict.host_short_bytes)} a node",)
        if verdict.host_short_bytes
        else ()
    )
    without = beside_segments(verdict, sheet, cluster)
    over = verdict if without is None else replace(verdict, headroom_bytes=_room_left(cluster, without))
    left = pool_lacks(answer, look) or headroom_phrase(cluster.device, over, look)
    if without is not None and verdict.result is Result.UNCERTAIN:
        left = SEGMENTS.rstrip(": ")
    else:
        for note in deciding_notes(answer)[:1]:
            left = f"{note.partition(':')[0]} · {left}"
    last = (_deciding_rank_phrase(answer, sheet), _peak_instant_phrase(sheet), with_recompute(answer, look))
    needs = need_and_room(cluster.device, verdict, look, without)
    taken = _taken_card(cluster.device)
    return Headline(word, style, (*host, *request_end(answer), *needs, left, *taken, *last))


def _taken_card(device: Device) -> tuple[str, ...]:
    """Which of several cards of a name the verdict is of."""
    return (f"on {device.name}, not {' or '.join(device.namesakes)}",) if device.namesakes else ()


def _room_left(cluster: Cluster, need: Bytes) -> int:
    return budget_of(cluster).capacity_bytes - int(need.value)


def deciding_sheet(answer: Answer) -> Sheet:
    """The sheet of the rank that decides: the verdict's, else the one with most bytes."""
    rank = answer.verdict.rank if answer.verdict is not None else None
    return next((sheet for sheet in answer.sheets if sheet.rank == rank), None) or worst_sheet(answer.sheets)


def _deciding_rank_phrase(answer: Answer, sheet: Sheet) -> str:
    """The worst rank, and who is like it."""
    alike, ranks = 1 + len(sheet.same_as), sum(1 + len(each.same_as) for each in answer.sheets)
    if ranks == 1:
        return ""
    if alike == ranks:
        return f"rank {sheet.rank} (all {ranks} ranks alike)"
    stage = f"stage {sheet.stage}" if answer.plan.mesh.pp > 1 else ""
    known = ", ".join(part for part in (stage, f"{alike} alike" if alike > 1 else "") if part)
    return f"rank {sheet.rank} of {ranks}" + (f" ({known})" if known else "")


def _peak_instant_phrase(sheet: Sheet) -> str:
    return f"peak in {INSTANTS[sheet.peak_instant]}"


def question_summary(answer: Answer, look: Look) -> Text:
    """The question in one line: model, hardware, and every choice that matters."""
    from memsheet.report.screen.written.parts import Text

    if step := step_of(answer):
        return Text.assemble("measure " if measured_of(answer) else "trace ", (step, "bold"))
    task, name, where = question_words(answer)
    text = Text.assemble((f"{task} ", ""), (name, "bold"), where)
    return text.append("\n" + join_phrases(choice_phrases(answer, look), look.width), "dim")


def question_words(answer: Answer) -> tuple[str, str, str]:
    """What is asked: the task, the model's name, and its size and the cards."""
    size = f"{format_parameter_count(answer.parameters)} parameters{_active_parameter_suffix(answer)}"
    where = f" on {answer.cluster.count}×{answer.cluster.device.name}" if answer.cluster else ""
    if not answer.model.model_type:
        return answer.plan.task, "", f"{size}{where}"
    return answer.plan.task, printable_line(answer.model.name), f" ({size}){where}"


def choice_phrases(answer: Answer, look: Look) -> tuple[str, ...]:
    """Every choice of the plan that matters, a phrase each."""
    plan = answer.plan
    started = ((answer.serving or {}).get("capacity") or {}).get("limit")
    if isinstance(plan.workload, Serving) and started:  # which a server may take of its pool
        plan = replace(plan, workload=replace(plan.workload, max_sequences=started))
    return tuple(plan_choice_phrases(plan, look.program, writes=writes_tokens(answer.model)))


def _active_parameter_suffix(answer: Answer) -> str:
    return (
        ""
        if answer.active_parameters == answer.parameters
        else f", {format_parameter_count(answer.active_parameters)} active"
    )


class TableRow(NamedTuple):
    """What takes the room at the peak, or one of the totals (``component`` None): its bytes, and words."""

    component: Component | None
    name: str
    size: Bytes
    words: str


def peak_table_rows(answer: Answer, sheet: Sheet, look: Look) -> Iterator[TableRow]:
    """Components at the peak, the largest first, with the three totals where each one ends, and what is
    expected beside them.
    """
    rows, wide, named = components_by_size(sheet), look.width >= WIDE, look.width >= NAMED
    of_torch = engine_of(answer.plan).serving.torch_memory

    def component_rows(of: tuple[Component, ...] | None) -> Iterator[TableRow]:
        for component, size in rows:
            if (component in of) if of else component not in OUTSIDE_TENSORS:
                words = component_size_reason(component, answer, sheet, look)
                yield TableRow(component, component_name(component), size, words)

    yield from component_rows(None)
    if not any(component in OUTSIDE_TENSORS for component, _ in rows):
        ends = (
            "all tensors; a processor reserves nothing"
            if on_processor(answer)
            else "all tensors; reserved and device totals need a GPU (--gpus)"
        )
        yield TableRow(None, "= allocated", sheet.allocated, ends)
        return
    counted = f"{'tensors; ' if wide else ''}torch.cuda.max_memory_allocated"
    yield TableRow(None, "= allocated", sheet.allocated, counted if named and of_torch else "all tensors")
    yield from component_rows((Component.ALLOCATOR_SLACK,))
    segments = (
        f"{'segments; ' if wide else ''}torch.cuda.max_memory_reserved" if named else "allocator's segments"
    )
    yield TableRow(
        None, "= reserved", sheet.reserved, segments if of_torch else "its buffers; nothing besides"
    )
    yield from component_rows((Component.CONTEXT,))
    beside = _expected_beside_sheet(answer, sheet)
    must = "" if beside else ", and what must fit" if wide else "; what must fit"
    whole = f"{'what nvidia-smi shows' if wide else 'nvidia-smi'}{must}"
    if not beside:
        yield TableRow(None, "= device", sheet.device, f"{whole}{_beside_sheet(answer, sheet, look)}")
        return
    yield TableRow(None, "= device", sheet.device, whole)
    sign, size = ("+", beside) if beside > 0 else ("-", -beside)
    known = "what the files say that no row holds" if beside > 0 else "what a card is spared of the rows"
    yield TableRow(None, f"{sign} beside the sheet", Bytes.exact(size), known)
    yield TableRow(
        None, "= needed", answer.verdict.device if answer.verdict else sheet.device, "what must fit"
    )


def _expected_beside_sheet(answer: Answer, sheet: Sheet) -> int:
    """What the verdict expects more than its sheet, or less (negative)."""
    verdict = answer.verdict
    return (
        0 if verdict is None or verdict.rank != sheet.rank else int(verdict.device.value - sheet.device.value)
    )


def _beside_sheet(answer: Answer, sheet: Sheet, look: Look) -> str:
    """The verdict's range, where it holds more than the sheet that it is about."""
    verdict = answer.verdict
    if verdict is None or verdict.rank != sheet.rank:
        return ""
    device, own = verdict.device, sheet.device
    if (device.low, device.high) == (own.low, own.high):
        return ""
    ends = f"{look.cell(device.low)} to {look.cell(device.high)}"
    return f"; {ends} with what is open and on no row"


def _peak_component_table(answer: Answer, sheet: Sheet, look: Look) -> Part:
    """What takes the room at the peak, as a table."""
    from memsheet.report.screen.written.parts import Table, Text

    table = Table(gap=1, show_header=True, header_style="bold")
    table.add_column("", no_wrap=True)
    wide = look.width >= WIDE
    when = "when it died, " if "died" in (answer.trace or {}) else "at the peak, " if wide else ""
    named_when = f"{when}in {INSTANTS[sheet.peak_instant]}"
    table.add_column(named_when, no_wrap=True)
    table.add_column(look.unit, justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    profiled = wide and sheet.witness is Witness.MEASURED and answer.plan.task == "train"
    if profiled:
        table.add_column("torch's profiler", no_wrap=True)
    table.add_column("why", overflow="fold")
    marks, whole = marks_of(sheet), sheet.device.value
    rows = tuple(peak_table_rows(answer, sheet, look))
    names = max(len(named_when), len("  = allocated"), *(len(row.name) for row in rows))
    room = look.width - names - len(f"{look.cell(whole)}  100.0% █ ") - (PROFILED if profiled else 0)
    for component, name, size, words in rows:
        style = "bold" if component is None else ""
        told = _append_size_range(words, _cell_range_words(size, look), room)
        of_torch = framework_name(component, sheet) if component else ""
        table.add_row(
            Text(*marks[component]) if component else "",
            Text(name, style),
            Text(look.cell(size.value), style),
            percent_share(size.value, whole),
            *((of_torch,) if profiled else ()),
            Text(told, "" if component else "dim"),
        )
    return table


def _append_size_range(words: str, ends: str, room: int) -> str:
    """Words and a range, which is not broken: on a line of its own where both are more than the room."""
    return (
        f"{words}{ends}"
        if not words or not ends or len(words) + len(ends) <= room
        else f"{words}\n{ends.strip()}"
    )


def _cell_range_words(size: Bytes, look: Look) -> str:
    size = size.ordered
    low, high = look.cell(size.low), look.cell(size.high)
    return "" if size.low == size.high or low == high == look.cell(size.value) else f" ({low} to {high})"


def percent_share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else ""


def _in_words(answer: Answer, sheet: Sheet, look: Look) -> Text:
    """Sums that people quote, as text."""
    from memsheet.report.screen.written.parts import Text

    return Text("\n".join(quoted_sums(answer, sheet, look)))


def quoted_sums(answer: Answer, sheet: Sheet, look: Look) -> list[str]:
    """Sums that people quote: the states in GB and GiB, every instant's peak, the host, the cache."""
    names, size = model_state_bytes(sheet)
    training, cache = answer.plan.task == "train", sheet.of(Component.KV_CACHE)
    alone, each = (
        "Model states alone" if training else "Weights alone",
        "" if on_processor(answer) else " a GPU",
    )
    kept = (
        f"; cache: {format_bytes(cache.value, decimal=True)} ({format_bytes(cache.value)})"
        if cache.value and not training
        else ""
    )
    first = (
        f"{alone} ({names}): {format_bytes(size.value, decimal=True)}{each} "
        f"({format_bytes(size.value)}){kept}."
    )
    writes = writes_tokens(answer.model)
    instants = (
        f"{when.value} {look.cell(sheet.at(when).value)}"
        for when in sheet.instants
        if writes or when is not Instant.DECODE
    )
    lines = [
        *([first] if size.value else []),
        join_phrases((f"Allocated over the step, in {look.unit}:", *instants), look.width, between="  "),
    ]
    lines += _saved_elsewhere(sheet)
    if sheet.host_bytes:
        lines.append(f"Host memory: {look.need(sheet.host_bytes)} a rank.")
    elif (most := max(answer.sheets, key=lambda one: one.host_bytes, default=sheet)).host_bytes:
        lines.append(f"Host memory: {look.need(most.host_bytes)} (rank {most.rank}).")
    lines += serving_lines(answer, look)
    lines += traced_lines(answer, look)
    lines += measured_lines(answer, look)
    return lines


def _saved_elsewhere(sheet: Sheet) -> Iterator[str]:
    """Saved activations at their largest, where that is more than at the peak."""
    saved = Component.SAVED_ACTIVATIONS
    when = max(sheet.instants, key=lambda instant: sheet.of(saved, instant=instant).value)
    most, here = sheet.of(saved, instant=when).value, sheet.of(saved).value
    if most > here:
        there = f"{format_bytes(here, decimal=True)} ({format_bytes(here)})" if here else "none"
        yield (
            f"Saved activations: {format_bytes(most, decimal=True)} ({format_bytes(most)}) at their "
            f"most, in {INSTANTS[when]}; at the peak {there}."
        )


def _all_items_table(sheet: Sheet, answer: Answer, look: Look) -> Part:
    """Every item with its folded path at every instant."""
    from memsheet.report.screen.written.parts import Table, Text

    title = (
        f"Every item of {_deciding_rank_phrase(answer, sheet) or 'the rank'}, in {look.unit} at each "
        "instant's high-water mark"
    )
    table = Table(
        gap=1,
        title=Text(title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
    )
    table.add_column("component and path", overflow="fold")
    for instant in sheet.instants:
        table.add_column(instant.value.replace("_", "\n"), justify="right", no_wrap=True, vertical="bottom")
    order = {component: number for number, component in enumerate(Component)}
    last = None
    for item in sorted(sheet.items, key=lambda item: (order[item.component], -item.largest.value)):
        if item.component is not last:
            held = (sheet.of(item.component, instant=instant).value for instant in sheet.instants)
            table.add_row(
                Text(component_name(item.component), "bold"),
                *(Text(look.cell(size) if size else "", "bold") for size in held),
            )
            last = item.component
        cells = (
            look.cell(item.at[instant].value) if instant in item.at else "" for instant in sheet.instants
        )
        table.add_row(Text("  " + (printable_line(item.path) or "all")), *cells)
    return table


def answer_note_lines(answer: Answer, look: Look) -> Iterator[str]:
    if answer.cluster is not None and answer.cluster.device.basis is not Basis.ASKED:
        device = answer.cluster.device
        box = format_bytes(device.datasheet_bytes, decimal=True, digits=1)
        known = "" if device.basis is Basis.REPORTED else f" ({printable_line(device.evidence)})"
        yield (
            f"a framework gets {look.room(device.framework_bytes, look.digits)} of each {device.name} "
            f"(sold as {box}){known}"
        )
        yield from device.notes if device.unified else ()
        if (
            answer.verdict
            and answer.verdict.result is Result.FITS
            and answer.verdict.device.high > device.framework_low_bytes
        ):
            yield (
                "what a server takes grows with the card: the high end is of the largest such card, and "
                "it fits on the least and on the largest"
            )
    notes = (
        *answer.notes,
        *(note for sheet in answer.sheets for note in sheet.notes),
        *answer.model.source.notes,
    )
    told = deciding_notes(answer)
    yield from dict.fromkeys(one_line(note) for note in notes if note not in told)
