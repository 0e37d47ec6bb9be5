"""Words of a heat map, on paper and on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memsheet.budget import Result
from memsheet.report.shared.plans.words import format_seconds
from memsheet.units import GIB, format_bytes, format_giga

if TYPE_CHECKING:
    from memsheet.search.train.heat_map import Cell, Heat

MARKS = {Result.FITS: "✓", Result.UNCERTAIN: "?", Result.DOES_NOT_FIT: "✗"}
NAMES = {Result.FITS: "fits", Result.UNCERTAIN: "uncertain", Result.DOES_NOT_FIT: "does not fit"}
AXES = {
    "seq_len": "tokens of a sequence", "global_batch": "sequences of a step", "gpus": "GPUs", "microbatch": "micro-batch", "tp": "tensor parallel",
    "cp": "context parallel", "pp": "pipeline stages", "vpp": "chunks a stage", "dp_shard": "ranks that share the states",
    "dp_replicate": "replicas", "ep": "expert parallel", "etp": "tensor parallel in an expert", "zero": "ZeRO stage", "recompute": "recompute",
    "optimizer": "optimizer", "loss": "loss", "offload": "offload", "schedule": "schedule", "engine": "engine",
}  # fmt: skip
HOST = "host: a node's memory is short"
WHOLE = 100
"""From this many GiB on a figure has no decimal."""


def axis_words(name: str) -> str:
    """An axis in words, with its flag where that is another word."""
    words = AXES[name]
    return words if words.replace("-", "").lower() == name else f"{words} ({name})"


def figure_words(cell: Cell, *, decimal: bool) -> tuple[str, str]:
    """The expected need, rounded up, and beside it what makes it uncertain, that the host is what is short,
    or a step's time.
    """
    figure = _format_heat_giga(cell.device.value, decimal=decimal)
    if cell.result is Result.UNCERTAIN:
        return figure, f"to {_format_heat_giga(cell.device.high, decimal=decimal)}"
    return figure, "host" if cell.host_short else format_seconds(
        cell.seconds
    ) if cell.seconds is not None else ""


def _format_heat_giga(size: int, *, decimal: bool) -> str:
    few = size >= WHOLE * (10**9 if decimal else GIB)
    figure = format_giga(size, decimal=decimal, digits=0 if few else 1)
    return figure.partition(".")[0] if few else figure


def title_of(heat: Heat) -> str:
    return f"What fits: {heat.model.name} by {AXES[heat.across.name]} and {AXES[heat.down.name]}"


def under_of(heat: Heat, *, decimal: bool) -> str:
    """What was asked, what a cell shows, and what a GPU gives."""
    from memsheet.search.train.heat_map import Shows

    unit, device = "GB" if decimal else "GiB", heat.cluster.device
    varied = (heat.across.name, heat.down.name)
    asked = [
        f"{name} {int(heat.request[name]):,}"
        for name in ("seq_len", "global_batch")
        if name not in varied and heat.request.get(name)
    ]
    count = "" if "gpus" in varied else f"{heat.cluster.count:,}×"
    which = (
        "the plan that needs least"
        if heat.shows is Shows.LEAST
        else "the fastest that fits, else the one that needs least"
    )
    gives = format_bytes(device.framework_bytes, decimal=decimal, headroom=True, digits=1).replace(
        " ", "\xa0"
    )
    where = " · ".join((f"{count}{device.name}", *asked))
    return (
        f"{where}. Each cell: of every legal plan {which}, {unit} expected on the fullest GPU, which "
        f"gives {gives}. Slack is a share here: no step was "
        "replayed."
    )
