"""CUDA graphs of a server: no formula is known, only what an engine keeps free for them."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.plan.plan import Plan
from memsheet.references import SGLANG, formula
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item
from memsheet.units import GIB, MIB

A_SEQUENCE = 2 * MIB
KEPT_FREE = FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/arg_groups/memory_hook.py", 66)


def graph_items(plan: Plan, largest: Count) -> list[Item]:
    """The pool that all captured sizes share and the graphs themselves, of up to ``largest`` sequences."""
    if not plan.options.captures:
        return []
    size = graph_bytes(largest)
    return [
        Item(
            Component.CUDA_GRAPHS,
            "captured",
            dict.fromkeys((Instant.PREFILL, Instant.DECODE), size),
            KEPT_FREE,
        )
    ]


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 arg_groups/memory_hook.py:66: 2 MiB a captured sequence are kept free; what graphs take "
        "is not written down"
    ),
)
def graph_bytes(largest: Count) -> Bytes:
    """A range for graphs of up to ``largest`` sequences: from nothing to twice that and a GiB for the graphs
    of all sizes.
    """
    return Bytes(0, A_SEQUENCE * largest, 2 * A_SEQUENCE * largest + GIB)
