"""The parity plot: predicted against measured, one point a figure, on logarithmic axes, as SVG.

On the diagonal a prediction is exact; the band is 3 % to either side. Written by hand so that the same
figures give the same file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 560, 72, 28, 220, 52
BAND = 0.03
COLOURS = (
    "#1f6feb",
    "#d1242f",
    "#1a7f37",
    "#9a6700",
    "#8250df",
    "#0a7ea4",
    "#bc4c00",
    "#57606a",
    "#bf3989",
    "#2da44e",
    "#6e7781",
    "#000000",
)
INK, FAINT = "#24292f", "#d0d7de"

Point = Mapping[str, Any]  # engine, measured, predicted, id


def parity(points: Sequence[Point], title: str) -> str:
    """An SVG of the points. Raises ValueError where there are none."""
    if not points:
        raise ValueError("no figures to draw")
    low = floor(log10(min(min(p["measured"], p["predicted"]) for p in points) / 1e9) * 4) / 4
    high = ceil(log10(max(max(p["measured"], p["predicted"]) for p in points) / 1e9) * 4) / 4
    engines = list(dict.fromkeys(p["engine"] for p in points))
    colours = {engine: COLOURS[n % len(COLOURS)] for n, engine in enumerate(engines)}
    parts = [*_frame(low, high, title), *_dots(points, colours, low, high), *_legend(points, colours)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">'
    )
    return (
        "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>', *parts, "</svg>"])
        + "\n"
    )


def _across(value: float, low: float, high: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (log10(value) - low) / (high - low)


def _down(value: float, low: float, high: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (log10(value) - low) / (high - low)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every decade between the ends."""
    found = [step * 10.0**decade for decade in range(floor(low), ceil(high) + 1) for step in (1, 2, 5)]
    return [value for value in found if low - 1e-9 <= log10(value) <= high + 1e-9]


def _frame(low: float, high: float, title: str) -> Iterator[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    yield f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>'
    for value in _ticks(low, high):
        x, y, text = _across(value, low, high), _down(value, low, high), f"{value:g}"
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{FAINT}"/>'
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{FAINT}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    ends = [(10**low, 10**low), (10**high, 10**high)]
    band = [(m, p * (1 + BAND)) for m, p in ends] + [(m, p * (1 - BAND)) for m, p in reversed(ends)]
    corners = " ".join(
        f"{_across(m, low, high):.1f},{min(bottom, max(TOP, _down(p, low, high))):.1f}" for m, p in band
    )
    yield f'<polygon points="{corners}" fill="#1f6feb" fill-opacity="0.12"/>'
    yield f'<line x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{TOP}" stroke="{INK}" stroke-width="0.8"/>'
    yield f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 14}" text-anchor="middle">measured, GB</text>'
    yield (
        f'<text x="18" y="{(TOP + bottom) / 2:.0f}" text-anchor="middle" transform="rotate(-90 18 '
        f'{(TOP + bottom) / 2:.0f})">predicted, GB</text>'
    )


def _dots(points: Sequence[Point], colours: Mapping[str, str], low: float, high: float) -> Iterator[str]:
    for p in points:
        x, y = _across(p["measured"] / 1e9, low, high), _down(p["predicted"] / 1e9, low, high)
        words = f"{p['id']}: predicted {p['predicted'] / 1e9:.2f}, measured {p['measured'] / 1e9:.2f} GB"
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colours[p["engine"]]}" '
            f'fill-opacity="0.7"><title>{escape(words)}</title></circle>'
        )


def _legend(points: Sequence[Point], colours: Mapping[str, str]) -> Iterator[str]:
    for place, (engine, colour) in enumerate(colours.items()):
        y = TOP + 16 + 20 * place
        count = sum(p["engine"] == engine for p in points)
        yield f'<circle cx="{WIDTH - RIGHT + 22}" cy="{y - 4}" r="4" fill="{colour}"/>'
        yield f'<text x="{WIDTH - RIGHT + 34}" y="{y}">{escape(engine)} ({count})</text>'
