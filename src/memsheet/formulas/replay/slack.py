"""The allocator's slack of a step whose own allocations can be replayed, in place of a share of what is allocated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memsheet.arith import Count
from memsheet.formulas.activations import numerics
from memsheet.formulas.groups import walk
from memsheet.formulas.model_code import model_code
from memsheet.formulas.replay import steps as fsdp2_replay
from memsheet.formulas.replay import varied as varied_replay
from memsheet.sheet import Bytes, Component, Evidence, Instant, Item, total
from memsheet.spec.device import Cluster
from memsheet.spec.engine import Engine, Sharding
from memsheet.spec.model import ModelSpec
from memsheet.spec.plan import Plan


def replayed(
    items: list[Item], model: ModelSpec, plan: Plan, engine: Engine, cluster: Cluster, allocated: Mapping[Instant, Count]
) -> list[Item]:
    """``items`` with the slack of the step's own allocations, where they are those of one pass and could fit at all."""
    if _hopeless(items, cluster):
        found = None
    elif plan.varied:
        found = _varied(items, model, plan, engine, cluster, allocated)
    elif model.towers or engine.varies:  # lengths that are all alike are an exception there
        found = None
    else:
        found = _alike(items, model, plan, engine, cluster)
    if found is None:
        return items
    evidence = varied_replay.REPLAYED if plan.varied else fsdp2_replay.REPLAYED
    return [*(item for item in items if item.component is not Component.ALLOCATOR_SLACK), slack(found, allocated, evidence)]


def slack(found: Bytes, allocated: Mapping[Instant, Count], evidence: Evidence) -> Item:
    """The row of the allocator's slack: what is reserved of earlier instants and steps stays."""
    ends = (found.low, found.value, found.high)
    at = {instant: Bytes(*(max(0, int(end) - int(size)) for end in ends)) for instant, size in allocated.items()}
    return Item(Component.ALLOCATOR_SLACK, "allocator", at, evidence)


def _hopeless(items: Sequence[Item], cluster: Cluster) -> bool:
    """Whether tensors and context alone are more than the device has at any reading of it: the allocator decides nothing."""
    outside = (Component.ALLOCATOR_SLACK,)
    least = [sum(item.at[when].low for item in items if when in item.at and item.component not in outside) for when in Instant]
    return any(size > cluster.device.framework_high_bytes for size in least)


def _alike(items: list[Item], model: ModelSpec, plan: Plan, engine: Engine, cluster: Cluster) -> Bytes | None:
    """Reserved bytes of steps that are all alike."""
    divided = engine.sharding is Sharding.FSDP2
    if not fsdp2_replay.replayable(plan, divided=divided):
        return None
    beside = model_code(engine.code).shared(model, plan, numerics(plan, engine)).total
    stage = walk(model, plan, engine, release=False)
    return fsdp2_replay.reserved(stage, plan, _room(items, cluster), int(beside), divided=divided)


def _varied(
    items: list[Item], model: ModelSpec, plan: Plan, engine: Engine, cluster: Cluster, allocated: Mapping[Instant, Count]
) -> Bytes | None:
    """Reserved bytes of steps whose lengths differ."""
    stage = walk(model, plan, engine, release=True)
    if not varied_replay.replayable(stage, plan):
        return None
    gradients = [item for item in items if item.component is Component.GRADIENTS and Instant.FORWARD in item.at]
    before = sum(int(item.at[Instant.FORWARD].value) for item in gradients)
    return varied_replay.reserved(stage, plan, int(allocated[Instant.LOAD]) + before, cluster.device.framework_bytes)


def _room(items: Iterable[Item], cluster: Cluster) -> Bytes:
    """What the driver and libraries leave the step's own tensors."""
    taken = total(item.largest for item in items if item.component in (Component.CONTEXT, Component.WORKSPACES))
    whole = cluster.device.framework_bytes
    return Bytes(whole - taken.high, whole - taken.value, whole - taken.low)
