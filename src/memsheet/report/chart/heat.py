"""What fits over two axes as a picture: a cell for each pair of values, its figure in it, marked so that a
grey print reads too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from memsheet.budget import Result
from memsheet.report.chart.palette import INK, QUIET
from memsheet.report.chart.sheet import new_figure, save_figure, simplify_axes
from memsheet.report.shared.plans.heat_words import (
    HOST,
    MARKS,
    NAMES,
    axis_words,
    figure_words,
    title_of,
    under_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from memsheet.search.train.heat_map import Cell, Heat

COLOURS = {Result.FITS: "#44AA99", Result.UNCERTAIN: "#EEDD88", Result.DOES_NOT_FIT: "#F4DCDD"}
"""Teal, light yellow and a pale rose (report/chart/palette.py): dark to light in grey, in the order of the
verdicts.
"""
HATCH = {Result.FITS: "", Result.UNCERTAIN: "", Result.DOES_NOT_FIT: "////"}
STRIPES = "#E2B8BC"
NONE = "#F6F6F6"
LEGEND_LETTERS = 24
PLOT = (0.13, 0.05, 0.69, 0.72)
WIDTH, HEIGHT = 1200 * PLOT[2], 675 * PLOT[3]  # pixels of the plot


def draw_heat(heat: Heat, path: Path, *, decimal: bool = False, field: str = "picture") -> None:
    """Draw a map into ``path``, an .svg or .png file, written whole or not at all. Raises InputError as
    ``picture.draw`` does.
    """
    save_figure(lambda: figure_of(heat, decimal=decimal), path, title_of(heat), field)


def figure_of(heat: Heat, *, decimal: bool = False) -> Figure:
    """The whole figure."""
    figure, axes = new_figure(PLOT, title_of(heat), under_of(heat, decimal=decimal))
    _draw_axis_ticks(axes, heat)
    for column, across in enumerate(heat.across.values):
        for row, down in enumerate(heat.down.values):
            _draw_cell_square(axes, (column, row), heat.cells.get((across, down)))
            _draw_cell_figures(axes, (column, row), heat, heat.cells.get((across, down)), decimal=decimal)
    _draw_result_legend(axes, heat)
    return figure


def _draw_axis_ticks(axes: Axes, heat: Heat) -> None:
    """Values along the top and down the left, as in a table."""
    columns, rows = len(heat.across.values), len(heat.down.values)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xticks([n + 0.5 for n in range(columns)], [_tick_label(value) for value in heat.across.values])
    axes.set_yticks([n + 0.5 for n in range(rows)], [_tick_label(value) for value in heat.down.values])
    axes.set_xlabel(axis_words(heat.across.name), color=QUIET, labelpad=8)
    axes.set_ylabel(axis_words(heat.down.name), color=QUIET)
    simplify_axes(axes)
    longest = max(len(line) for value in heat.across.values for line in _tick_label(value).split("\n"))
    axes.tick_params(length=0, labelcolor=INK, labelsize=10)
    axes.tick_params(axis="x", labelsize=min(10.0, WIDTH / columns / (longest + 1) / 0.85))


def _tick_label(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value.replace(" + ", "\n+ ")


def _draw_cell_square(axes: Axes, place: tuple[int, int], cell: Cell | None) -> None:
    from matplotlib.patches import Rectangle

    fill, hatch = (COLOURS[cell.result], HATCH[cell.result]) if cell else (NONE, "")
    look = {"facecolor": fill, "edgecolor": STRIPES if hatch else "white", "linewidth": 0}
    axes.add_patch(Rectangle(place, 1, 1, hatch=hatch, gid=cell.result.value if cell else "none", **look))  # type: ignore[arg-type]
    axes.add_patch(Rectangle(place, 1, 1, facecolor="none", edgecolor="white", linewidth=2))


def _draw_cell_figures(
    axes: Axes, place: tuple[int, int], heat: Heat, cell: Cell | None, *, decimal: bool
) -> None:
    lines = list(_cell_lines(cell, decimal=decimal))
    size = min(
        12.0,
        WIDTH / len(heat.across.values) / max(7, *map(len, lines)) / 0.95,
        HEIGHT / len(heat.down.values) / 3.2,
    )
    for number, words in enumerate(lines):
        apart = min(0.34, 2.3 * size * len(heat.down.values) / HEIGHT)
        middle = place[1] + 0.5 + (number - (len(lines) - 1) / 2) * apart
        weight = "bold" if number == 0 and cell is not None and cell.result is Result.FITS else "normal"
        colour = INK if cell is not None and number == 0 else QUIET if cell is None else INK
        axes.text(
            place[0] + 0.5,
            middle,
            words,
            color=colour,
            fontsize=size - number,
            fontweight=weight,
            ha="center",
            va="center",
        )


def _cell_lines(cell: Cell | None, *, decimal: bool) -> Iterator[str]:
    if cell is None:
        yield "–"
        return
    figure, second = figure_words(cell, decimal=decimal)
    yield f"{figure} {MARKS[cell.result]}"
    if second:
        yield second


def _draw_result_legend(axes: Axes, heat: Heat) -> None:
    """What the colours and marks mean, and how many cells have them."""
    from matplotlib.patches import Rectangle

    for number, (result, count) in enumerate(heat.counts().items()):
        top = 0.98 - 0.075 * number
        hatch = HATCH[result]
        edge = STRIPES if hatch else "none"
        swatch = Rectangle(
            (1.025, top - 0.045),
            0.03,
            0.05,
            transform=axes.transAxes,
            clip_on=False,
            facecolor=COLOURS[result],
            edgecolor=edge,
            hatch=hatch,
            linewidth=0,
        )
        axes.add_patch(swatch)
        axes.text(
            1.065,
            top - 0.02,
            f"{MARKS[result]}  {NAMES[result]}  {count}",
            transform=axes.transAxes,
            color=INK,
            fontsize=10,
            va="center",
        )
    rest = ["–  no legal plan", *([HOST] if any(cell.host_short for cell in heat.cells.values()) else [])]
    for number, words in enumerate(rest, start=3):
        said = textwrap.fill(words, LEGEND_LETTERS)
        axes.text(
            1.025,
            0.98 - 0.075 * number - 0.02,
            said,
            transform=axes.transAxes,
            color=QUIET,
            fontsize=10 - (number > 3),
            va="center",
        )
