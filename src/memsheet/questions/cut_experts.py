"""Whether a server's release loads experts that its ranks cut inside a block of one scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.budget import Answer
from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.verdict_doubts import Doubt
from memsheet.late import late_functions
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.hardware import version_of
from memsheet.plan.workload import Serving

with late_functions(__name__):
    from memsheet.formulas.serving.cut_blocks import cut_blocks
    from memsheet.formulas.serving.dp_attention import group_plan

PADS = "AMD"
"""Whose kernels pad experts in every release (``formulas.serving.cut_blocks``)."""


def cut_experts_doubt(
    answer: Answer | None, reads: Mapping[str, FileReading], flags: Mapping[str, Any]
) -> Doubt:
    """Why a server that fits may not load its weights: releases before the one that is known to do so refuse
    them, and nobody says a newer one.
    """
    if answer is None or answer.verdict is None or not isinstance(answer.plan.workload, Serving):
        return Doubt("")
    since = engine_of(answer.plan).limits.loads_cut_experts
    said = flags.get("engine_version") or next((r.release for r in reads.values() if r.release), None)
    if since is None or (said and version_of(str(said)) >= since) or _is_padded(answer):
        return Doubt("")
    cut = next((one for one in cut_blocks(answer.model, group_plan(answer.plan)) if one.routed), None)
    if cut is None:
        return Doubt("")
    device, name = answer.verdict.device, engine_of(answer.plan).name
    words = (
        f"releases of {name} before {since[0]}.{since[1]} refuse experts of which a rank has {cut.elements} "
        f"elements, no multiple of the {cut.side} that share a scale: --engine-version says a newer one, and "
        "fewer ranks or --ep leave blocks whole"
    )
    return Doubt(words, int(device.low), int(device.high))


def _is_padded(answer: Answer) -> bool:
    return answer.cluster is not None and answer.cluster.device.vendor == PADS
