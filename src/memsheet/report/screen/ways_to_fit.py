"""What would make a job fit that nothing on its cards makes fit, as rows to type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memsheet.budget import WayToFit
from memsheet.report.screen.layout import join_phrases, wrap_command_line
from memsheet.report.shared.look import Look
from memsheet.report.shared.typed_changes import change_line

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part

DIGITS = 2
LLAMA_FLAGS = {"serving.gpu_layers": "-ngl", "serving.host_experts": "--n-cpu-moe"}
"""What llama.cpp itself calls them (common/arg.cpp)."""


def ways_table(ways: Sequence[WayToFit], look: Look, task: str) -> Part:
    """Each way with what it needs, and under it what to change on the command line."""
    from memsheet.report.screen.written.parts import Text

    needs = [way_needs(way, look) for way in ways]
    wide = max(len(way.words) for way in ways)
    beside = all(wide + 2 + len(need) <= look.width for need in needs)
    text = Text("What would make it fit, each accounted", "bold")
    for way, need in zip(ways, needs, strict=True):
        text.append(
            f"\n{way.words:<{wide}}  "
            if beside
            else f"\n{join_phrases(way.words.split(' '), look.width, between=' ')}\n    "
        )
        text.append(need, "not bold")
        text.append(f"\n{wrap_command_line(way_flags(way, look, task), look.width, indent=2)}", "not bold")
    return text


def way_needs(way: WayToFit, look: Look) -> str:
    """What a GPU needs in a way, and the host."""
    return f"needs {look.need(way.device.value, DIGITS)} a GPU{_on_the_host(way, look)}"


def _on_the_host(way: WayToFit, look: Look) -> str:
    return f", {look.need(way.host_bytes, DIGITS)} of host memory" if way.host_bytes else ""


def way_flags(way: WayToFit, look: Look, task: str) -> str:
    """What to type to get a way, and after it llama.cpp's own words where it has them and no command of a
    server is answered.
    """
    if look.server is not None:
        return change_line(way.changes, look, task)
    own = " ".join(f"{flag} {way.changes[key]}" for key, flag in LLAMA_FLAGS.items() if key in way.changes)
    return change_line(way.changes, look, task) + (f"  (llama-server {own})" if own else "")
