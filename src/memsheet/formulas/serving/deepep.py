"""Buffers of DeepEP, which sends tokens to the ranks of their experts: made beside torch's allocator, of
sizes by ranks and width alone.
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.arith import Count
from memsheet.formulas.serving.dp_attention import SENT
from memsheet.plan.model import ModelSpec, Moe
from memsheet.plan.plan import Plan
from memsheet.references import DEEPEP_BUFFERS, PAGED_SERVER_TITLE
from memsheet.sheet import Bytes, Cited, Component, Instant, Item

NODE = 8
"""Ranks that NVLink joins (csrc/kernels/legacy/compiled.cuh:9)."""


def deepep_items(part: ModelSpec, plan: Plan, buffer_bytes: Callable[[int, int, int], Count]) -> list[Item]:
    """A rank's buffers. ``buffer_bytes``: as the engine sizes them, of width, experts and ranks."""
    experts = max(
        (b.feed_forward.experts for b in part.blocks() if isinstance(b.feed_forward, Moe)),
        default=0,
    )
    if plan.options.dispatch != SENT or not experts:
        return []
    size = buffer_bytes(part.hidden, experts, int(plan.mesh.ep))
    source = Cited(
        DEEPEP_BUFFERS,
        f"csrc/legacy/config.hpp:54, 136; {PAGED_SERVER_TITLE} v0.33.0 "
        "distributed/device_communicators/all2all.py:263",
    )
    return [
        Item(
            Component.COMMUNICATION,
            "deepep",
            dict.fromkeys((Instant.PREFILL, Instant.DECODE), Bytes.exact(size)),
            source,
        )
    ]
