"""What would make a job fit that nothing on its cards makes fit, as rows to type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memsheet.budget import WayToFit
from memsheet.report.bars import Look
from memsheet.report.words import flags_for

if TYPE_CHECKING:
    from rich.console import RenderableType

DIGITS = 2
LLAMA_FLAGS = {"serving.gpu_layers": "-ngl", "serving.host_experts": "--n-cpu-moe"}
"""What llama.cpp itself calls them (common/arg.cpp)."""


def ways_table(ways: Sequence[WayToFit], look: Look) -> RenderableType:
    """Each way with what it needs, and under it what to add to the command line."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column("", overflow="fold")
    table.add_column("", justify="right", no_wrap=True)
    for way in ways:
        table.add_row(Text(way.words, "bold"), Text(f"needs {look.need(way.device.value, DIGITS)} a GPU{_on_the_host(way, look)}"))
        table.add_row(Text(f"  {typed(way)}"), Text(""))
    return Group(Text("What would make it fit, each accounted", "bold"), table)


def _on_the_host(way: WayToFit, look: Look) -> str:
    return f", {look.need(way.host_bytes, DIGITS)} of host memory" if way.host_bytes else ""


def typed(way: WayToFit) -> str:
    """The flags of a way, another model first, and llama.cpp's own where it has them."""
    named = str(way.changes["model"]) if "model" in way.changes else ""
    flags = flags_for({key: value for key, value in way.changes.items() if key != "model"})
    own = " ".join(f"{flag} {way.changes[key]}" for key, flag in LLAMA_FLAGS.items() if key in way.changes)
    return " ".join(part for part in (named, flags, f"(llama-server {own})" if own else "") if part)
