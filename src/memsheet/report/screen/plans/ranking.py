"""What was searched for, as a screen: the plan to take first, then the others, why it looks so, what did not
fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.budget import Result
from memsheet.formulas.step_time import CONVENTION
from memsheet.report.screen.layout import command_row, join_phrases, labelled_row, one_line, render_parts
from memsheet.report.screen.plans.story import (
    choices_table,
    copies_lines,
    next_lines,
    plain_table,
    story_table,
)
from memsheet.report.screen.table import question_summary
from memsheet.report.shared.look import Look
from memsheet.report.shared.plan_phrases import format_parameter_count
from memsheet.report.shared.plans.families import family_sort_key, uneven_lines
from memsheet.report.shared.plans.family_reason import family_rejection_reason
from memsheet.report.shared.plans.words import (
    choice_words,
    format_seconds,
    format_time_interval,
    plan_command,
    plan_summary,
)
from memsheet.report.shared.sizes import headroom_phrase, look_with_exact_digits, need_and_room
from memsheet.search.advice import NONE_FITS, Advice
from memsheet.search.train.rank import Ranking
from memsheet.search.train.timed import Planned

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part, Text

FAMILIES, REASONS = 6, 3
BILLION = 10**9


def render_plans(advice: Advice, look: Look, *, tokens: int | None = None) -> str:
    """The whole screen as text that ends in a newline. ``tokens``: a budget of training, told in
    GPU-hours.
    """
    return render_parts(_ranking_sections(advice, look, tokens), look)


def _ranking_sections(advice: Advice, look: Look, tokens: int | None) -> Iterator[Part]:
    ranking = advice.ranking
    best = ranking.plans[0] if ranking.plans else ranking.least
    if best is None:
        yield labelled_row("NO LEGAL PLAN", "bold red", map(one_line, ranking.notes), look, between="; ")
        return
    look = look.fitted(int(best.verdict.device.high))
    yield labelled_row(*best_plan_headline(ranking, best, look), look)
    yield question_summary(best.tried.answer, look)
    yield command_row("Run", plan_command(ranking, best), look)
    if ranking.plans:
        yield _plan_ranking_table(ranking, look)
        if best.time is None:
            yield _advice_paragraph((UNTIMED.format(reason=best.untimed_reason),), look)
        elif sum(map(ranking.equals, ranking.plans)) > 1:
            yield _advice_paragraph((EQUALS,), look)
    if ranking.unsure:
        yield _unsure_table(ranking, look)
    if ranking.uneven is not None:
        yield labelled_row("Unsure", "bold yellow", ("\n".join(uneven_lines(ranking)),), look)
        yield command_row("Try", plan_command(ranking, ranking.uneven.planned), look)
    if advice.batches:
        yield _global_batch_table(advice, look)
    if best.time is not None and ranking.plans:
        yield labelled_row("Cost", "bold", (training_cost_words(best, tokens),), look)
    if advice.story:
        yield story_table(advice, look)
    if lines := tuple(_ranking_advice_lines(advice, look)):
        yield _advice_paragraph(lines, look)
    if advice.strained:
        yield choices_table(advice, look)
    yield _family_table(ranking, look)
    yield labelled_row("Looked at", "bold", _plan_count_phrases(ranking), look)
    if notes := (*ranking.notes, *_ruled_out_phrases(ranking), *_timing_note_lines(best)):
        yield labelled_row("Notes", "bold", ("\n".join(map(one_line, notes)),), look)


def _ranking_advice_lines(advice: Advice, look: Look) -> Iterator[str]:
    if advice.replicas is not None:
        yield from copies_lines(advice.replicas, look)
    if advice.ranking.plans:
        yield from next_lines(advice, look)


def _advice_paragraph(lines: tuple[str, ...], look: Look) -> Text:
    from memsheet.report.screen.written.parts import Text

    return Text("\n".join(join_phrases(line.split(" "), look.width, between=" ") for line in lines))


def best_plan_headline(ranking: Ranking, best: Planned, look: Look) -> tuple[str, str, tuple[str, ...]]:
    """The word of what was found, its style, and its phrases. ``best``: the plan to take first, or the one
    that lacks least.
    """
    look = look_with_exact_digits(best.verdict, ranking.cluster, look)
    device = ranking.cluster.device
    said = *need_and_room(device, best.verdict, look), headroom_phrase(device, best.verdict, look)
    if not ranking.plans:
        short = best.verdict.host_short_bytes
        host = (f"host memory lacks {look.need(short)} a node for what it keeps there",) if short else ()
        least = f"the plan that lacks least {said[0]}"
        if ranking.result is Result.UNCERTAIN:
            return "UNCERTAIN", "bold yellow", ("nothing is sure to fit", least, *said[1:], *host)
        return "NOTHING FITS", "bold red", (least, *said[1:], *host)
    host = (host_words(best.host_bytes, ranking.cluster.per_node, look),) if best.host_bytes else ()
    found = "BEST PLAN" if best.time is not None else "SIMPLEST PLAN"
    return found, "bold green", (*_step_time_phrases(best), *said, *host)


def host_words(size: int, ranks: int, look: Look) -> str:
    """Host memory of a rank, and of a node."""
    node = f" ({look.need(size * ranks)} a node of {ranks})" if ranks > 1 else ""
    return f"{look.need(size)} of host memory a rank{node}"


def _step_time_phrases(planned: Planned) -> Iterator[str]:
    time = planned.time
    if time is None:
        yield "its step is not timed"
        return
    yield (
        f"{format_seconds(float(time.value))} a step "
        f"({format_time_interval(float(time.low), float(time.high))})"
    )
    yield f"{float(time.tokens_per_s_per_gpu):,.0f} tokens/s a GPU"
    yield f"{float(time.mfu):.0%} of the dense rate"


def training_cost_words(planned: Planned, tokens: int | None) -> str:
    """GPU-hours and days of a budget of tokens, a billion where nobody named one."""
    assert planned.time is not None
    budget = tokens or BILLION
    low, value, high = (float(hours) for hours in planned.time.gpu_hours(budget))
    gpus = float(planned.time.gpus)
    cards = "1 GPU" if gpus == 1 else f"{gpus:,.0f} GPUs"
    return (
        f"{format_parameter_count(budget)} tokens take {format_three_digits(value)} GPU-hours "
        f"({format_three_digits(low)} to {format_three_digits(high)}), "
        f"{_format_duration(value / gpus)} on {cards}"
    )


def format_three_digits(value: float) -> str:
    """Three digits that count, thousands separated."""
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{round(value, 2 - math.floor(math.log10(value))):,.{digits}f}" if value > 0 else "0"


def _format_duration(hours: float) -> str:
    """A time that people plan by."""
    for unit, name in ((24 * 365.0, "years"), (24.0, "days"), (1.0, "hours")):
        if hours >= 2 * unit:
            return f"{format_three_digits(hours / unit)} {name}"
    return f"{format_three_digits(hours * 60)} minutes"


def ranking_columns(look: Look) -> tuple[tuple[str, str], ...]:
    """Headings of the table of plans, each with its side."""
    named = ("a step", "tokens/s/GPU", "MFU", look.unit)
    return *((name, "right") for name in named), ("plan", "left")


def ranking_rows(ranking: Ranking, look: Look) -> Iterator[tuple[str, ...]]:
    """The plans that fit, the one to take first; ``=`` marks times that cannot be told from the fastest."""
    for planned in ranking.plans:
        time = planned.time
        figures = ("-", "-", "-")
        if time is not None:
            figures = (
                _ranked_step_time(ranking, planned),
                f"{float(time.tokens_per_s_per_gpu):,.0f}",
                f"{float(time.mfu):.0%}",
            )
        yield *figures, look.cell(planned.verdict.device.value), plan_summary(planned)


EQUALS = "= times that cannot be told apart: of these plans the simplest is named first"
UNTIMED = (
    "No step is timed here ({reason}): the plan that asks least of whoever runs it comes first, and each "
    "further one is smaller"
)


def _plan_ranking_table(ranking: Ranking, look: Look) -> Part:
    table = plain_table(*ranking_columns(look))
    for cells in ranking_rows(ranking, look):
        table.add_row(*cells)
    return table


def _unsure_table(ranking: Ranking, look: Look) -> Part:
    """The plans that may fit, the nearest to it first."""
    table = plain_table(
        ("low", "right"), (look.unit, "right"), ("high", "right"), ("plan that may fit", "left")
    )
    for planned in ranking.unsure:
        device = planned.verdict.device
        table.add_row(
            look.cell(device.low), look.cell(device.value), look.cell(device.high), plan_summary(planned)
        )
    return table


def _global_batch_table(advice: Advice, look: Look) -> Part:
    """The best plan of each global batch that was looked at, where nobody named one."""
    table = plain_table(
        ("global batch", "right"),
        ("a step", "right"),
        ("tokens/s/GPU", "right"),
        (look.unit, "right"),
        ("best plan", "left"),
    )
    for batch, planned, result in advice.batches:
        if planned is None:
            table.add_row(f"{batch:,}", "-", "-", "-", NONE_FITS[result] if result else "none is legal")
            continue
        time = planned.time
        figures = (
            ("-", "-")
            if time is None
            else (format_seconds(planned.seconds), f"{float(time.tokens_per_s_per_gpu):,.0f}")
        )
        table.add_row(f"{batch:,}", *figures, look.cell(planned.verdict.device.value), plan_summary(planned))
    return table


def _ranked_step_time(ranking: Ranking, planned: Planned) -> str:
    return f"{'= ' if ranking.equals(planned) else ''}{format_seconds(planned.seconds)}"


def _family_table(ranking: Ranking, look: Look) -> Part:
    """How plans may save memory, and what comes of it: the fastest that fits, or what the nearest lacks."""
    table = plain_table(
        ("what was tried", "left"),
        ("plans", "right"),
        ("fit", "right"),
        ("fastest", "right"),
        ("why not", "left"),
    )
    ordered = sorted(ranking.families, key=family_sort_key)
    for family in ordered if look.full else ordered[:FAMILIES]:
        fastest = format_seconds(family.seconds) if family.seconds is not None else "-"
        table.add_row(
            " · ".join((family.engine, *choice_words(family.choice))),
            f"{family.plans:,}",
            f"{family.fit:,}",
            fastest,
            family_rejection_reason(family, look),
        )
    if not look.full and len(ordered) > FAMILIES:
        table.add_row(f"and {len(ordered) - FAMILIES} more (--full)", "", "", "", "")
    return table


def _plan_count_phrases(ranking: Ranking) -> Iterator[str]:
    """How many plans there are, by their verdict."""
    yield f"{ranking.legal:,} legal plans of {', '.join(ranking.engines)}"
    names = {Result.FITS: "fit", Result.UNCERTAIN: "uncertain", Result.DOES_NOT_FIT: "do not fit"}
    yield from (f"{ranking.looked_at.get(result, 0):,} {name}" for result, name in names.items())


def _ruled_out_phrases(ranking: Ranking) -> Iterator[str]:
    ruled = sorted(
        ((rule, count) for rule, count in ranking.refused.items() if "divide" not in rule),
        key=lambda pair: -pair[1],
    )
    if ruled:
        yield "ruled out before: " + "; ".join(f"{count:,} {reason}" for reason, count in ruled[:REASONS])


def _timing_note_lines(best: Planned) -> Iterator[str]:
    if best.time is None:
        return
    yield f"times are for ranking; {CONVENTION}"
    yield (
        best.time.calibrated or "no measured step scales these times; `memsheet calibrate --from RECORD` does"
    )
