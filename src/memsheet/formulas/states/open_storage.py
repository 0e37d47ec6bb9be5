"""A copy whose name leaves open which layers are quantized: the high end of its range is with every mixer
whole.

That is what such copies leave in sixteen bits where they leave anything: attention, and what stands in its
place (hf_quant_config.json of arcee-ai/Trinity-Large-Preview-NVFP4 and mconcat/MiniMax-M2.5-NVFP4: lm_head,
every self_attn, routers; of FINAL-Bench/Darwin-9B-MFP4: every self_attn and linear_attn); of Nemotron 3 Super
the projections into and out of its experts' width too, while its experts are in four bits
(docs.nvidia.com/nemotron/latest/nemotron/super3/quantization.html, "Precision Settings").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.formulas.states.held import module_of
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.stored_dtypes import is_quantized
from memsheet.sheet import NOTHING, Bytes, Item, Sheet

LATENT_PROJECTIONS = ("fc1_latent_proj", "fc2_latent_proj")
"""Into the width that experts work in, and out of it."""


def mixers_left_whole(spec: ModelSpec, plan: Plan) -> Plan | None:
    """The plan with no mixer quantized, where a name leaves that open; None where nothing is open."""
    if not spec.source.attention_open or plan.quantization is None:
        return None
    weights = (weight for mixer in spec.mixers() for weight in mixer.weights)
    modules = (
        module_of(weight.path) for weight in weights if is_quantized(weight.path, weight, plan.quantization)
    )
    skip = tuple(dict.fromkeys((*plan.quantization.skip, *modules, *LATENT_PROJECTIONS)))
    return replace(plan, quantization=replace(plan.quantization, skip=skip))


def with_high_end(sheet: Sheet, largest: Sheet) -> Sheet:
    """The sheet with the high end of another accounting of the same job, item by item, so that what is added
    up stays one job's.
    """
    theirs = {(item.component, item.path): item for item in largest.items}
    ours = {(item.component, item.path) for item in sheet.items}
    items = [_item_with_high_end(item, theirs.get((item.component, item.path))) for item in sheet.items]
    items += [_only_at_high_end(item) for key, item in theirs.items() if key not in ours]
    return replace(sheet, items=tuple(items))


def with_both_ends(facts: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a server, each range with the ends of both accountings."""
    return {key: _range_of_both(key, value, others.get(key)) for key, value in facts.items()}


def _range_of_both(key: str, value: Any, other: Any) -> Any:
    if isinstance(value, int) and isinstance(other, int) and key.endswith(("_low", "_high")):
        return min(value, other) if key.endswith("_low") else max(value, other)
    if isinstance(value, Bytes) and isinstance(other, Bytes):
        return value.with_ends_of(other)
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return with_both_ends(value, other)
    return value


def _item_with_high_end(item: Item, other: Item | None) -> Item:
    at = {
        instant: Bytes(size.low, size.value, (other.at.get(instant, NOTHING) if other else NOTHING).high)
        for instant, size in item.at.items()
    }
    return replace(item, at=at)


def _only_at_high_end(item: Item) -> Item:
    return replace(item, at={instant: Bytes(0, 0, size.high) for instant, size in item.at.items()})
