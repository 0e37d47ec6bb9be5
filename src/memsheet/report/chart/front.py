"""Memory against time as a picture: every plan that fits, the front of those that none beats in both, the
plan to take first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsheet.report.chart.palette import ALARM, INK, QUIET
from memsheet.report.chart.sheet import (
    annotate_nearby,
    line_pixel_box,
    marker_pixel_box,
    new_figure,
    save_figure,
    simplify_axes,
    text_pixel_box,
    wrap_phrases,
)
from memsheet.report.shared.plans.front_points import Mark, front_title, front_under, marks_of
from memsheet.report.shared.plans.words import format_seconds
from memsheet.units import GIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    from memsheet.search.train.rank import Ranking

PLOT = (0.07, 0.1, 0.9, 0.73)
CLOUD, FRONT, BEST = "#BBBBBB", "#332288", "#882255"
"""Grey, indigo and wine of report/chart/palette.py; the marks differ in shape and size besides."""
NAMED = 6
"""Points of the front with words beside them: more would lie on one another."""
LETTERS = 40
WIDE = 3.0
"""From this ratio of the slowest to the fastest on, seconds are on a scale of powers."""
FINE, COARSE = (1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5)
"""Where seconds are marked in every power of ten: on a short scale, on a long one."""


def draw_front(ranking: Ranking, path: Path, *, decimal: bool = False, field: str = "picture") -> None:
    """Draw a search into ``path``, an .svg or .png file, written whole or not at all. Raises InputError as
    ``picture.draw`` does.
    """
    save_figure(lambda: figure_of(ranking, decimal=decimal), path, front_title(ranking), field)


def figure_of(ranking: Ranking, *, decimal: bool = False) -> Figure:
    """The whole figure."""
    unit = 10**9 if decimal else GIB
    figure, axes = new_figure(PLOT, front_title(ranking), front_under(ranking))
    marks = marks_of(ranking)
    _set_axis_scales(axes, ranking, marks, unit, decimal=decimal)
    taken = list(_draw_capacity_line(axes, ranking, unit, decimal=decimal))
    if not marks:
        axes.text(
            0.5,
            0.5,
            "no plan fits whose step can be timed",
            transform=axes.transAxes,
            color=QUIET,
            fontsize=12,
            ha="center",
        )
        return figure
    _draw_plan_points(axes, ranking, marks, unit)
    taken += [box for mark in marks for box in _mark_boxes(axes, mark, unit)]
    _label_front_plans(axes, marks, taken, unit, decimal=decimal)
    return figure


def _set_axis_scales(
    axes: Axes, ranking: Ranking, marks: Sequence[Mark], unit: int, *, decimal: bool
) -> None:
    from matplotlib.ticker import NullLocator

    times = [time for time, _ in ranking.cloud] + [end for mark in marks for end in mark.range_s] or [1.0]
    least, most = min(times), max(times)
    if most > WIDE * least:
        axes.set_xscale("log")
        axes.set_xlim(least / 1.15, most * 1.15)
        steps = FINE if most < 20 * least else COARSE
        ticks = (step * 10.0**power for power in range(-3, 7) for step in steps)
        axes.set_xticks([tick for tick in ticks if least / 1.15 <= tick <= most * 1.15])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        room = max(most - least, least * 0.1) * 0.08
        axes.set_xlim(least - room, most + room)
    axes.xaxis.set_major_formatter(lambda x, _: format_seconds(float(x)))
    axes.set_ylim(0, ranking.cluster.device.framework_bytes / unit * 1.1)
    axes.set_xlabel("a step", color=QUIET)
    axes.set_ylabel(f"{'GB' if decimal else 'GiB'} expected on the fullest GPU", color=QUIET)
    simplify_axes(axes, "both")


def _draw_capacity_line(axes: Axes, ranking: Ranking, unit: int, *, decimal: bool) -> tuple[Bbox, Bbox]:
    """What a GPU gives, as a line that is named; the boxes of both."""
    size = ranking.cluster.device.framework_bytes
    line = axes.axhline(size / unit, color=ALARM, linewidth=1.4)
    words = (
        f"{ranking.cluster.device.name} gives {format_bytes(size, decimal=decimal, headroom=True, digits=1)}"
    )
    named = axes.text(
        0.995,
        size / unit * 1.012,
        words,
        transform=axes.get_yaxis_transform(),
        color=ALARM,
        fontsize=9,
        ha="right",
        va="bottom",
    )
    return line.get_window_extent().padded(2), text_pixel_box(named)


def _draw_plan_points(axes: Axes, ranking: Ranking, marks: Sequence[Mark], unit: int) -> None:
    """The cloud, the front as steps (between two of its plans there is none that takes less of both), the
    best plan with its ranges.
    """
    if ranking.cloud:
        axes.scatter(
            [time for time, _ in ranking.cloud],
            [size / unit for _, size in ranking.cloud],
            s=9,
            color=CLOUD,
            linewidths=0,
            gid="cloud",
            zorder=2,
        )
    front = [mark for mark in marks if not mark.best]
    if front:
        across, up = [mark.seconds for mark in front], [mark.device_bytes / unit for mark in front]
        axes.step(across, up, where="post", color=FRONT, linewidth=1.4, alpha=0.7, zorder=3)
        axes.plot(across, up, "o", color=FRONT, markersize=6, gid="front", zorder=4)
    for mark in (mark for mark in marks if mark.best):
        x, y = mark.seconds, mark.device_bytes / unit
        (low_s, high_s), (low, high) = mark.range_s, mark.range_bytes
        either: dict[str, Any] = {
            "xerr": [[x - low_s], [high_s - x]],
            "yerr": [[y - low / unit], [high / unit - y]],
        }
        look: dict[str, Any] = {
            "fmt": "D",
            "color": BEST,
            "markersize": 10,
            "markeredgecolor": "white",
            "elinewidth": 1.2,
            "capsize": 3,
        }
        axes.errorbar(x, y, gid="best", zorder=5, **either, **look)


def _mark_boxes(axes: Axes, mark: Mark, unit: int) -> list[Bbox]:
    """The boxes of a mark and of its ranges."""
    x, y = mark.seconds, mark.device_bytes / unit
    found = [marker_pixel_box(axes, (x, y))]
    if mark.best:
        (low_s, high_s), (low, high) = mark.range_s, mark.range_bytes
        found += [
            line_pixel_box(axes, (low_s, y), (high_s, y)),
            line_pixel_box(axes, (x, low / unit), (x, high / unit)),
        ]
    return found


def _label_front_plans(
    axes: Axes, marks: Sequence[Mark], taken: list[Bbox], unit: int, *, decimal: bool
) -> None:
    """The best plan and the ends of the front first, then those of its corners that there is room for."""
    named, first = (
        0,
        next(
            (marker_pixel_box(axes, (mark.seconds, mark.device_bytes / unit)) for mark in marks if mark.best),
            None,
        ),
    )
    for mark in sorted(marks, key=lambda mark: mark.turn):
        if named == NAMED:
            return
        if (
            first is not None
            and not mark.best
            and first.overlaps(marker_pixel_box(axes, (mark.seconds, mark.device_bytes / unit)))
        ):
            continue  # the plan to take first lies on it
        figures = (
            f"{format_seconds(mark.seconds)} · {format_bytes(mark.device_bytes, decimal=decimal, digits=1)}"
        )
        words = f"{'take first: ' if mark.best else ''}{figures}\n{wrap_phrases(mark.words, LETTERS)}"
        look: dict[str, Any] = {"color": BEST if mark.best else INK, "fontsize": 8, "linespacing": 1.25}
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
        made = annotate_nearby(
            axes, (mark.seconds, mark.device_bytes / unit), words, taken, bbox=box, zorder=6, **look
        )
        if made is not None:
            taken.append(text_pixel_box(made))
            named += 1
