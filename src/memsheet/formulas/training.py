"""A training step as moments: what is resident at each candidate for a high-water mark, instant by
instant.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.arith import agreed
from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.resident_layers import (
    all_kept,
    asked_embeddings,
    cached_forward_tensors,
    earlier_layer_activations,
    early_gradients,
    embedding_output,
    head_left,
    later_layer_leftovers,
    layer_index,
    reductions_held,
    segment_backward_moments,
    segment_inputs,
    tower_backward_adjustment,
    tower_resident_tensors,
)
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Moment, bundle_moment
from memsheet.formulas.training_step import Step
from memsheet.plan.plan import Loss
from memsheet.sheet import Component, Instant


def peak_candidates(step: Step) -> dict[Instant, list[Moment]]:
    """Candidates for the high-water mark of every instant of a training step, except the optimizer's."""
    resting = bundle_moment([(1, step.states), (1, step.around.always), (1, step.around.between)])
    base = bundle_moment([*resting, (1, step.around.through), (1, step.resident_gradients), (1, step.others)])
    kept, leaf = all_kept(step), asked_embeddings(step)
    return {
        Instant.LOAD: [resting],
        Instant.FORWARD: [[*base, *moment] for moment in _forward_moments(step)],
        Instant.LOSS: [
            [*base, (1, step.named), *leaf, (1, step.kept_tables), *kept, *moment]
            for moment in _loss_moments(step)
        ],
        Instant.BACKWARD: [
            [*base, (1, step.named), *leaf, *moment] for moment in _backward_moments(step, kept)
        ],
    }


def _forward_moments(step: Step) -> Iterator[Moment]:
    walk, around = step.walk, step.around
    if walk.embeddings:
        first = walk.layers[0].pattern[0] if walk.layers else None
        yield [
            (1, _looked_up(walk, walk.embeddings)),
            (1, around.forward(None, walk.embeddings)),
            (1, _gathered_ahead(around, first)),
            (1, EMPTY if step.masks_inside else step.masks),
        ]
        if walk.rest or around.opens is not EMPTY:
            yield [(1, around.entering(None, walk.embeddings)), (1, around.opens)]
    for group, run, repetition, place in walk.visits():
        others = 2 if around.ahead else 1
        if agreed(repetition > 0) and agreed(repetition < walk.layers[run].count - others):
            continue  # a later one has the same neighbours, and more is kept
        before, after = walk.around(run, repetition, place)
        ahead = _gathered_ahead(around, after)
        sofar = bundle_moment([
            (1, step.shared), (1, step.masks), (1, step.until_loss), *earlier_layer_activations(step, run, repetition, place), *cached_forward_tensors(walk, run, repetition, place),
            *embedding_output(step, run, repetition, place), *tower_resident_tensors(step, run), *segment_inputs(step, run, repetition, place),
        ])  # fmt: skip
        yield [*sofar, (1, group.part.forward), (1, around.forward(before, group)), (1, ahead)]
        yield [*sofar, (1, _handed_over(group)), (1, around.entering(before, group)), (1, ahead)]


def _gathered_ahead(around: ShardingOverhead, after: Group | None) -> BytesByPath:
    """What is gathered of the next group while one runs forward."""
    return around.ahead(after) if around.ahead and after else EMPTY


def _looked_up(walk: StageLayers, embeddings: Group) -> BytesByPath:
    """The embeddings' forward, their output as what it is from then on: saved, where the first layer saves
    what it is handed.
    """
    forward, output = (
        embeddings.part.forward,
        (Component.TEMPORARIES, f"{embeddings.first_module}/output"),
    )
    if (
        output not in forward.held
        or not walk.layers
        or not walk.layers[walk.entry].pattern[0].part.keeps_input
    ):
        return forward
    return BytesByPath.of(
        ((Component.SAVED_ACTIVATIONS if key == output else key[0], key[1]), size)
        for key, size in forward.held.items()
    )


def _handed_over(group: Group) -> BytesByPath:
    """What a layer is about to read, as what it is from then on: saved, where the layer saves it."""
    arriving = group.part.arriving
    return (
        BytesByPath.of(
            ((Component.SAVED_ACTIVATIONS, path), size) for (_, path), size in arriving.held.items()
        )
        if group.part.keeps_input
        else arriving
    )


def _loss_moments(step: Step) -> Iterator[Moment]:
    """On top of what all layers keep: the head, then the loss, which still has the head's parameters
    gathered.
    """
    walk, around = step.walk, step.around
    if step.returned is not EMPTY:
        yield [(1, step.returned)]
    if walk.head and walk.loss:
        cached = [
            (1, step.kept_masks),
            (1, step.until_loss),
            *((layers.count, group.part.cached) for layers in walk.layers for group in layers.pattern),
        ]
        inside = _inside_forward(step)
        yield [
            *cached,
            *inside,
            (1, walk.head.part.arriving),
            (1, around.entering(_last_group(walk), walk.head)),
        ]
        yield [
            *cached,
            *inside,
            (1, walk.head.part.forward),
            (1, around.forward(_last_group(walk), walk.head)),
        ]
        left = [(1, walk.head.part.retained), (1, walk.head.part.cached)]
        still = around.at_loss(walk.head) if around.at_loss else around.forward(_last_group(walk), walk.head)
        yield [*cached, *left, *_handed_from_outside(step), (1, walk.loss.forward), (1, still)]


def _inside_forward(step: Step) -> Moment:
    """What the backbone's forward still names while the final norm runs. Logits, where there are any, are
    made after it and are larger.
    """
    if step.plan.loss is Loss.PLAIN or not step.walk.layers:
        return _handed_from_outside(step)
    named = [
        kept
        for kept, still in ((step.masks, step.kept_masks), (step.shared, step.kept_tables))
        if still is EMPTY
    ]
    last = len(step.walk.layers) - 1
    return [
        *((1, kept) for kept in named),
        *([] if asked_embeddings(step) else embedding_output(step, last, 1, 0)),
        *tower_resident_tensors(step, last),
    ]


def _handed_from_outside(step: Step) -> Moment:
    """The embeddings' output where a wrapper around the model made it, and names it until the loss is there
    (peft 0.21.2 peft_model.py, PeftModelForCausalLM.forward).
    """
    if not step.plan.training.virtual_tokens or not step.walk.layers:
        return []
    return [*embedding_output(step, len(step.walk.layers) - 1, 1, 0)]


def _last_group(walk: StageLayers) -> Group | None:
    return walk.layers[-1].pattern[-1] if walk.layers else walk.embeddings


def _backward_moments(step: Step, every: Moment) -> Iterator[Moment]:
    """``every``: what all layers keep."""
    walk, around = step.walk, step.around
    if walk.head and walk.loss:
        early = early_gradients(step, len(walk.layers), 0, 0)
        kept = bundle_moment([(1, step.kept_tables), (1, step.kept_masks), *every, *early])
        yield [*kept, (1, walk.head.part.retained), (1, around.holds(walk.head)), (1, walk.loss.backward)]
        fused = (1, EMPTY if step.lets_go and not walk.tied else walk.loss.gradients)
        yield [
            *kept, fused, (1, walk.head.part.backward), (1, around.backward(_last_group(walk), walk.head, None)), (1, around.during(len(walk.layers), 0)),
        ]  # fmt: skip
        yield [*kept, (1, walk.head.part.arriving), (1, around.leaving(_last_group(walk), walk.head))]
    for group, run, repetition, place in walk.visits(_backward_stop_places(step)):
        before, after = walk.around(run, repetition, place)
        kept = bundle_moment([
            (1, step.kept_tables), (1, step.kept_masks), *earlier_layer_activations(step, run, repetition, place), *later_layer_leftovers(step, run, repetition, place),
            *tower_backward_adjustment(step, run), *early_gradients(step, run, repetition, place + 1),
        ])  # fmt: skip
        index = layer_index(step, run, repetition, place)
        for body in segment_backward_moments(step, index, group):
            yield [
                *kept,
                *body,
                (1, around.backward(before, group, after)),
                (1, around.during(run, repetition)),
            ]
        if around.fetching is not None:
            yield [
                *kept,
                (1, group.part.retained),
                (1, group.part.arriving),
                (1, around.fetching(before, group, after)),
            ]
        inside = step.stretches.inside(index) if step.stretches else ()
        yield [*kept, *inside, (1, group.part.arriving), (1, around.leaving(before, group))]
        if around.reducing is not None:
            yield [*kept, *inside, (1, group.part.arriving), (1, around.reducing(before, group))]
    if walk.embeddings:
        after = walk.layers[0].pattern[0] if walk.layers else walk.head
        own = [
            (1, walk.embeddings.part.backward),
            (1, around.backward(None, walk.embeddings, after)),
            (1, around.during(-1, 0)),
        ]
        yield [*_everything_left(step), *own]
        yield [*_everything_left(step), (1, around.leaving(None, walk.embeddings))]
        if around.reducing is not None:
            yield [*_everything_left(step), (1, around.reducing(None, walk.embeddings))]
    if around.end is not EMPTY:
        yield [(1, around.end)]


def _backward_stop_places(step: Step) -> frozenset[tuple[int, int]]:
    """The places worth a look besides the first and last: every layer, where each is at another place of a
    stretch.
    """
    if step.stretches is None:
        return step.around.stops
    return frozenset(
        (run, repetition) for run, layers in enumerate(step.walk.layers) for repetition in range(layers.count)
    )


def _everything_left(step: Step) -> Moment:
    groups = [(run.count, group) for run in step.walk.layers for group in run.pattern]
    lingering = [(count, group.part.lingers) for count, group in groups if group.part.lingers.held]
    lingering += reductions_held(step, groups)
    if step.lets_go:
        return [*lingering, *(head_left(step) if step.walk.tied else [])]
    left = [(count, step.around.leaves(group)) for count, group in groups]
    return [*left, *lingering, *head_left(step), (1, step.walk.end)]
