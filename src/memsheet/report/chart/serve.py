"""Ways to serve as a picture: a bar for each cut, what the weights and the cache take of a GPU, who is held
and how long a token takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memsheet.report.chart.palette import ALARM, COLOURS, INK, QUIET
from memsheet.report.chart.sheet import new_figure, save_figure, simplify_axes, wrap_phrases
from memsheet.report.shared.plans.serving_words import (
    latency_with_range,
    parallel_group_words,
    weight_cache_formats,
)
from memsheet.report.shared.plans.shown_cuts import select_table_plans
from memsheet.search.serve.cuts import Deployment
from memsheet.search.serve.load import Holds, Served
from memsheet.sheet import Component
from memsheet.units import GIB, format_bytes, format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEFT, WIDTH = 0.2, 0.44
TOP, BOTTOM, ROW = 1.42, 0.75, 0.5
"""Inches above the bars, below them, and of each."""
SHORTEST, TALL, LETTERS = 3.2, 0.6, 26
NAMED = 0.1
"""Of the scale, the least part with its size in it."""
COLUMNS = ((0.76, "users"), (0.975, "a token"))
"""Right edges of the figures beside the bars, as shares of the picture."""
PARTS = (
    (Component.PARAMETERS, "weights"),
    (Component.KV_CACHE, "KV cache"),
    (Component.TEMPORARIES, "work, context and the rest"),
)


def draw_serving(found: Deployment, path: Path, *, decimal: bool = False, field: str = "picture") -> None:
    """Draw the cuts into ``path``, an .svg or .png file, written whole or not at all. Raises InputError as
    ``picture.draw`` does.
    """
    save_figure(lambda: figure_of(found, decimal=decimal), path, title_of(found), field)


def title_of(found: Deployment) -> str:
    return (
        f"{found.model.name} on {found.cluster.count}×{found.cluster.device.name}: "
        f"{found.load.context:,} tokens a user"
    )


def figure_of(found: Deployment, *, decimal: bool = False) -> Figure:
    """The whole figure."""
    plans = select_table_plans(found)
    capacity = found.cluster.device.framework_bytes
    unit = 10**9 if decimal else GIB
    tall = max(SHORTEST, TOP + BOTTOM + ROW * len(plans))
    under = (
        f"Bars: what the fullest GPU holds while {found.engine} serves. Users with {found.load.context:,} "
        "tokens in all, and on one replica; how long a "
        "token takes where as many decode."
    )
    figure, axes = new_figure(
        (LEFT, BOTTOM / tall, WIDTH, (tall - TOP - BOTTOM) / tall), title_of(found), under, tall=tall
    )
    axes.set_xlim(0, capacity * 1.12 / unit)
    axes.set_ylim(len(plans) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xlabel("GB" if decimal else "GiB", color=QUIET)
    simplify_axes(axes, "x")
    _draw_gpu_capacity(axes, capacity, unit, decimal=decimal)
    for row, one in enumerate(plans):
        _draw_serving_bar(axes, row, one, capacity, unit, decimal=decimal)
        _draw_serving_row_text(axes, row, one)
    _draw_serving_headings(axes)
    _draw_part_legend(axes, tall)
    return figure


def _draw_serving_bar(axes: Axes, row: int, one: Served, capacity: int, unit: int, *, decimal: bool) -> None:
    """Weights, cache and the rest; cut where the scale ends, with what is needed in words."""
    total, most = int(one.verdict.device.value), capacity * 1.1
    so_far, dim = 0.0, 0.45 if one.holds is Holds.NO else 1.0
    for (component, name), size in zip(
        PARTS, (one.weights_bytes, one.kv_bytes, total - one.weights_bytes - one.kv_bytes), strict=True
    ):
        end = min(so_far + size, most)
        axes.barh(
            row,
            (end - so_far) / unit,
            left=so_far / unit,
            height=TALL,
            color=COLOURS[component],
            alpha=dim,
            linewidth=0,
            gid=name,
        )
        if (end - so_far) / most > NAMED and component is not Component.TEMPORARIES:
            words = format_bytes(size, decimal=decimal, digits=1)
            words = (
                words
                if total <= most or size < most
                else f"{words} of {format_bytes(total, decimal=decimal, digits=1)} needed"
            )
            colour = "white" if component is Component.PARAMETERS else INK
            axes.text(
                (so_far + end) / 2 / unit, row, words, color=colour, fontsize=8, ha="center", va="center"
            )
        so_far = end


def _draw_serving_row_text(axes: Axes, row: int, one: Served) -> None:
    """The cut on the left, who it holds and how long a token takes on the right."""
    across = axes.get_yaxis_transform()
    said = weight_cache_formats(one)
    name = wrap_phrases(
        parallel_group_words(one.plan).replace(", ", " · ") + (f" · {said}" if said else ""), LETTERS
    )
    mark, colour = {Holds.YES: ("✓", "#117733"), Holds.PERHAPS: ("~", QUIET), Holds.NO: ("✗", ALARM)}[
        one.holds
    ]
    left = (0.02 - LEFT) / WIDTH
    axes.text(left, row, mark, transform=across, color=colour, fontsize=11, va="center")
    axes.text(left + 0.05, row, name, transform=across, color=INK, fontsize=10, va="center", linespacing=1.15)
    held = format_count(one.in_all)
    who = "group" if one.plan.mesh.attn_dp > 1 else "replica"
    each = f"{format_count(one.sequences[1])} a {who}" if one.replicas > 1 else ""
    token = (
        (latency_with_range(one.decode).split(" (")[0], "(" + latency_with_range(one.decode).split(" (")[1])
        if one.decode
        else ("-", "")
    )
    for (right, _), (first, second) in zip(COLUMNS, ((held, each), token), strict=True):
        x = (right - LEFT) / WIDTH
        axes.text(
            x,
            row - (0.17 if second else 0),
            first,
            transform=across,
            color=INK,
            fontsize=10,
            ha="right",
            va="center",
        )
        axes.text(x, row + 0.2, second, transform=across, color=QUIET, fontsize=8.5, ha="right", va="center")


def _draw_serving_headings(axes: Axes) -> None:
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


def _draw_part_legend(axes: Axes, tall: float) -> None:
    from matplotlib.patches import Patch

    patches: Sequence[Patch] = [Patch(color=COLOURS[component], label=name) for component, name in PARTS]
    axes.figure.legend(
        handles=patches,
        loc="lower right",
        bbox_to_anchor=(0.98, 0.12 / tall),
        ncols=3,
        frameon=False,
        fontsize=9,
        labelcolor=QUIET,
    )


def _draw_gpu_capacity(axes: Axes, size: int, unit: int, *, decimal: bool) -> None:
    """What a GPU gives, as a line that is named above."""
    axes.axvline(size / unit, color=ALARM, linewidth=1.4)
    words = f"{format_bytes(size, decimal=decimal, headroom=True, digits=1)} a GPU gives"
    axes.text(
        size / unit,
        1.015,
        words,
        transform=axes.get_xaxis_transform(),
        color=ALARM,
        fontsize=9,
        ha="right",
        va="bottom",
    )
