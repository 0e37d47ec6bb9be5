"""What the planner's pictures share: a sheet with a title, quiet axes, words that do not lie on one another,
and the file.

matplotlib draws them as it draws memory over a step (report/chart/timeline.py).
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsheet.report.chart.palette import FAINT, INK, QUIET
from memsheet.report.chart.timeline import DOTS, INCHES, SETTINGS, check_picture_format
from memsheet.report.shared.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation, Text
    from matplotlib.transforms import Bbox

TITLE, UNDER = 0.24, 0.54
"""How far below the upper edge the title and the line under it begin, in inches."""
UNDER_LETTERS = 165
"""Letters of a line under the title: what a picture's width holds at that size."""
PLACES = tuple((x, y) for y in (9, -9, 0, 26, -26, 46, -46, 70, -70) for x in ((9, -9) if y else (14, -14)))
"""Where words may stand beside their point, in points of type, the nearest first."""


def save_figure(build: Callable[[], Figure], path: Path, title: str, field: str = "picture") -> None:
    """Draw into ``path``, an .svg or .png file, written whole or not at all. Raises InputError as
    ``picture.draw`` does.
    """
    kind = check_picture_format(path, field)
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)  # type: ignore[arg-type]
        data = io.BytesIO()
        undated = {"Date": None} if kind == "svg" else {}
        build().savefig(data, format=kind, dpi=DOTS[kind], metadata={"Title": title, **undated})
    write_whole(path, data.getvalue(), field)


def new_figure(
    plot: tuple[float, float, float, float], title: str, under: str, *, tall: float = INCHES[1]
) -> tuple[Figure, Axes]:
    """A figure with its title over one pair of axes; ``plot``: their left, bottom, width and height as shares
    of the picture; ``tall``: in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(INCHES[0], tall), dpi=100, facecolor="white")
    FigureCanvasAgg(figure)  # words are measured before they are placed
    left = 0.02
    figure.text(left, 1 - TITLE / tall, title, color=INK, fontsize=13, fontweight="bold", va="top")
    figure.text(
        left,
        1 - UNDER / tall,
        textwrap.fill(under, UNDER_LETTERS),
        color=QUIET,
        fontsize=9,
        va="top",
        linespacing=1.4,
    )
    return figure, figure.add_axes(plot)


def simplify_axes(axes: Axes, grid: str = "") -> None:
    """No frame, pale ticks, and a grid across one axis at most."""
    axes.tick_params(color=FAINT, labelcolor=QUIET, labelsize=9)
    if grid:
        axes.grid(visible=True, axis=grid, color=FAINT, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def annotate_nearby(
    axes: Axes, point: tuple[float, float], words: str, taken: Sequence[Bbox], **look: Any
) -> Annotation | None:
    """Words at the nearest place beside a point where they meet nothing that is ``taken`` and stay on the
    axes; None where there is no such place.
    """
    frame = axes.get_window_extent()
    for x, y in PLACES:
        side = {"ha": "left" if x > 0 else "right", "va": "bottom" if y > 0 else "top" if y < 0 else "center"}
        arrow = {
            "arrowstyle": "-",
            "color": look.get("color", QUIET),
            "linewidth": 0.6,
            "shrinkA": 0,
            "shrinkB": 3,
        }
        made = axes.annotate(
            words,
            point,
            xytext=(x, y),
            textcoords="offset points",
            annotation_clip=False,
            arrowprops=arrow,
            **side,
            **look,
        )
        box = text_pixel_box(made)
        inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
        if inside and not any(box.overlaps(other) for other in taken):
            return made
        made.remove()
    return None


def wrap_phrases(words: str, letters: int) -> str:
    """Phrases in lines that break between them."""
    lines = [""]
    for phrase in words.split(" · "):
        longer = f"{lines[-1]} · {phrase}" if lines[-1] else phrase
        if len(longer) <= letters or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(phrase)
    return "\n".join(lines)


def text_pixel_box(text: Text) -> Bbox:
    """The box of words in pixels."""
    from matplotlib.text import Text as Words

    pen = text.get_figure(root=True).canvas.get_renderer()  # type: ignore[union-attr]
    if hasattr(text, "update_positions"):
        text.update_positions(pen)
    return Words.get_window_extent(text, pen)  # of the words alone, without the line to their point


def marker_pixel_box(axes: Axes, point: tuple[float, float], pixels: float = 6) -> Bbox:
    """The box of a mark at a point."""
    from matplotlib.transforms import Bbox

    x, y = axes.transData.transform(point)
    return Bbox.from_extents(x - pixels, y - pixels, x + pixels, y + pixels)


def line_pixel_box(
    axes: Axes, first: tuple[float, float], last: tuple[float, float], pixels: float = 3
) -> Bbox:
    """The box of a line from a point up and right to another."""
    from matplotlib.transforms import Bbox

    (x0, y0), (x1, y1) = axes.transData.transform([first, last])
    return Bbox.from_extents(x0 - pixels, y0 - pixels, x1 + pixels, y1 + pixels)
