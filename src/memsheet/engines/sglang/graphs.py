"""Logits that SGLang's graphs of decoding keep: until 0.5.0 each size its own."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.speculative import version_of
from memsheet.references import SGLANG, formula
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item

SHARED_SINCE = (0, 5, 0)
"""From when on all graphs write their logits into one buffer (v0.5.0rc2 layers/logits_processor.py;
v0.4.9.post6 :511 does not).
"""
SIZES = (1, 2, 4, 8, *range(16, 257, 8), *range(272, 513, 16))
"""Sequences that are recorded, up to the largest (v0.4.6.post5 model_executor/cuda_graph_runner.py:136,
v0.4.9.post6 :147).
"""
KEPT = FromCode(
    "sgl-project/sglang", "v0.4.9.post6", "python/sglang/srt/model_executor/cuda_graph_runner.py", 462
)


def kept_logits_items(part: ModelSpec, plan: Plan, largest: Count) -> list[Item]:
    """The logits of every graph; nothing where all share a buffer. Drafts record fewer sizes."""
    shared = version_of(plan.engine_version) >= SHARED_SINCE
    if shared or not plan.options.captures or part.head.kind == "none":
        return []
    size = kept_logits_bytes(int(largest), part.head.width)
    least = 0 if plan.speculative else size
    ends = dict.fromkeys((Instant.PREFILL, Instant.DECODE), Bytes(least, size, size))
    return [Item(Component.CUDA_GRAPHS, "captured_logits", ends, KEPT)]


@formula(
    cites=SGLANG,
    at=(
        "v0.4.9.post6 model_executor/cuda_graph_runner.py:462, layers/logits_processor.py:511: what a graph "
        "hands back stays, fp32 logits of all its sequences"
    ),
)
def kept_logits_bytes(largest: int, width: Count) -> Count:
    """Bytes of the logits of all sizes up to the largest, which is one of them."""
    rows = sum(size for size in SIZES if size < largest) + largest
    return FP32.nbytes(rows * width)
