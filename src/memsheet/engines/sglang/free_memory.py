"""What is free on a card before weights are loaded, and what a pass works in."""

from __future__ import annotations

from memsheet.arith import Count, maximum
from memsheet.engines.sglang.attention_groups import grouped_layer_bytes, grouped_logits_bytes, parts_ways
from memsheet.engines.sglang.speculative import drafted_layer
from memsheet.engines.sglang.states import States
from memsheet.formulas.serving.sampling import masked_sampler_bytes
from memsheet.plan.device import Cluster
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.sheet import NOTHING, Bytes, Item


def bytes_left_for_tokens(room: Bytes | None, states: States) -> Bytes | None:
    """What the states leave for tokens."""
    taken = states.bytes
    return (
        None
        if room is None
        else Bytes(room.low - taken.low, room.value - taken.value, room.high - taken.high)
    )


def working_memory_bytes(part: ModelSpec, plan: Plan, tokens: Count, sequences: Count) -> Bytes:
    """The widest layer over a chunk, or the logits of a batch: nothing is sorted, and only the last position
    of a prompt has logits.
    """
    if parts_ways(plan):
        return elementwise_larger(
            grouped_layer_bytes(part, plan, tokens), grouped_logits_bytes(part, plan, sequences)
        )
    layer = drafted_layer(part, plan, tokens)
    if part.head.kind == "none":
        return layer
    drawn = masked_sampler_bytes(sequences, part.head.width, plan.precision.compute)
    return Bytes(layer.low, maximum(layer.value, drawn), maximum(layer.high, drawn))


def elementwise_larger(left: Bytes, right: Bytes) -> Bytes:
    return Bytes(
        maximum(left.low, right.low), maximum(left.value, right.value), maximum(left.high, right.high)
    )


def free_before_loading_bytes(cluster: Cluster, outside: list[Item]) -> Bytes:
    """Free before loading: the context of an idle process is there, and a communicator that has summed once
    (v0.4.3.post4 distributed/device_communicators/pynccl.py:112), whose buffers are in the host's memory
    where cards have no link of their own.
    """
    device = cluster.device
    context = next(item.largest for item in outside if item.path == "cuda")
    nccl = next((item.largest for item in outside if item.path == "nccl"), NOTHING)
    linked = "NVLink" in (device.scale_up_kind or "") or cluster.links.switched
    return Bytes(
        device.framework_low_bytes - context.value - (nccl.high if linked else nccl.value),
        device.framework_bytes - context.low - (nccl.value if linked else nccl.low),
        device.framework_high_bytes - context.low - nccl.low,
    )
