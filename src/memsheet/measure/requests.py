"""What a measuring child is asked, and what it answers: a plan as JSON in, one rank's real allocations as JSON out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch

from memsheet.errors import refuse
from memsheet.measure.cuda import counted
from memsheet.measure.profiler import profiled
from memsheet.run.step import At
from memsheet.run.train import trainer
from memsheet.sheet import Instant
from memsheet.spec.plan import Plan
from memsheet.trace.job import MICRO, STEPS, How, trace_training
from memsheet.trace.requests import plan_from, traced


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """As ``trace.requests.answer``; the facts hold ``measured``: bytes by instant, seconds of a step, tokens a second."""
    torch.manual_seed(0)
    config, plan, device = request["config"], plan_from(request["plan"]), request["device"]
    if device == "cuda" and not torch.cuda.is_available():
        raise refuse("device", device, "is not there: this torch sees no CUDA device", "cpu, or `memsheet trace`, which needs none")
    truth = _truth(config, plan, device)
    seconds = _timed(config, plan, device, int(request["steps"]))
    found = traced(0, 0, lambda: trace_training(config, plan, How(device=device, fake=False, scratch=False)))
    step_s = statistics.median(seconds)
    tokens = int(plan.microbatch) * int(plan.seq_len) * int(plan.accumulation)
    found["facts"]["measured"] = {
        **truth, "device": device, "steps": len(seconds), "step_s": round(step_s, 4),
        "fastest_s": round(min(seconds), 4), "slowest_s": round(max(seconds), 4), "tokens_per_s": round(tokens / step_s, 1),
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    return {"timelines": [found]}


def _truth(config: Mapping[str, Any], plan: Plan, device: str) -> dict[str, Any]:
    """Bytes that the device itself counted: of each instant, and on a GPU of what is reserved and taken in all."""
    if device == "cpu":
        return {"instants": dict(profiled(lambda at: _steps(config, plan, device, at)).instants)}
    found = counted(lambda at: _steps(config, plan, device, at), torch.cuda)
    return {"instants": found.allocated, "reserved": found.reserved, "device_bytes": found.device}


def _steps(config: Mapping[str, Any], plan: Plan, device: str, at: At) -> None:
    """Two steps under watch: the first makes the optimizer's states."""
    step = trainer(config, plan, device, at, min(int(plan.accumulation), MICRO))
    for _ in range(STEPS):
        step()


def _timed(config: Mapping[str, Any], plan: Plan, device: str, steps: int) -> list[float]:
    """Seconds of each step after the first, which nothing watches."""
    step, found = trainer(config, plan, device, _ignore, int(plan.accumulation)), list[float]()
    step()
    for _ in range(steps):
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return found


def _ignore(_: Instant) -> None:
    """Nobody asks where the step is."""
