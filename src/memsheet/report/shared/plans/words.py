"""Words for plans: degrees above one, what saves memory, seconds, the command that shows a plan."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memsheet.plan.document import model_reference
from memsheet.report.shared.machines import machine_flags
from memsheet.report.shared.words import flags_for
from memsheet.search.train.space import OFFLOAD

if TYPE_CHECKING:  # a search for training takes numpy, and a search for serving shows its words without it
    from memsheet.search.train.rank import Ranking
    from memsheet.search.train.timed import Planned

AXES = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "vpp", "ep", "etp")
CHOICES = ("recompute.mode", "optimizer.name", "loss", *OFFLOAD)


SHORT_S = 0.1
"""Below which a time is told in milliseconds."""


def format_seconds(value: float) -> str:
    """Seconds with three digits; a short step in milliseconds; a dash for what is not timed."""
    if value == float("inf"):
        return "-"
    if value < SHORT_S:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def format_time_interval(low: float, high: float) -> str:
    """Two times in one unit."""
    if low < SHORT_S <= high:
        return f"{low:.3g} to {high:.3g} s"
    return f"{format_seconds(low)} to {format_seconds(high)}"


def plan_summary(planned: Planned) -> str:
    """A plan in short: engine, degrees above one, and what it does to save memory."""
    plan, mesh = planned.plan, planned.plan.mesh
    degrees = [f"{axis} {getattr(mesh, axis)}" for axis in AXES if getattr(mesh, axis) > 1]
    copies = ["DDP"] if plan.zero == 0 and mesh.dp_replicate > 1 and mesh.dp_replicate == mesh.gpus else []
    saved = choice_words({key: planned.request.get(key) for key in (*CHOICES, "zero")})
    return " · ".join((plan.engine, *copies, *degrees, f"microbatch {plan.training.microbatch}", *saved))


def request_words(engine: str, request: Mapping[str, Any]) -> str:
    """The same of a plan that is a request only."""
    degrees = [f"{axis} {request[f'mesh.{axis}']}" for axis in AXES if request.get(f"mesh.{axis}", 1) > 1]
    saved = choice_words({key: request.get(key) for key in (*CHOICES, "zero")})
    return " · ".join((engine, *degrees, f"microbatch {request.get('microbatch', 1)}", *saved))


def choice_words(choice: Mapping[str, Any]) -> list[str]:
    """How a family saves memory, in words; what everybody does is left out."""
    said = [f"zero {choice['zero']}"] if choice.get("zero") else []
    if choice.get("recompute.mode") not in (None, "none"):
        said.append(f"recompute {choice['recompute.mode']}")
    if choice.get("optimizer.name") not in (None, "adamw"):
        said.append(str(choice["optimizer.name"]))
    if choice.get("loss") not in (None, "plain"):
        said.append(f"{choice['loss']} loss")
    moved = [key.removeprefix("offload.") for key in choice if key.startswith("offload.") and choice[key]]
    return [*said, *([f"offload {', '.join(moved)}"] if moved else [])]


def plan_command(ranking: Ranking, planned: Planned) -> str:
    """The command that shows a plan's sheet."""
    values = {
        key: value
        for key, value in planned.request.items()
        if key not in ("task", "model", "gpus") and value not in (None, False)
    }
    usual = {f"mesh.{axis}": 1 for axis in AXES if axis != "dp_shard"}
    kept = {key: value for key, value in values.items() if usual.get(key) != value}
    model = shlex.quote(model_reference(ranking.model))
    return f"memsheet train {model} {machine_flags(ranking.cluster)} {flags_for(kept)}"
