"""The chart of trainable size against cluster size, a line for replicas and for each stage of ZeRO, on scales
that double.

matplotlib draws it as it draws memory over a step (report/chart/timeline.py).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from memsheet.report.chart.palette import FAINT, INK, QUIET
from memsheet.report.chart.timeline import DOTS, INCHES, SETTINGS, check_picture_format
from memsheet.report.shared.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from memsheet.search.solve.sizes import Curve

COLOURS = (
    "#AAAAAA",
    "#EE7733",
    "#44AA99",
    "#332288",
)  # of report/chart/palette.py, from light to dark as more is sharded
MARKS = ("o", "s", "^", "D")
PLOT = (0.075, 0.11, 0.785, 0.77)
ROOM = 1.25  # around the points, as a factor
BILLION = 10**9


def draw_sizes(
    curves: Sequence[Curve], path: Path, *, title: str, under: str = "", field: str = "picture"
) -> None:
    """Draw the curves into ``path``, an .svg or .png file, written whole or not at all. Raises InputError as
    ``picture.draw`` does.
    """
    kind = check_picture_format(path, field)
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)  # type: ignore[arg-type]
        data = io.BytesIO()
        undated = {"Date": None} if kind == "svg" else {}
        figure_of(curves, title, under).savefig(
            data, format=kind, dpi=DOTS[kind], metadata={"Title": title, **undated}
        )
    write_whole(path, data.getvalue(), field)


def figure_of(curves: Sequence[Curve], title: str, under: str) -> Figure:
    """The whole figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=100, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes(PLOT)
    _set_log_scales(axes, curves)
    for number, curve in enumerate(curves):
        _draw_size_curve(axes, curve, number)
    _label_size_curves(axes, curves)
    axes.set_title(title, loc="left", color=INK, fontsize=13, fontweight="bold", pad=26)
    axes.text(0, 1.025, under, transform=axes.transAxes, color=QUIET, fontsize=9)
    return figure


def _set_log_scales(axes: Axes, curves: Sequence[Curve]) -> None:
    """GPUs across and billions of parameters up, both on scales of powers, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    gpus = sorted({point.gpus for curve in curves for point in curve.points})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.set_xticks(gpus, [f"{count:,}" for count in gpus])
    axes.xaxis.set_minor_locator(NullLocator())
    sizes = [size for curve in curves for _, size in _curve_points(curve)] or [1.0]
    axes.set_xlim(gpus[0] / ROOM, gpus[-1] * ROOM)
    axes.set_ylim(min(sizes) / ROOM, max(sizes) * ROOM)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.4g} B")
    axes.set_xlabel("GPUs", color=QUIET)
    axes.set_ylabel("parameters of the largest model that fits", color=QUIET)
    axes.tick_params(color=FAINT, labelcolor=QUIET, labelsize=9)
    axes.grid(visible=True, axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def _draw_size_curve(axes: Axes, curve: Curve, number: int) -> None:
    points = _curve_points(curve)
    if points:
        across, up = zip(*points, strict=True)
        axes.plot(
            across,
            up,
            color=COLOURS[number],
            marker=MARKS[number],
            markersize=11 - 2 * number,
            linewidth=5 - number,
        )


def _curve_points(curve: Curve) -> list[tuple[int, float]]:
    return [(point.gpus, point.parameters / BILLION) for point in curve.points if point.parameters]


def _label_size_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    """The name of each line at its right end, moved apart where lines end together."""
    axes.get_figure().canvas.draw()  # type: ignore[union-attr]  # scales are final once they were drawn
    ends = sorted(
        (points[-1], number) for number, curve in enumerate(curves) if (points := _curve_points(curve))
    )
    least, last = 0.055, -1.0
    for (across, up), number in sorted(ends, key=lambda end: end[0][1]):
        _, height = axes.transAxes.inverted().transform(axes.transData.transform((across, up)))
        last = max(height, last + least)
        curve = curves[number]
        words = f"{curve.name}  {_curve_points(curve)[-1][1]:,.3g} B"
        axes.text(
            1.02,
            last,
            words,
            transform=axes.transAxes,
            color=COLOURS[number],
            fontsize=10,
            fontweight="bold",
            va="center",
        )
