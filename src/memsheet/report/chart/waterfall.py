"""The way from the naive run to a plan as a picture: a bar for each change, what it saved hatched, what it
costs in time beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsheet.report.chart.palette import ALARM, INK, QUIET
from memsheet.report.chart.sheet import new_figure, save_figure, simplify_axes, wrap_phrases
from memsheet.report.shared.plans.waterfall_bars import (
    Bar,
    bars_of,
    needed_size_text,
    saved_size_text,
    scale_bytes,
    step_time,
    step_time_change_text,
)
from memsheet.units import GIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from memsheet.search.fixes.savings_story import Step
    from memsheet.search.train.timed import Planned

LEFT, WIDTH = 0.31, 0.4
TOP, BOTTOM, ROW = 1.42, 0.55, 0.48
"""Inches above the bars, below them, and of each."""
SHORTEST = 3.4
LOWER = 0.45
"""Rows that the last bar stands lower where it is another plan, whose words take more room."""
FITS, TOO_MUCH = "#44AA99", "#CC6677"
"""Teal and rose (report/chart/palette.py); a mark beside the name says the same in grey."""
COLUMNS = ((0.795, "needs at most"), (0.885, "against before"), (0.975, "a step"))
"""Right edges of the figures beside the bars, as shares of the picture."""
LETTERS = 56
TYPE = 10.0
TALL = 0.62


def draw_waterfall(
    steps: Sequence[Step],
    path: Path,
    *,
    title: str,
    capacity_bytes: int,
    chosen: Planned | None = None,
    decimal: bool = False,
    field: str = "picture",
) -> None:
    """Draw the way into ``path``, an .svg or .png file, written whole or not at all. ``chosen``: the plan at
    its end, where it is another. Raises InputError as ``picture.draw`` does.
    """
    bars = bars_of(steps, chosen)
    save_figure(lambda: figure_of(bars, title, capacity_bytes, decimal=decimal), path, title, field)


def figure_of(bars: Sequence[Bar], title: str, capacity_bytes: int, *, decimal: bool = False) -> Figure:
    """The whole figure."""
    under = (
        "Bars: the most that the fullest GPU may need, its expected part dark. Hatched: what the change "
        "saves. Times are of one optimizer step; what a change "
        "costs or gains stands below."
    )
    tall = max(SHORTEST, TOP + BOTTOM + ROW * (len(bars) + LOWER))
    figure, axes = new_figure(
        (LEFT, BOTTOM / tall, WIDTH, (tall - TOP - BOTTOM) / tall), title, under, tall=tall
    )
    unit, most = 10**9 if decimal else GIB, scale_bytes(bars, capacity_bytes)
    axes.set_xlim(0, most * 1.03 / unit)
    axes.set_ylim((tall - TOP - BOTTOM) / ROW - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xlabel("GB" if decimal else "GiB", color=QUIET)
    simplify_axes(axes, "x")
    for number, bar in enumerate(bars):
        row = number + LOWER * bar.chosen
        _draw_change_bar(axes, row, bar, most, unit)
        _draw_change_text(axes, row, bar, decimal=decimal)
    _draw_change_headings(axes)
    _draw_waterfall_capacity(axes, capacity_bytes, unit, decimal=decimal)
    _draw_chosen_plan_rule(axes, bars)
    return figure


def _draw_change_bar(axes: Axes, row: float, bar: Bar, most: int, unit: int) -> None:
    """The expected part, up to the high end, then what was saved; each cut where the scale ends."""
    colour = FITS if bar.fits else TOO_MUCH
    look: dict[str, Any] = {"height": TALL, "linewidth": 0, "gid": "fits" if bar.fits else "too_much"}
    value, high, before = (
        min(size, most) / unit for size in (int(bar.device.value), bar.high, bar.before_bytes)
    )
    dim = 1.0 if bar.taken else 0.35
    axes.barh(row, value, color=colour, alpha=dim, **look)
    axes.barh(row, high - value, left=value, color=colour, alpha=0.45 * dim, **look)
    if before > high and not bar.chosen:
        axes.barh(
            row,
            before - high,
            left=high,
            height=TALL,
            color="none",
            edgecolor="#BBBBBB",
            hatch="////",
            linewidth=0,
            gid="saved",
        )
    if bar.high > most:
        middle = most * 0.97 / unit
        for shift in (0.0, most * 0.012 / unit):
            axes.plot(
                [middle + shift, middle + shift + most * 0.012 / unit],
                [row + 0.4, row - 0.4],
                color="white",
                linewidth=2.2,
            )


def _draw_change_text(axes: Axes, row: float, bar: Bar, *, decimal: bool) -> None:
    """What was changed on the left, its figures on the right."""
    across, size = axes.get_yaxis_transform(), TYPE
    name = wrap_phrases(bar.name, LETTERS)
    many = "\n" in name
    under = bar.flag if bar.taken else f"{bar.flag} · tried, taken back"
    mark = "✓" if bar.fits else "✗"
    left = (0.02 - LEFT) / WIDTH
    axes.text(
        left, row, mark, transform=across, color=FITS if bar.fits else ALARM, fontsize=size + 1, va="center"
    )
    up = row - (0.2 if under else 0) - 0.08 * many
    axes.text(
        left + 0.05,
        up,
        name,
        transform=across,
        color=INK,
        fontsize=size - 2 * many,
        va="center",
        linespacing=1.15,
    )
    if under:
        axes.text(
            left + 0.05,
            row + (0.36 if many else 0.23),
            under,
            transform=across,
            color=QUIET,
            fontsize=size - 1.5,
            va="center",
        )
    for (right, _), (first, second) in zip(COLUMNS, _change_figures(bar, decimal=decimal), strict=True):
        x = (right - LEFT) / WIDTH
        axes.text(
            x,
            row - (0.2 if second else 0),
            first,
            transform=across,
            color=INK,
            fontsize=size,
            ha="right",
            va="center",
        )
        axes.text(
            x, row + 0.23, second, transform=across, color=QUIET, fontsize=size - 1.5, ha="right", va="center"
        )


def _change_figures(bar: Bar, *, decimal: bool) -> tuple[tuple[str, str], ...]:
    return (
        (needed_size_text(bar, decimal=decimal), ""),
        (saved_size_text(bar, decimal=decimal), ""),
        (step_time(bar), step_time_change_text(bar)),
    )


def _draw_change_headings(axes: Axes) -> None:
    for right, words in COLUMNS:
        axes.text(
            (right - LEFT) / WIDTH,
            1.015,
            words,
            transform=axes.transAxes,
            color=QUIET,
            fontsize=9,
            ha="right",
            va="bottom",
        )


def _draw_waterfall_capacity(axes: Axes, size: int, unit: int, *, decimal: bool) -> None:
    """What a GPU gives, as a line from top to bottom that is named above."""
    axes.axvline(size / unit, color=ALARM, linewidth=1.4)
    words = f"{format_bytes(size, decimal=decimal, headroom=True, digits=1)} a GPU gives"
    right = size / unit > 0.5 * axes.get_xlim()[1]
    axes.text(
        size / unit,
        1.015,
        words,
        transform=axes.get_xaxis_transform(),
        color=ALARM,
        fontsize=9,
        ha="right" if right else "left",
        va="bottom",
    )


def _draw_chosen_plan_rule(axes: Axes, bars: Sequence[Bar]) -> None:
    """Between the way and the plan that the search took."""
    if len(bars) > 1 and bars[-1].chosen:
        left, right = (0.02 - LEFT) / WIDTH, (0.975 - LEFT) / WIDTH
        axes.plot(
            [left, right],
            [len(bars) - 1.5 + LOWER * 0.4] * 2,
            transform=axes.get_yaxis_transform(),
            color=QUIET,
            linewidth=0.8,
            clip_on=False,
        )
