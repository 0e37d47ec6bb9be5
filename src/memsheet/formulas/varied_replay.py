"""What the allocator reserves where batches are padded to their longest sample, so that no two steps ask for the same sizes.

A cached block serves what is as large or smaller; every step that is longer than all before takes new segments, and the old ones lie in
pieces. How much that comes to depends on the order of lengths, which nobody knows beforehand: drawn orders are played through the
allocator's rules.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from memsheet.allocator.settings import Settings
from memsheet.formulas.evaluate import Axes, Part
from memsheet.formulas.fsdp2_replay import play
from memsheet.formulas.fsdp2_script import Lifetimes, Recorded, Script, Sized, backward, forward
from memsheet.formulas.groups import Group, Walk
from memsheet.references import TORCH_ALLOCATOR, formula
from memsheet.sheet import Bytes, Component, Derived, Instant, Item
from memsheet.spec.dtypes import INT64
from memsheet.spec.plan import Plan, RecomputeMode

ORDERS, STEPS, SHORTEST = 4, 60, 64
"""Orders of lengths that are drawn, micro-batches in each (more change little: the longest is met early), and the shortest of them."""
REPLAYED = Derived(
    f"{ORDERS} orders of {STEPS} micro-batches of evenly drawn lengths up to seq_len, replayed through the caching allocator's rules (torch 2.13, "
    "c10/cuda/CUDACachingAllocator.cpp): their mean and their most; low: every micro-batch of seq_len"
)


def replayable(stage: Walk, plan: Plan) -> bool:
    """Whether every layer is recomputed on its own, of one kind: then one layer's work stands for all, and each keeps its input alone."""
    alone = isinstance(plan.mesh.gpus, int) and isinstance(plan.seq_len, int) and isinstance(plan.microbatch, int)
    whole = plan.recompute.mode is RecomputeMode.FULL and not plan.recompute.stretched and plan.recompute.layers is None
    layers = [group for run in stage.layers for group in run.pattern]
    return alone and whole and len(layers) == 1 and stage.embeddings is not None and stage.head is not None and stage.loss is not None


@formula(cites=TORCH_ALLOCATOR, at="the rules of malloc and free, for micro-batches of other lengths one after another")
def reserved(stage: Walk, plan: Plan, resident: int, room: int) -> Bytes:
    """What is reserved over steps of varied lengths on a device with ``room``. ``resident``: bytes that are placed first and stay."""
    length, left = int(plan.seq_len), max(0, room - resident)
    drawn = [_played(stage, plan, _lengths(length, order), left) for order in range(ORDERS)]
    alike = _played(stage, plan, [length] * 3, left)
    return Bytes(resident + min(alike, *drawn), resident + sum(drawn) // ORDERS, resident + max(drawn))


def _lengths(longest: int, order: int) -> list[int]:
    drawn = random.Random(order)  # noqa: S311 - an order of lengths, not a secret
    return [int(drawn.uniform(min(SHORTEST, longest), longest)) for _ in range(STEPS)]


def _played(stage: Walk, plan: Plan, lengths: Iterable[int], room: int) -> int:
    """Cached blocks go back to the device before memory runs out. Where it does, what would have been reserved."""
    script = Script()
    for length in lengths:
        _micro_batch(script, stage, plan, length)
    settings = Settings(expandable_segments=plan.expandable_segments)
    free = play(script, 0, settings) or 0
    return free if free <= room else play(script, 0, settings, room) or free


def _micro_batch(script: Script, stage: Walk, plan: Plan, length: int) -> None:
    """Forward and backward at one length; gradients are added to those that are there."""
    embeddings, head, loss, run = stage.embeddings, stage.head, stage.loss, stage.layers[0]
    assert embeddings is not None
    assert head is not None
    assert loss is not None
    tokens = int(INT64.nbytes(plan.microbatch * length))
    inputs = [script.take(tokens), script.take(tokens)]
    first, x = forward(script, _at(embeddings.part, length), None)
    layer, x = forward(script, _at(_only(run.pattern).part, length), x)
    kept = [x] if x is not None else []
    for _ in range(run.count - 1):
        x = script.take(script.sizes[x] if x is not None else 0)
        kept.append(x)
    last, x = forward(script, _at(head.part, length), kept.pop() if kept else None)
    measured, _ = forward(script, _at(loss, length), x)
    made, g = backward(script, measured, None)
    own, g = backward(script, last, g)
    script.give([*made, *own, *kept])
    made, g = backward(script, layer, g)
    script.give(made)
    made, g = backward(script, first, g)
    script.give([*made, *([g] if g is not None else []), *inputs])


def _only(pattern: Sequence[Group]) -> Group:
    (group,) = pattern
    return group


def _at(part: Part, length: int) -> Recorded:
    """A part's tapes with their sizes at another length."""
    assert part.played is not None
    tape, light, axes = part.played
    other: Axes = {**axes, "s": length, "s32": -(-length // 32) * 32}
    first = Sized.of(light, other, Lifetimes.RECORDED) if light else None
    return Recorded(Sized.of(tape, other, Lifetimes.RECORDED), first)


def slack(found: Bytes, allocated: Mapping[Instant, int]) -> Item:
    """The row of the allocator's slack: what is reserved of earlier steps stays through all instants."""
    at = {
        instant: Bytes(*(max(0, int(end) - int(size)) for end in (found.low, found.value, found.high)))
        for instant, size in allocated.items()
    }
    return Item(Component.ALLOCATOR_SLACK, "allocator", at, REPLAYED)
