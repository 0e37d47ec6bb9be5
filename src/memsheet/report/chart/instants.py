"""The strip of instants over a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memsheet.report.chart.palette import INK, QUIET
from memsheet.report.chart.placed_words import CEILING, width_of
from memsheet.report.shared.curve import Span
from memsheet.report.shared.words import INSTANTS
from memsheet.sheet import Instant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STRIP, ROW, ROWS = (
    0.042,
    0.042,
    3,
)  # heights of the strip and of a row of names above it, as shares of the plot; rows at most
GAP = 4  # pixels between words


def draw_instant_strip(axes: Axes, found: tuple[Span, ...], first: int) -> None:
    """A strip of the instants over the plot, which is made lower where names need rows of their own.

    A name that none of its spans has room for stands above the longest of them, once, on a stalk.
    """
    whole = axes.get_xlim()[1]
    small: dict[Instant, Span] = {}
    named: set[Instant] = set()
    for number, span in enumerate(found):
        left, right = (span.first - first) / whole, (span.end - first) / whole
        _draw_instant_band(axes, left, right, shaded=number % 2 == 0)
        text = axes.text(
            (left + right) / 2,
            1 + STRIP / 2,
            _instant_label(span.instant),
            ha="center",
            **_strip_text_style(axes),
        )
        if width_of(text) + 2 * GAP <= (right - left) * axes.bbox.width:
            named.add(span.instant)
            continue
        text.remove()
        if (
            span.instant not in small
            or span.end - span.first > small[span.instant].end - small[span.instant].first
        ):
            small[span.instant] = span
    middles = {
        span.instant: ((span.first + span.end) / 2 - first) / whole
        for span in small.values()
        if span.instant not in named
    }
    rows = _draw_stalk_labels(axes, middles)
    x, y, width, _ = axes.get_position().bounds
    axes.set_position((x, y, width, (CEILING - y) / (1 + STRIP + ROW * rows)))


def _draw_instant_band(axes: Axes, left: float, right: float, *, shaded: bool) -> None:
    """One instant: its part of the strip, and a breath of shade behind the plot."""
    from matplotlib.patches import Rectangle

    along: dict[str, Any] = {"transform": axes.transAxes, "linewidth": 0}
    axes.add_patch(
        Rectangle(
            (left, 1),
            right - left,
            STRIP,
            facecolor="#DCDCDC" if shaded else "#F0F0F0",
            clip_on=False,
            **along,
        )
    )
    if shaded:
        axes.add_patch(Rectangle((left, 0), right - left, 1, facecolor="#F6F6F6", zorder=0, **along))


def _draw_stalk_labels(axes: Axes, middles: dict[Instant, float]) -> int:
    """Names above the strip beside stalks that stand on their spans; the number of rows they take.

    From right to left each takes the lowest row where it meets no other name and no other stalk, so the
    leftmost stand highest.
    """
    taken: list[list[tuple[float, float]]] = [[] for _ in range(ROWS)]
    used = 0
    for instant, x in sorted(middles.items(), key=lambda pair: -pair[1]):
        text = axes.text(x, 1, _instant_label(instant), **_strip_text_style(axes))
        wide, gap = (width_of(text) + 2 * GAP) / axes.bbox.width, GAP / axes.bbox.width
        left = x if x + wide <= 1 else x - wide
        row = next((number for number in range(ROWS) if _is_row_free(taken[number], left, left + wide)), None)
        if row is None:
            text.remove()
            continue
        taken[row].append((left, left + wide))
        for below in taken[:row]:
            below.append((x, x))
        text.set_position((left + gap, 1 + STRIP + ROW * (row + 0.5)))
        stalk = [1 + STRIP, 1 + STRIP + ROW * (row + 0.8)]
        axes.plot([x, x], stalk, color=QUIET, linewidth=0.8, transform=axes.transAxes, clip_on=False)
        used = max(used, row + 1)
    return used


def _is_row_free(row: list[tuple[float, float]], left: float, right: float) -> bool:
    return all(right < start or left > end for start, end in row)


def _instant_label(instant: Instant) -> str:
    return INSTANTS[instant].removeprefix("the ")


def _strip_text_style(axes: Axes) -> dict[str, Any]:
    return {"va": "center", "fontsize": 9, "color": INK, "transform": axes.transAxes}
