"""A person's own training step on real tensors: recorded, counted by the device, timed. In this very process:
nothing is patched for good.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from memsheet.measure.cuda import clear_cuda_caches, count_cuda_peaks
from memsheet.measure.environment import check_there, runtime_environment
from memsheet.measure.profiler import profile_memory_peaks
from memsheet.sheet import Instant
from memsheet.timeline import highest_peak, timeline_from
from memsheet.trace.custom import Build, trace_custom, unpack_build_result
from memsheet.trace.job import STEPS, How
from memsheet.trace.requests import traced_rank_document

Marked = Callable[[Instant | None], None]


def measure_custom(build: Build, device: str, steps: int) -> dict[str, Any]:
    """A rank as a child tells of it. ``build`` is called three times: recorded, counted, timed."""
    check_there(device)
    found = traced_rank_document(
        0, 0, lambda: trace_custom(build, How(device=device, fake=False, scratch=False))
    )
    top = highest_peak(timeline_from(found["events"])).instant.value
    gc.collect()
    if device == "cuda":
        clear_cuda_caches(torch.cuda)
    seconds = _time_custom_steps(build, device, steps)
    found["facts"]["measured"] = {
        **_count_custom_step(build, device, top), "device": device, "steps": steps, "step_s": round(statistics.median(seconds), 6),
        "fastest_s": round(min(seconds), 6), "slowest_s": round(max(seconds), 6), "threads": torch.get_num_threads(),
        "environment": runtime_environment(device),
    }  # fmt: skip
    return found


def _count_custom_step(build: Build, device: str, top: str) -> dict[str, Any]:
    """What the device counted in the second step, all of it under the instant of the recorded peak: no marks
    are set in a stranger's step.
    """

    def run(at: Marked) -> None:
        with torch.device(device):
            step = unpack_build_result(build())[2]
            for _ in range(STEPS):
                at(Instant.LOAD)
                step()

    if device == "cpu":
        return {"instants": {top: max(profile_memory_peaks(run).instants.values())}}
    found = count_cuda_peaks(run, torch.cuda)
    return {
        key: {top: max(value.values())} if isinstance(value, dict) else value
        for key, value in found.facts.items()
    }


def _time_custom_steps(build: Build, device: str, steps: int) -> list[float]:
    with torch.device(device):
        step = unpack_build_result(build())[2]
        step()
        found = []
        for _ in range(steps):
            start = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            found.append(time.perf_counter() - start)
    return found
