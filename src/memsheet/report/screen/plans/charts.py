"""The planner's pictures on a terminal: what fits over two axes, memory against time, the way from the naive
run.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from math import log
from typing import TYPE_CHECKING

from memsheet.budget import Result
from memsheet.report.screen.layout import join_phrases, render_parts
from memsheet.report.shared.look import Look
from memsheet.report.shared.plans.front_points import Mark, front_title, front_under, marks_of
from memsheet.report.shared.plans.heat_words import (
    HOST,
    MARKS,
    NAMES,
    axis_words,
    figure_words,
    title_of,
    under_of,
)
from memsheet.report.shared.plans.waterfall_bars import (
    Bar,
    bars_of,
    needed_size_text,
    saved_size_text,
    scale_bytes,
    step_time,
    step_time_change_text,
)
from memsheet.report.shared.plans.words import format_seconds

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Text
    from memsheet.search.fixes.savings_story import Step
    from memsheet.search.train.heat_map import Cell, Heat
    from memsheet.search.train.rank import Ranking
    from memsheet.search.train.timed import Planned

PLAIN = str.maketrans({"✓": "+", "✗": "x", "–": "-", "−": "-", "◆": "*", "─": "-", "»": ">"})
"""What layout.ASCII does not know."""
STYLES = {Result.FITS: "bold green", Result.UNCERTAIN: "yellow", Result.DOES_NOT_FIT: "red"}
HEIGHT = 16
TERMINAL = (
    "Points: plans that fit.",
    "Letters and o: none takes less of both.",
    "◆: the plan to take first, replayed.",
)
LISTED = 8
"""Plans of a front that are named; with --full all."""
GAP = 2


def _render_chart_parts(parts: Sequence[Text], look: Look) -> str:
    text = render_parts(parts, look).replace("\xa0", " ")  # which kept words on one line
    return text.translate(PLAIN) if look.ascii else text


def _chart_heading(title: str, under: str, look: Look) -> Text:
    from memsheet.report.screen.written.parts import Text

    words = textwrap.fill(title, look.width, break_on_hyphens=False)
    return Text(f"{words}\n", "bold", no_wrap=True).append(
        textwrap.fill(under, look.width, break_on_hyphens=False), "not bold"
    )


# what fits


def render_heat(heat: Heat, look: Look) -> str:
    """A map as a table; columns that a narrow screen has no room for follow below."""
    counts = " · ".join(f"{MARKS[result]} {NAMES[result]} {count}" for result, count in heat.counts().items())
    from memsheet.report.screen.written.parts import Text

    short = (HOST,) if any(cell.host_short for cell in heat.cells.values()) else ()
    legend = Text(join_phrases((counts, "– no legal plan", *short, *heat.notes), look.width), no_wrap=True)
    return _render_chart_parts(
        [
            _chart_heading(title_of(heat), under_of(heat, decimal=look.decimal), look),
            *_heat_map_blocks(heat, look),
            legend,
        ],
        look,
    )


def _heat_map_blocks(heat: Heat, look: Look) -> Iterator[Text]:
    rows = [_format_axis_value(value) for value in heat.down.values]
    head = axis_words(heat.down.name)
    left = min(max(map(len, (*rows, head))), look.width // 3)
    texts = {place: _heat_cell_texts(cell, look) for place, cell in heat.cells.items()}
    widths = [len(words) for pair in texts.values() for words in pair] + [
        len(_format_axis_value(value)) for value in heat.across.values
    ]
    wide = max(widths, default=1) + GAP
    each = max(1, (look.width - left) // wide)
    for first in range(0, len(heat.across.values), each):
        yield _heat_map_block(heat, texts, heat.across.values[first : first + each], (left, wide))


def _format_axis_value(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def _heat_cell_texts(cell: Cell, look: Look) -> tuple[str, str]:
    figure, second = figure_words(cell, decimal=look.decimal)
    return f"{figure} {MARKS[cell.result]}", second


def _heat_map_block(
    heat: Heat,
    texts: dict[tuple[int | str, int | str], tuple[str, str]],
    columns: Sequence[int | str],
    sizes: tuple[int, int],
) -> Text:
    from memsheet.report.screen.written.parts import Text

    left, wide = sizes
    head = axis_words(heat.across.name)
    text = Text(no_wrap=True)
    text.append(f"{'':{left}}{head:>{max(wide * len(columns), len(head) + GAP)}}\n", "dim")
    text.append(f"{axis_words(heat.down.name)[:left]:<{left}}", "dim").append(
        "".join(f"{_format_axis_value(value):>{wide}}" for value in columns), "bold"
    )
    for down in heat.down.values:
        lines = [f"\n{_format_axis_value(down)[:left]:>{left}}", f"\n{'':{left}}"]
        several = any(texts.get((across, down), ("", ""))[1] for across in columns)
        for number, start in enumerate(lines[: 1 + several]):
            text.append(start)
            for across in columns:
                cell = heat.cells.get((across, down))
                words = texts[across, down][number] if cell else ("–" if number == 0 else "")
                text.append(f"{words:>{wide}}", STYLES[cell.result] if cell and number == 0 else "dim")
    return text


# memory against time


def render_front(ranking: Ranking, look: Look) -> str:
    """A chart of characters, and under it the plans that it marks."""
    marks = marks_of(ranking)
    order = sorted((mark for mark in marks if not mark.best), key=lambda mark: mark.turn)
    listed = sorted(order if look.full else order[:LISTED], key=lambda mark: mark.seconds)
    letters = {id(mark): chr(ord("a") + number) if number < 26 else "o" for number, mark in enumerate(listed)}
    heading = _chart_heading(front_title(ranking), front_under(ranking, TERMINAL), look)
    if not marks:
        from memsheet.report.screen.written.parts import Text

        return _render_chart_parts([heading, Text("no plan fits whose step can be timed")], look)
    best = tuple((("◆"), mark) for mark in marks if mark.best)
    return _render_chart_parts(
        [
            heading,
            _front_scatter_text(ranking, marks, letters, look),
            _front_plan_list((*best, *((letters[id(mark)], mark) for mark in listed)), look),
        ],
        look,
    )


def _front_scatter_text(ranking: Ranking, marks: Sequence[Mark], letters: dict[int, str], look: Look) -> Text:
    from memsheet.report.screen.written.parts import Text

    capacity = ranking.cluster.device.framework_bytes
    top, zero = look.room(capacity), f"0 {look.unit}"
    left = max(len(top), len(zero)) + 1
    times = [time for time, _ in ranking.cloud] + [mark.seconds for mark in marks]
    least, most, wide = min(times), max(times), look.width - left
    dot = "." if look.ascii else "·"
    grid = [[" "] * wide for _ in range(HEIGHT)]

    def put(time: float, size: int, sign: str) -> None:
        across = round((log(time) - log(least)) / max(log(most) - log(least), 1e-12) * (wide - 1))
        grid[HEIGHT - 1 - min(int(size * HEIGHT / capacity), HEIGHT - 1)][across] = sign

    for time, size in ranking.cloud:
        put(time, size, dot)
    for mark in sorted(marks, key=lambda mark: (mark.best, id(mark) in letters)):
        put(mark.seconds, mark.device_bytes, "◆" if mark.best else letters.get(id(mark), "o"))
    text = Text(f"{top:>{left - 1}} {'─' * wide}\n", "red", no_wrap=True)
    for number, line in enumerate(grid):
        text.append(f"{zero if number == HEIGHT - 1 else '':>{left - 1}} ", "dim")
        for sign in "".join(line).rstrip():
            text.append(sign, "dim" if sign == dot else "bold magenta" if sign == "◆" else "bold cyan")
        text.append("\n")
    right = format_seconds(most)
    return text.append(
        (
            f"{'':{left}}{format_seconds(least)} "
            f"{'a step':^{max(wide - len(format_seconds(least)) - len(right) - 2, 0)}} {right}"
        ),
        "dim",
    )


def _front_plan_list(marks: Sequence[tuple[str, Mark]], look: Look) -> Text:
    from memsheet.report.screen.written.parts import Text

    text = Text(no_wrap=True)
    times = [format_seconds(mark.seconds) for _, mark in marks]
    sizes = [look.need(mark.device_bytes) for _, mark in marks]
    wide, room = max(map(len, times)), max(map(len, sizes))
    for number, ((sign, mark), time, size) in enumerate(zip(marks, times, sizes, strict=True)):
        start = f"{sign}  {time:>{wide}}  {size:>{room}}  "
        lines = join_phrases(
            (*(("take first",) if mark.best else ()), *mark.words.split(" · ")), look.width - len(start)
        ).split("\n")
        text.append("\n" * bool(number)).append(start, "bold" if mark.best else "")
        text.append(f"\n{'':{len(start)}}".join(lines))
    return text


# the way from the naive run


def render_waterfall(
    steps: Sequence[Step], look: Look, *, title: str, capacity_bytes: int, chosen: Planned | None = None
) -> str:
    """Two lines for each change: its name, a bar, what the worst GPU needs at most, what it saves, a step's
    time; its flag, what it costs.
    """
    from memsheet.report.screen.written.parts import Text

    bars = bars_of(steps, chosen)
    gives = f"│ {look.room(capacity_bytes)} a GPU gives"
    under = (
        f"{gives} · bars to the most it may need: █ expected, ▓ up to the high end, ░ what the change saves"
    )
    if not bars:
        return _render_chart_parts([_chart_heading(title, "no way to it can be told", look)], look)
    figures = [
        (
            (needed_size_text(bar, decimal=look.decimal), step_time(bar)),
            (saved_size_text(bar, decimal=look.decimal), step_time_change_text(bar)),
        )
        for bar in bars
    ]
    heads = ("at most", "a step")
    widths = [
        max(len(row[n]) for row in (heads, *(line for lines in figures for line in lines))) + GAP
        for n in range(2)
    ]
    left = min(max(24, look.width * 2 // 5), look.width - sum(widths) - 12)
    wide, most = look.width - left - sum(widths), scale_bytes(bars, capacity_bytes)
    text = Text(
        "".join(
            [" " * (left + wide), *(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True))]
        ),
        "dim",
        no_wrap=True,
    )
    for bar, row in zip(bars, figures, strict=True):
        _append_waterfall_rows(text, bar, row, (left, wide, *widths), (most, capacity_bytes))
    return _render_chart_parts([_chart_heading(title, under, look), text], look)


def _append_waterfall_rows(
    text: Text, bar: Bar, figures: Sequence[Sequence[str]], sizes: Sequence[int], scale: tuple[int, int]
) -> None:
    left, wide, *widths = sizes
    names = [
        line
        for name in join_phrases(bar.name.split(" · "), left - 4).split("\n")
        for line in textwrap.wrap(name, left - 4, break_on_hyphens=False)
    ]
    under = bar.flag if bar.taken else f"{bar.flag} · taken back"
    lines = [*names, *textwrap.wrap(under, left - 4, break_on_hyphens=False)]
    lines += [""] * (len(lines) == 1 and any(figures[1]))
    for number, line in enumerate(lines):
        mark = ("✓" if bar.fits else "✗") if number == 0 else " "
        text.append(f"\n{mark} ", STYLES[Result.FITS if bar.fits else Result.DOES_NOT_FIT])
        text.append(f"{line:<{left - 2}}", "dim" if number >= len(names) else "")
        if number < len(figures):
            _append_waterfall_bar(text, bar, wide, scale) if number == 0 else text.append(" " * wide)
            beside = "".join(
                f"{words:>{width}}" for words, width in zip(figures[number], widths, strict=True)
            )
            text.append(beside, "dim" if number else "")


def _append_waterfall_bar(text: Text, bar: Bar, wide: int, scale: tuple[int, int]) -> None:
    """Blocks up to the end of the scale, with a line through them where a GPU ends."""
    most, capacity = scale
    value, high, before = (
        round(min(size, most) * (wide - 1) / most)
        for size in (int(bar.device.value), bar.high, bar.before_bytes)
    )
    signs = list(
        f"{'█' * value}{'▓' * (high - value)}{'░' * (0 if bar.chosen else before - high)}".ljust(wide)
    )
    if bar.high > most:
        signs[wide - 2] = "»"
    edge = round(capacity * (wide - 1) / most)
    colour = STYLES[Result.FITS if bar.fits else Result.DOES_NOT_FIT].removeprefix("bold ")
    text.append("".join(signs[:edge]), colour).append("│", "bold").append("".join(signs[edge + 1 :]), colour)
