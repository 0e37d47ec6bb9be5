"""Prefill and decode on a real device: counted by the device itself, timed, and recorded as the trace records
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from memsheet.plan.plan import Plan
from memsheet.run.adapters import apply_quantization, apply_served_adapters
from memsheet.run.model import build_config, build_model
from memsheet.run.own_generate import run_generation
from memsheet.run.serve import (
    Generation,
    cache_kind,
    for_decode,
    generate_next_token,
)
from memsheet.run.step import autocast_region
from memsheet.sheet import Component, Instant
from memsheet.trace.serving_job import Slots, trace_generation

Marked = Callable[[Instant | None], None]


class _Nobody:
    """In a recorder's place: only where generation is, is told."""

    def __init__(self, at: Marked) -> None:
        self.mark = at

    def row_of(self, _: Any) -> None:
        return None

    def claim(self, tensor: Any, component: Component, path: str) -> None:
        del tensor, component, path

    def stop(self) -> None:
        self.mark(None)


@contextmanager
def _serving_model(config: Mapping[str, Any], plan: Plan, device: str) -> Iterator[Any]:
    """The model, as it is served."""
    settings = build_config(config, plan)
    with torch.no_grad():
        model = apply_served_adapters(apply_quantization(build_model(settings, plan, device), plan), plan)
        with autocast_region(plan, device):
            yield model


def run_once(config: Mapping[str, Any], plan: Plan, device: str, at: Marked) -> None:
    """The prompt, the jump to the end, the last tokens, with nobody watching but whoever is told where it
    is.
    """
    with _serving_model(config, plan, device) as model:
        at(Instant.LOAD)
        if plan.serving.phase != "load":
            nobody: Any = _Nobody(at)
            trace_generation(Slots(nobody), model, plan, cache_kind(plan, None), device)


def generation_seconds(config: Mapping[str, Any], plan: Plan, device: str, tokens: int) -> dict[str, Any]:
    """Seconds of a prompt and of each of ``tokens`` tokens after it; the first of each is not counted."""

    def followed(generation: Generation) -> tuple[float, list[float]]:
        prefill_s = _generation_step_s(generation, device, first=True)
        with for_decode(generation.model):
            return prefill_s, [_generation_step_s(generation, device) for _ in range(tokens + 1)][1:]

    kind = cache_kind(plan, None)
    with _serving_model(config, plan, device) as model:
        first_s, decode_s = run_generation(model, plan, kind, device, followed)
    del model
    with _serving_model(config, plan, device) as model:
        again_s = run_generation(
            model, plan, kind, device, lambda one: _generation_step_s(one, device, first=True)
        )
    return {"prefill_s": min(first_s, again_s), "decode_s": decode_s}


def _generation_step_s(generation: Generation, device: str, *, first: bool = False) -> float:
    start = time.perf_counter()
    generate_next_token(generation, first=first)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
