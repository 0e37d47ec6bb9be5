"""What adapters' products take while a layer runs, in vLLM: a small buffer between both matrices, and of
routed experts one for each slot.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.arith import Count, ceil_div, maximum
from memsheet.engines.vllm.lora import pairs_of
from memsheet.engines.vllm.lora_releases import WHOLE_EXPERTS, Facts, facts_of
from memsheet.engines.vllm.profiled import Peak
from memsheet.engines.vllm.releases import Release
from memsheet.plan.device import Cluster
from memsheet.plan.dtypes import FP32, INT32
from memsheet.plan.model import ModelSpec, Moe
from memsheet.plan.plan import Plan, ServedAdapters
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item

DENSE = FromCode("vllm-project/vllm", "v0.33.0", "vllm/lora/punica_wrapper/punica_gpu.py", 251)
ROUTED = FromCode("vllm-project/vllm", "v0.33.0", "vllm/lora/ops/triton_ops/fused_moe_lora_op.py", 1559)
BLOCK = 64
"""Rows of routed tokens that an expert's are padded to (v0.33.0
model_executor/layers/fused_moe/fused_moe.py:1345 get_default_config).
"""
SORTS = 9
"""Compute capability from which the buffer of routed experts is in sorted order, once for each slot
(lora/ops/triton_ops/utils.py supports_tma).
"""


def buffer_item(
    part: ModelSpec,
    plan: Plan,
    release: Release,
    peaks: Mapping[Instant, tuple[Count, Peak]],
    cluster: Cluster | None,
) -> list[Item]:
    """What there is beyond the peaks (each with its tokens) where there are adapters.

    Buffers of routed experts stand beside their layer's widest moment; others are gone by then, and are a
    high end.
    """
    served, facts = plan.served_adapters, facts_of(release.since)
    if served is None or facts is None:
        return []
    at, sorted_ = {}, _sorts_tokens_by_adapter(cluster) and not served.sharded
    for when, (tokens, peak) in peaks.items():
        routed = routed_bytes(part, plan, facts, tokens, in_order=sorted_)
        whole, layer = peak.total, (peak.pictures + peak.layer).value + routed
        at[when] = Bytes(
            0,
            maximum(layer, whole.value) - whole.value,
            maximum(routed, dense_bytes(part, plan, facts, tokens)),
        )
    source = (
        ROUTED
        if any(isinstance(feed, Moe) for feed in _feed_forward_layers(part)) and facts.experts
        else DENSE
    )
    return [Item(Component.TEMPORARIES, "lora_buffer", at, source)]


def _sorts_tokens_by_adapter(cluster: Cluster | None) -> bool:
    """Unknown cards are taken for new ones, which need more."""
    major = (cluster.device.compute_capability or "").partition(".")[0] if cluster else ""
    return not major.isdigit() or int(major) >= SORTS


def _feed_forward_layers(part: ModelSpec) -> list[object]:
    return [block.feed_forward for block in part.blocks()]


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 lora/punica_wrapper/punica_gpu.py:251: fp32 of (pieces, tokens, rank) between both products",
)
def dense_bytes(part: ModelSpec, plan: Plan, facts: Facts, tokens: Count) -> Count:
    """Bytes of the largest; fully sharded a rank's own share is gathered
    (lora/layers/column_parallel_linear.py:64).
    """
    served = plan.served_adapters
    assert served is not None
    parts = max((pair.parts for pair in pairs_of(part, plan, facts)), default=0)
    return (2 if served.sharded else 1) * FP32.nbytes(parts * tokens * served.rank)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 lora/ops/triton_ops/fused_moe_lora_op.py:1559: (pieces, tokens, experts a token, rank), "
        "in sorted order (pieces, slots, rows, rank); v0.14.0 :464 and the result"
    ),
)
def routed_bytes(part: ModelSpec, plan: Plan, facts: Facts, tokens: Count, *, in_order: bool) -> Count:
    """Bytes beside the widest layer of routed experts, and of the places of its tokens for every slot."""
    served, most = plan.served_adapters, 0
    assert served is not None
    if not facts.experts or (served.targets is not None and "experts" not in served.targets):
        return 0
    for block in {id(b): b for b in part.blocks()}.values():
        if isinstance(moe := block.feed_forward, Moe):
            pieces = 1 if part.model_type in WHOLE_EXPERTS or not moe.gated else 2
            most = maximum(
                most,
                _expert_lora_buffer_bytes(
                    plan, served, facts, (moe, block.hidden, pieces), tokens, in_order=in_order
                ),
            )
    return most


def _expert_lora_buffer_bytes(
    plan: Plan,
    served: ServedAdapters,
    facts: Facts,
    layer: tuple[Moe, int, int],
    tokens: Count,
    *,
    in_order: bool,
) -> Count:
    moe, hidden, pieces = layer
    dtype, routed = plan.precision.compute, tokens * moe.experts_per_token
    rows = routed + moe.experts * (BLOCK - 1)
    places = INT32.nbytes(served.slots * rows)
    if facts.wide:  # the adapter's result is made beside the layer's
        widest = maximum(pieces * ceil_div(moe.intermediate, plan.mesh.etp), hidden)
        return places + dtype.nbytes(routed * (pieces * served.rank + widest))
    return places + dtype.nbytes(pieces * served.rank * (served.slots * rows if in_order else routed))
