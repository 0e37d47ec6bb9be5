"""CUDA graphs of a server: no formula is known, only what an engine keeps free for them."""

from __future__ import annotations

from memsheet.arith import Count, minimum
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item
from memsheet.spec.plan import Plan
from memsheet.units import MIB

A_SEQUENCE = 2 * MIB
KEPT_FREE = FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/arg_groups/memory_hook.py", 66)
LARGEST = 512
"""Sequences of the largest graph: twice those that may run, at most so many (vLLM v0.11.0 config/scheduler.py:176, v0.33.0 config/vllm.py:2463)."""


def graph_items(plan: Plan) -> list[Item]:
    """The pool that all captured sizes share and the graphs themselves: from nothing to twice what SGLang keeps free a sequence."""
    if not plan.captures or plan.max_sequences is None:
        return []
    size = graph_bytes(minimum(2 * plan.max_sequences, LARGEST))
    return [Item(Component.CUDA_GRAPHS, "captured", dict.fromkeys((Instant.PREFILL, Instant.DECODE), size), KEPT_FREE)]


def graph_bytes(largest: Count) -> Bytes:
    """A range for graphs of up to ``largest`` sequences."""
    return Bytes(0, A_SEQUENCE * largest, 2 * A_SEQUENCE * largest)
