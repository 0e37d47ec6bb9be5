"""What a child is asked, and what it answers: a plan as JSON in, timelines as JSON out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from memsheet.resolve import resolve
from memsheet.spec.check import flatten
from memsheet.spec.plan import Plan
from memsheet.timeline import Timeline, events_document
from memsheet.trace.fold import Depth
from memsheet.trace.job import How, trace_training


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """``{"timelines": [{"rank", "stage", "events", "facts"}]}`` for each rank that is asked."""
    how = How(device=request["device"], scratch=request["scratch"])
    plan = plan_from(request["plan"])
    return {"timelines": [_traced(request, plan, how, rank) for rank in request["ranks"]]}


def plan_from(document: Mapping[str, Any]) -> Plan:
    """A whole plan, read back from JSON."""
    described = ("schema", "model", "gpus")
    return resolve({key: value for key, value in flatten(document).items() if key not in described}, None, real=True).plan


def _traced(request: Mapping[str, Any], plan: Plan, how: How, rank: int) -> dict[str, Any]:
    start = time.perf_counter()
    timeline = _timeline(request, plan, how, rank)
    stage = rank * plan.mesh.pp // plan.mesh.gpus
    facts = {"seconds": round(time.perf_counter() - start, 3), "events": len(timeline.events), "torch": torch.__version__}
    return {"rank": rank, "stage": stage, "events": events_document(timeline), "facts": facts}


def _timeline(request: Mapping[str, Any], plan: Plan, how: How, rank: int) -> Timeline:
    del rank
    depth = Depth(**request["depth"]) if request["depth"] else None
    return trace_training(request["config"], plan, how, depth)
