"""Memory over a step as a picture: what each component holds after every event, stacked, with the peak named.

matplotlib draws it (Agg and SVG, with no window, no state of its own and none of the user's settings); it
comes with the extra ``trace`` and is imported when a picture is asked for.
"""

from __future__ import annotations

import io
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsheet.errors import input_error
from memsheet.report.chart.palette import COLOURS, FAINT, QUIET
from memsheet.report.chart.scene import Scene
from memsheet.report.shared.curve import Column, instant_spans, timeline_columns
from memsheet.report.shared.files import write_whole
from memsheet.sheet import Component
from memsheet.timeline import Timeline, highest_peak

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = {".svg": "svg", ".png": "png"}
INCHES, DOTS = (
    (12.0, 6.75),
    {"svg": 100, "png": 200},
)  # 1200 pixels wide on a page; a png has twice as many for sharp screens
PLOT = (0.065, 0.105, 0.685, 0.79)  # left, bottom, width, height of the plot, as shares of the picture
COLUMNS = 411  # two pixels each: an allocation that is there for one event can still be seen
ROOM = 1.3  # the height of the plot over what it shows: room for the words at the peak
BEYOND = 3  # a capacity this many times the peak would press the picture flat; it is said in words
SETTINGS = {"svg.hashsalt": "memsheet", "font.family": ["DejaVu Sans"], "path.simplify": False}


def draw_timeline(
    timeline: Timeline,
    path: Path,
    *,
    title: str = "",
    capacity_bytes: int | None = None,
    decimal: bool = False,
    field: str = "picture",
) -> None:
    """Draw the steady step into ``path``, an .svg or .png file, written whole or not at all.

    ``capacity_bytes`` (what a framework gets of the device) becomes a line; ``decimal`` takes GB in place of
    GiB. Raises InputError for another kind of file, without matplotlib, for a timeline without a steady step,
    and where the file cannot be written.
    """
    kind = check_picture_format(path, field)
    import matplotlib as mpl

    scene = Scene(timeline=timeline, title=title, capacity_bytes=capacity_bytes, decimal=decimal)
    with (
        mpl.rc_context()
    ):  # the same picture whatever the user's matplotlibrc says, and nothing of it left behind
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)  # type: ignore[arg-type]
        data = io.BytesIO()
        figure_of(scene).savefig(
            data,
            format=kind,
            dpi=DOTS[kind],
            metadata={"Title": "Memory over a step", **_picture_metadata(kind)},
        )
    write_whole(path, data.getvalue(), field)


def check_picture_format(path: Path, field: str = "picture") -> str:
    """The format that ``path`` asks for. Raises InputError where no such picture can be drawn, so that one
    knows before a long trace.
    """
    from importlib.util import find_spec

    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise input_error(field, str(path), "is no kind of picture that can be drawn", "name it .svg or .png")
    try:
        found = find_spec("matplotlib")
    except ValueError:  # it is barred: sys.modules holds None in its place
        found = None
    if found is None:
        raise input_error(
            field, str(path), "needs matplotlib, which is not installed", "pip install 'memsheet[trace]'"
        )
    return kind


def figure_of(scene: Scene) -> Figure:
    """The whole figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from memsheet.report.chart import placed_words as words
    from memsheet.report.chart.instants import draw_instant_strip

    figure = Figure(figsize=INCHES, dpi=100, facecolor="white")
    FigureCanvasAgg(figure)  # words are measured before they are placed
    axes = figure.add_axes(PLOT)
    shown = timeline_columns(scene.timeline, COLUMNS)
    held = nonzero_components(shown)
    _set_timeline_axes(axes, shown, scene)
    _draw_component_areas(axes, shown, held, scene)
    draw_instant_strip(axes, instant_spans(scene.timeline), shown[0].first)
    words.draw_capacity_label(axes, shown, scene)
    words.annotate_peak(axes, shown, scene)
    words.draw_component_legend(axes, shown, held, scene)
    words.draw_figure_title(axes, scene)
    return figure


def nonzero_components(shown: tuple[Column, ...]) -> list[Component]:
    """The components that hold anything anywhere, from the bottom of the stack up."""
    most = map(max, zip(*(column.held for column in shown), strict=True))
    return [component for component, size in zip(Component, most, strict=True) if size]


def _picture_metadata(kind: str) -> dict[str, Any]:
    """Metadata without the moment of drawing: the same timeline gives the same bytes."""
    return {"Date": None} if kind == "svg" else {}


def _set_timeline_axes(axes: Axes, shown: tuple[Column, ...], scene: Scene) -> None:
    """The axes: events from the step's beginning, and sizes from nothing to a little beyond the peak (or the
    capacity).
    """
    from matplotlib.ticker import MaxNLocator

    first, end, largest = shown[0].first, shown[-1].end, highest_peak(scene.timeline).bytes
    top = max(largest, scene.capacity_bytes or 0)
    axes.set_xlim(0, end - first)
    axes.set_ylim(0, max(ROOM * (top if top <= BEYOND * largest else largest), 1) / scene.unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.4g}")
    folded = (
        f"; {-(-(end - first) // len(shown)):,} a column, the largest shown"
        if len(shown) < end - first
        else ""
    )
    axes.set_xlabel(f"allocations and releases of the steady step{folded}", color=QUIET)
    axes.set_ylabel("GB" if scene.decimal else "GiB", color=QUIET)
    axes.yaxis.set_label_coords(-0.06, 0.5)
    axes.tick_params(color=FAINT, labelcolor=QUIET, labelsize=9)
    axes.grid(visible=True, axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def _draw_component_areas(axes: Axes, shown: tuple[Column, ...], held: list[Component], scene: Scene) -> None:
    """The components as areas from zero to their upper edge, the topmost first: each hides what lies under
    it, and no seam shows.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    first, tops = shown[0].first, [list(accumulate(column.held)) for column in shown]
    for component in reversed(held):
        place = list(Component).index(component)
        corners: list[tuple[float, float]] = []
        codes: list[Any] = []
        for run in _nonzero_column_runs(shown, place):
            outline = _step_outline_points(
                [(shown[i].first - first, shown[i].end - first, tops[i][place] / scene.unit) for i in run]
            )
            corners += [*outline, outline[0]]
            codes += [Outline.MOVETO, *[Outline.LINETO] * (len(outline) - 1), Outline.CLOSEPOLY]
        axes.add_patch(
            PathPatch(
                Outline(corners, codes),
                facecolor=COLOURS[component],
                edgecolor="none",
                gid=component.value,
                zorder=2,
            )
        )


def _nonzero_column_runs(shown: tuple[Column, ...], place: int) -> list[list[int]]:
    """Stretches of columns in which a component holds something."""
    runs: list[list[int]] = []
    for number, column in enumerate(shown):
        if column.held[place]:
            if runs and runs[-1][-1] == number - 1:
                runs[-1].append(number)
            else:
                runs.append([number])
    return runs


def _step_outline_points(steps: list[tuple[int, int, float]]) -> list[tuple[float, float]]:
    """The corners of a run of (left, right, height) steps down to zero; a height that stays makes none."""
    corners: list[tuple[float, float]] = [(steps[0][0], 0.0), (steps[0][0], steps[0][2])]
    for before, (left, _, height) in pairwise(steps):
        if height != before[2]:
            corners += [(left, before[2]), (left, height)]
    return [*corners, (steps[-1][1], steps[-1][2]), (steps[-1][1], 0.0)]
