"""What the allocator reserves where batches are padded to their longest sample, so that no two steps ask for
the same sizes.

A cached block serves what is as large or smaller; every step that is longer than all before takes new
segments, and the old ones lie in pieces. How much that comes to depends on the order of lengths, which nobody
knows beforehand: drawn orders are played through the allocator's rules.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from memsheet.allocator.settings import Settings
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.replay.script import Played, Recorded, Script, play_backward, play_forward
from memsheet.formulas.replay.steps import replay_within_room
from memsheet.formulas.replay.tape_logs import Sized
from memsheet.formulas.tapes.evaluate import Axes, Part
from memsheet.plan.dtypes import INT64
from memsheet.plan.plan import Plan, RecomputeMode
from memsheet.references import TORCH_ALLOCATOR, formula
from memsheet.sheet import Bytes, Derived

ORDERS, STEPS, SHORTEST = 4, 60, 64
"""Orders of lengths that are drawn, micro-batches in each (more change little: the longest is met early), and
the shortest of them.
"""
FEWER = 2, 30
"""Orders and micro-batches where every layer's own allocations are played."""
REPLAYED = Derived(
    "drawn orders of micro-batches of even lengths up to seq_len, replayed through the caching "
    "allocator's rules (torch 2.13, "
    "c10/cuda/CUDACachingAllocator.cpp): their mean and their most; low: every micro-batch of seq_len"
)


def is_varied_step_replayable(stage: StageLayers, plan: Plan) -> bool:
    """Whether no layer is recomputed, or each on its own and all are of one kind."""
    alone = (
        isinstance(plan.mesh.gpus, int)
        and isinstance(plan.training.seq_len, int)
        and isinstance(plan.training.microbatch, int)
    )
    alike = (
        len([group for run in stage.layers for group in run.pattern]) == 1 and not plan.recompute.stretched
    )
    modes = plan.recompute.mode is RecomputeMode.NONE or (
        alike and plan.recompute.mode is RecomputeMode.FULL and plan.recompute.layers is None
    )
    inside = plan.optimizer_in_backward or plan.offload.activations
    return (
        alone
        and modes
        and not inside
        and stage.embeddings is not None
        and stage.head is not None
        and stage.loss is not None
    )


@formula(
    cites=TORCH_ALLOCATOR,
    at="the rules of malloc and free, for micro-batches of other lengths one after another",
    counts="int",
)
def varied_reserved_bytes(stage: StageLayers, plan: Plan, resident: int, room: int) -> Bytes:
    """What is reserved over steps of varied lengths on a device with ``room``. ``resident``: bytes that are
    placed first and stay.
    """
    length, left = int(plan.training.seq_len), max(0, room - resident)
    orders, steps = (ORDERS, STEPS) if plan.recompute.mode is RecomputeMode.FULL else FEWER
    drawn = [
        _replay_varied_lengths(stage, plan, _longest_sample_lengths(plan, order, steps), left)
        for order in range(orders)
    ]
    alike = _replay_varied_lengths(stage, plan, [length] * 3, left)
    return Bytes(resident + min(alike, *drawn), resident + sum(drawn) // orders, resident + max(drawn))


def _longest_sample_lengths(plan: Plan, order: int, steps: int) -> list[int]:
    """The longest sample of each micro-batch."""
    drawn, longest = random.Random(order), int(plan.training.seq_len)  # noqa: S311 - an order of lengths, not a secret
    return [
        max(int(drawn.uniform(min(SHORTEST, longest), longest)) for _ in range(int(plan.training.microbatch)))
        for _ in range(steps)
    ]


def _replay_varied_lengths(stage: StageLayers, plan: Plan, lengths: Iterable[int], room: int) -> int:
    script = Script()
    for length in lengths:
        _micro_batch(script, stage, plan, length)
    settings = Settings(expandable_segments=plan.expandable_segments)
    return replay_within_room(script, 0, settings, room).most


def _micro_batch(script: Script, stage: StageLayers, plan: Plan, length: int) -> None:
    """Forward and backward at one length. Gradients stay until its end, or are added at once to those of
    earlier ones.

    Where layers are recomputed, one's work stands for that of all, and each keeps its input alone.
    """
    embeddings, head, loss = stage.embeddings, stage.head, stage.loss
    assert embeddings is not None
    assert head is not None
    assert loss is not None
    tokens, gradients = int(INT64.nbytes(plan.training.microbatch * length)), list[int]()
    inputs = [script.take(tokens), script.take(tokens)]
    parts = {id(group): _part_at_length(group.part, length) for run in stage.layers for group in run.pattern}
    first, x = play_forward(script, _part_at_length(embeddings.part, length), None)
    layers, kept = list[Played](), list[int]()
    for part in (parts[id(group)] for run in stage.layers for _ in range(run.count) for group in run.pattern):
        if layers and part.light:
            kept.append(x := script.take(script.sizes[x] if x is not None else 0))
        else:
            layer, x = play_forward(script, part, x)
            layers.append(layer)
    last, x = play_forward(script, _part_at_length(head.part, length), kept.pop() if kept else x)
    measured, _ = play_forward(script, _part_at_length(loss, length), x)
    g: int | None = None
    for played in (measured, last, *reversed(layers), first):
        made, g = play_backward(script, played, g)
        gradients += made
        if plan.accumulation > 1:
            script.give(gradients)
            gradients = []
        if played is last:
            script.give(kept)
    script.give([*gradients, *([g] if g is not None else []), *inputs])


def _part_at_length(part: Part, length: int) -> Recorded:
    """A part's tapes with their sizes at another length."""
    assert part.played is not None
    tape, light, axes = part.played
    other: Axes = {**axes, "s": length, "s32": -(-length // 32) * 32, "s8": -(-length // 8) * 8}
    first = Sized.of(light, other) if light else None
    return Recorded(Sized.of(tape, other), first)
