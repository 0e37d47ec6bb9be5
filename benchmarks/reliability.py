"""The calibration plot: how many figures lie inside their ranges as these are stretched about the prediction,
and how wide they are, by counter, as SVG. Written by hand so that the same figures give the same file.

A range that means what it says holds nine figures in ten as it is, and far fewer at half its width; where the
half would do as well it is too wide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from calibration import NOMINAL

WIDTH, HEIGHT, TOP, BOTTOM, LEFT, GAP, RIGHT = 760, 320, 40, 48, 56, 64, 16
PANEL = (WIDTH - LEFT - GAP - RIGHT) / 2
COLOURS = {
    "peak_allocated_bytes": ("allocated", "#1f6feb"), "peak_reserved_bytes": ("reserved", "#d1242f"), "device_bytes": ("device", "#1a7f37"),
    "peak_bytes_unspecified": ("unspecified", "#9a6700"),
}  # fmt: skip
STRETCHES = [step / 10 for step in range(31)]
WIDEST = 0.4
INK, FAINT = "#24292f", "#d0d7de"

Point = Mapping[str, Any]  # metric, predicted, low, high, measured


def inside_share(points: Sequence[Point], stretch: float) -> float:
    """How many figures lie inside ranges of so many times their width about the prediction."""
    held = sum(
        p["predicted"] - stretch * (p["predicted"] - p["low"])
        <= p["measured"]
        <= p["predicted"] + stretch * (p["high"] - p["predicted"])
        for p in points
    )
    return held / len(points)


def narrower_share(points: Sequence[Point], width: float) -> float:
    """How many ranges are no wider than that share of what was measured."""
    return sum((p["high"] - p["low"]) / p["measured"] <= width for p in points) / len(points)


def reliability(points: Sequence[Point], title: str) -> str:
    """An SVG of the points. Raises ValueError where there are none."""
    groups = {metric: [p for p in points if p["metric"] == metric] for metric in COLOURS}
    groups = {metric: held for metric, held in groups.items() if held}
    if not groups:
        raise ValueError("no figures to draw")
    widths = [WIDEST * step / 40 for step in range(41)]
    parts = [
        f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>',
        *_panel(LEFT, STRETCHES[-1], "range, times its width", "figures inside", 1.0),
        *_panel(LEFT + PANEL + GAP, WIDEST, "width of the range / measured", "ranges no wider", 0.1),
        *_nominal(),
    ]
    for metric, held in groups.items():
        curve = [(x, inside_share(held, x)) for x in STRETCHES]
        parts.append(_line(LEFT, STRETCHES[-1], curve, COLOURS[metric][1]))
        spread = [(x, narrower_share(held, x)) for x in widths]
        parts.append(_line(LEFT + PANEL + GAP, WIDEST, spread, COLOURS[metric][1]))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">'
    )
    body = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>', *parts, *_legend(groups), "</svg>"]
    return "\n".join([head, *body]) + "\n"


def _down(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _panel(left: float, most: float, across: str, up: str, step: float) -> Iterator[str]:
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _down(share)
        yield f'<line x1="{left:.0f}" y1="{y:.1f}" x2="{left + PANEL:.0f}" y2="{y:.1f}" stroke="{FAINT}"/>'
        yield f'<text x="{left - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
    for number in range(round(most / step) + 1):
        x = left + PANEL * number * step / most
        text = f"{number * step:g}"
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>'
    yield f'<text x="{left + PANEL / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(across)}</text>'
    yield f'<text x="{left:.0f}" y="{TOP - 8}">{escape(up)}</text>'


def _nominal() -> Iterator[str]:
    """What a range is to hold as it is."""
    x, y = LEFT + PANEL / STRETCHES[-1], _down(NOMINAL)
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="{INK}" stroke-width="1.5"/>'


def _line(left: float, most: float, curve: Sequence[tuple[float, float]], colour: str) -> str:
    points = " ".join(f"{left + PANEL * x / most:.1f},{_down(share):.1f}" for x, share in curve)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>'


def _legend(groups: Mapping[str, Sequence[Point]]) -> Iterator[str]:
    for place, (metric, held) in enumerate(groups.items()):
        name, colour = COLOURS[metric]
        y = _down(0) - 12 - 16 * place
        x = LEFT + PANEL - 130
        yield f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="12" height="4" fill="{colour}"/>'
        yield f'<text x="{x + 18:.0f}" y="{y:.0f}">{name} ({len(held)})</text>'
