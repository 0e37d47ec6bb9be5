"""Seconds of a vision tower: pictures of every sequence pass it before the language model's first layer.

Its layers run on patches, four for each token that the language model sees (Qwen2-VL, arXiv:2409.12191,
section 2.1: 2 x 2 patches are merged into a token), the pictures of a sequence as one; windows, which some
layers of Qwen2.5-VL attend within, are not taken into account, so that its attention is rather too slow. A
batch of text alone passes no tower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from memsheet.errors import input_error
from memsheet.formulas.step_time.operators import TrainTiming
from memsheet.frozen import replace
from memsheet.plan.model import Block, ModelSpec

Timed = TypeVar("Timed")
PATCHES = 4
"""Patches of one token."""
MERGES = frozenset({"qwen2_vl_vision", "qwen2_5_vl_vision"})
"""Kinds of layers whose towers merge patches so."""


def timed_pictures(spec: ModelSpec, image_tokens: int) -> None:
    """Refuse pictures whose tower is not timed."""
    kinds = {block.kind for tower in spec.towers for run in tower.stack.runs for block in run.pattern}
    if image_tokens and not kinds <= MERGES:
        raise input_error(
            "image_tokens",
            image_tokens,
            f"is not timed for {spec.name}, whose tower was not read",
            "leave it out: text alone is timed",
        )


def patches_of(shop: TrainTiming) -> TrainTiming:
    """The same work on the patches of a micro-batch, which ranks do not share."""
    plan = shop.plan
    length = plan.training.image_tokens * PATCHES
    mesh = replace(plan.mesh, tp=1, cp=1)
    own = replace(
        plan,
        workload=replace(plan.training, seq_len=length),
        mesh=mesh,
        sequence_parallel=False,
        context_parallel=None,
    )
    return replace(shop, plan=own, tokens=plan.training.microbatch * 1.0 * length)


def layers_of_towers(
    spec: ModelSpec, shop: TrainTiming, time: Callable[[TrainTiming, Block], Timed]
) -> Iterator[tuple[int, Timed]]:
    """Each layer of the towers, timed on patches, with how often it comes; nothing without pictures."""
    if not spec.towers or not shop.plan.training.image_tokens:
        return
    own = patches_of(shop)
    for tower in spec.towers:
        for run in tower.stack.runs:
            for block in run.pattern:
                yield run.count, time(own, block)
