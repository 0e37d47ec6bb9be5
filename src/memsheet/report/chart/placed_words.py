"""The words on a picture, measured before they are placed so that none lies on another.

Names come from a stranger's model: they are shortened, made printable, and never read as mathematics.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from memsheet.errors import printable_line
from memsheet.report.chart.palette import ALARM, COLOURS, FAINT, INK, QUIET
from memsheet.report.chart.scene import Scene
from memsheet.report.shared.curve import PLACE, Column
from memsheet.report.shared.peaks import peak_lines
from memsheet.report.shared.words import component_name
from memsheet.sheet import Component
from memsheet.timeline import highest_peak as peak_of
from memsheet.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

LEFT, RIGHT, CEILING, LINE = (
    0.775,
    0.985,
    0.925,
    0.0355,
)  # the legend's sides and lines, the title's floor, as shares of the picture
TITLE_POINTS = range(15, 8, -1)


def draw_figure_title(axes: Axes, scene: Scene) -> None:
    """The caller's title, as large as there is room for."""
    figure, left = page_of(axes), axes.get_position().x0
    text = figure.text(
        left,
        (1 + CEILING) / 2,
        printable_line(scene.title),
        va="center",
        color=INK,
        weight="bold",
        parse_math=False,
    )
    for points in TITLE_POINTS:
        text.set_fontsize(points)
        if width_of(text) <= (RIGHT - left) * figure.bbox.width:
            return


def draw_capacity_label(axes: Axes, shown: tuple[Column, ...], scene: Scene) -> None:
    """A line at what the device gives, its words on the side away from the peak. Beyond the top of the plot
    the legend says it alone.
    """
    top = axes.get_ylim()[1]
    if scene.capacity_bytes is None or scene.capacity_bytes / scene.unit >= top:
        return
    level = scene.capacity_bytes / scene.unit
    axes.axhline(level, color=ALARM, linewidth=1.4, linestyle=(0, (5, 3)), zorder=4)
    x, side = (0.992, "right") if _peak_axis_fraction(axes, shown, scene) < 0.5 else (0.008, "left")
    axes.text(
        x,
        level / top + 0.014,
        f"a device gives {_format_available_bytes(scene.capacity_bytes, scene)}",
        ha=side,
        va="bottom",
        fontsize=9,
        color=ALARM,
        transform=axes.transAxes,
        zorder=5,
        bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 2},
    )


def annotate_peak(axes: Axes, shown: tuple[Column, ...], scene: Scene) -> None:
    """The peak pinned: a mark where it is, and in a box its bytes, its instant, and the allocation that made
    it.
    """
    found, share = peak_of(scene.timeline), _peak_axis_fraction(axes, shown, scene)
    x, y = share * axes.get_xlim()[1], found.bytes / scene.unit
    axes.plot([x], [y], "o", markersize=7, color=INK, markeredgecolor="white", markeredgewidth=1.2, zorder=6)
    lines = peak_lines(found, decimal=scene.decimal)
    canvas: Any = page_of(axes).canvas
    trial = _pinned_text_box(lines, (x, y), middle=share, foot=0.5)
    axes.add_artist(trial)
    wide = trial.get_window_extent(canvas.get_renderer()).width / axes.bbox.width + 0.024
    trial.remove()
    middle = min(max(share, wide / 2), 1 - wide / 2)
    axes.add_artist(
        _pinned_text_box(
            lines, (x, y), middle=middle, foot=min(max((share - middle) / wide + 0.5, 0.02), 0.98)
        )
    )


def _pinned_text_box(lines: list[str], pinned: tuple[float, float], *, middle: float, foot: float) -> Any:
    """A box of lines under the top of the plot, its line to ``pinned`` leaving it at ``foot``, a share of its
    width.
    """
    from matplotlib.offsetbox import AnnotationBbox, TextArea, VPacker

    plain = {"parse_math": False, "color": INK, "fontsize": 9.5}
    bold = {**plain, "weight": "bold", "fontsize": 10.5}
    text: list[Any] = [
        TextArea(line, textprops=plain if number else bold) for number, line in enumerate(lines)
    ]
    return AnnotationBbox(
        VPacker(children=text, pad=0, sep=3),
        pinned,
        xybox=(middle, 0.975),
        boxcoords="axes fraction",
        box_alignment=(0.5, 1),
        pad=0.4,
        bboxprops={"boxstyle": "round,pad=0.45", "facecolor": "white", "edgecolor": INK, "linewidth": 0.8},
        zorder=5,
        gid="peak",
        arrowprops={
            "arrowstyle": "-",
            "color": INK,
            "linewidth": 0.9,
            "relpos": (foot, 0),
            "shrinkA": 0,
            "shrinkB": 3,
        },
    )


def draw_component_legend(axes: Axes, shown: tuple[Column, ...], held: list[Component], scene: Scene) -> None:
    """The components in the order of the stack, with their bytes at the peak."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    figure, y = page_of(axes), axes.get_position().y1 - LINE / 2
    at_peak = shown[_peak_column_index(shown, scene)].held
    figure.text(LEFT, y, "held at the peak", va="center", fontsize=9.5, color=QUIET)

    def row(words: str, size: str, y: float, **look: Any) -> None:
        for x, text, side in ((LEFT + 0.021, words, "left"), (RIGHT, size, "right")):
            figure.text(x, y, text, va="center", ha=side, fontsize=9.5, **look)

    for component in reversed(held):
        y -= LINE
        size = at_peak[PLACE[component]]
        figure.add_artist(
            Rectangle((LEFT, y - 0.011), 0.0125, 0.022, facecolor=COLOURS[component], edgecolor="none")
        )
        row(
            component_name(component),
            _format_needed_bytes(size, scene) if size else "nothing",
            y,
            color=INK if size else QUIET,
        )
    figure.add_artist(Line2D([LEFT, RIGHT], [y - LINE * 0.6] * 2, color=FAINT, linewidth=1))
    row("total", _format_needed_bytes(sum(at_peak), scene), y - 1.2 * LINE, color=INK, weight="bold")
    if scene.capacity_bytes is not None:
        row(
            "a device gives",
            _format_available_bytes(scene.capacity_bytes, scene),
            y - 2.2 * LINE,
            color=ALARM,
        )


def _format_needed_bytes(size: int, scene: Scene) -> str:
    return format_bytes(size, decimal=scene.decimal)


def _format_available_bytes(size: int, scene: Scene) -> str:
    return format_bytes(size, decimal=scene.decimal, headroom=True)


def _peak_column_index(shown: tuple[Column, ...], scene: Scene) -> int:
    """The column that the peak is in."""
    return bisect_right([column.first for column in shown], peak_of(scene.timeline).at) - 1


def _peak_axis_fraction(axes: Axes, shown: tuple[Column, ...], scene: Scene) -> float:
    """The middle of the peak's column, as a share of the plot's width."""
    column = shown[_peak_column_index(shown, scene)]
    return float(((column.first + column.end) / 2 - shown[0].first) / axes.get_xlim()[1])


def page_of(axes: Axes) -> Figure:
    figure: Any = axes.figure
    return figure  # type: ignore[no-any-return]


def width_of(text: Text) -> float:
    """In pixels."""
    figure: Any = text.figure
    return float(text.get_window_extent(figure.canvas.get_renderer()).width)
