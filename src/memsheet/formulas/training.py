"""A training step as moments: what is resident at each candidate for a high-water mark, instant by
instant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memsheet.arith import Count, agreed
from memsheet.formulas.groups import Group, Layers, StageLayers
from memsheet.formulas.recompute_segments import RecomputeSegments
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.states.held import module_of
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Moment, bundle_moment
from memsheet.formulas.tapes.evaluate import NOTHING, Beside
from memsheet.frozen import dataclass
from memsheet.plan.plan import Loss, Plan
from memsheet.sheet import Component, Instant


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Everything the moments of a step are made of."""

    walk: StageLayers
    around: ShardingOverhead
    states: BytesByPath  # parameters, masters, moments, buffers, inputs
    resident_gradients: BytesByPath  # with gradient accumulation, at every instant
    shared: BytesByPath  # rotary tables: saved by the first layer that uses them
    masks: BytesByPath  # through the model's forward
    plan: Plan
    keeps_masks: bool = False
    stretches: RecomputeSegments | None = None  # layers that are recomputed together
    others: BytesByPath = EMPTY  # what other micro-batches keep for their backward, in a pipeline
    named: BytesByPath = EMPTY  # what the training loop still names from the loss to the end of the step
    beside: Beside = NOTHING  # what forward names of a tower that pictures pass through

    @property
    def accumulates(self) -> bool:
        return self.resident_gradients is not EMPTY

    @property
    def lets_go(self) -> bool:
        """Whether gradients are gone when they are made: added to resident ones, or stepped with."""
        return self.accumulates or self.plan.optimizer_in_backward

    @property
    def kept_tables(self) -> BytesByPath:
        """Rotary tables between forward and backward: saved by layers, if not on the host, or arguments of
        their checkpoints.
        """
        return EMPTY if self.plan.offload.activations and not self.keeps_masks else self.shared

    @property
    def kept_masks(self) -> BytesByPath:
        """A checkpoint holds on to its arguments, the mask among them, until its layer has run backward."""
        return self.masks if self.keeps_masks else EMPTY


def peak_candidates(step: Step) -> dict[Instant, list[Moment]]:
    """Candidates for the high-water mark of every instant of a training step, except the optimizer's."""
    resting = bundle_moment([(1, step.states), (1, step.around.always), (1, step.around.between)])
    base = bundle_moment([*resting, (1, step.around.through), (1, step.resident_gradients), (1, step.others)])
    return {
        Instant.LOAD: [resting],
        Instant.FORWARD: [[*base, *moment] for moment in _forward_moments(step)],
        Instant.LOSS: [
            [*base, (1, step.named), (1, step.kept_tables), *_all_kept(step), *moment]
            for moment in _loss_moments(step)
        ],
        Instant.BACKWARD: [[*base, (1, step.named), *moment] for moment in _backward_moments(step)],
    }


def _forward_moments(step: Step) -> Iterator[Moment]:
    walk, around = step.walk, step.around
    if walk.embeddings:
        yield [
            (1, _looked_up(walk, walk.embeddings)),
            (1, around.forward(None, walk.embeddings)),
            (1, step.masks),
        ]
    for group, run, repetition, place in walk.visits():
        if agreed(repetition > 0) and agreed(repetition < walk.layers[run].count - 1):
            continue  # the last one has the same neighbours, and more is kept
        before, _ = walk.around(run, repetition, place)
        sofar = bundle_moment([
            (1, step.shared), (1, step.masks), *_earlier_layer_activations(step, run, repetition, place), *_cached_forward_tensors(walk, run, repetition, place),
            *_embedding_output(step, run, repetition, place), *_tower_resident_tensors(step, run), *_segment_inputs(step, run, repetition, place),
        ])  # fmt: skip
        yield [*sofar, (1, group.part.forward), (1, around.forward(before, group))]
        yield [*sofar, (1, _handed_over(group)), (1, around.entering(before, group))]


def _looked_up(walk: StageLayers, embeddings: Group) -> BytesByPath:
    """The embeddings' forward, their output as what it is from then on: saved, where the first layer saves
    what it is handed.
    """
    forward, output = (
        embeddings.part.forward,
        (Component.TEMPORARIES, f"{module_of(embeddings.parameters[0].path)}/output"),
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
    if walk.head and walk.loss:
        cached = [
            (1, step.kept_masks),
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
        yield [*cached, *left, (1, walk.loss.forward), (1, around.forward(_last_group(walk), walk.head))]


def _inside_forward(step: Step) -> Moment:
    """What the backbone's forward still names while the final norm runs. Logits, where there are any, are
    made after it and are larger.
    """
    if step.plan.loss is Loss.PLAIN or not step.walk.layers:
        return []
    named = [
        kept
        for kept, still in ((step.masks, step.kept_masks), (step.shared, step.kept_tables))
        if still is EMPTY
    ]
    last = len(step.walk.layers) - 1
    return [
        *((1, kept) for kept in named),
        *_embedding_output(step, last, 1, 0),
        *_tower_resident_tensors(step, last),
    ]


def _last_group(walk: StageLayers) -> Group | None:
    return walk.layers[-1].pattern[-1] if walk.layers else walk.embeddings


def _backward_moments(step: Step) -> Iterator[Moment]:
    walk, around = step.walk, step.around
    if walk.head and walk.loss:
        kept = bundle_moment([(1, step.kept_tables), (1, step.kept_masks), *_all_kept(step)])
        yield [*kept, (1, walk.head.part.retained), (1, around.holds(walk.head)), (1, walk.loss.backward)]
        fused = (1, EMPTY if step.lets_go and not walk.tied else walk.loss.gradients)
        yield [
            *kept, fused, (1, walk.head.part.backward), (1, around.backward(_last_group(walk), walk.head, None)), (1, around.during(len(walk.layers), 0)),
        ]  # fmt: skip
        yield [*kept, (1, walk.head.part.arriving), (1, around.leaving(_last_group(walk), walk.head))]
    for group, run, repetition, place in walk.visits(_backward_stop_places(step)):
        before, after = walk.around(run, repetition, place)
        kept = bundle_moment([
            (1, step.kept_tables), (1, step.kept_masks), *_earlier_layer_activations(step, run, repetition, place), *_later_layer_leftovers(step, run, repetition, place),
            *_tower_backward_adjustment(step, run),
        ])  # fmt: skip
        index = _layer_index(step, run, repetition, place)
        for body in _segment_backward_moments(step, index, group):
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
    if step.lets_go:
        return _head_left(step) if step.walk.tied else []
    layers = [(run.count, step.around.leaves(group)) for run in step.walk.layers for group in run.pattern]
    return [*layers, *_head_left(step), (1, step.walk.end)]


# ---- what earlier layers keep, what later layers left ------------------------------------------------------


def _layer_index(step: Step, run: int, repetition: int, place: int) -> int:
    """The number of a layer in order of execution."""
    width = len(step.walk.layers[run].pattern) if run < len(step.walk.layers) else 0
    return (
        sum(len(layers.pattern) * layers.count for layers in step.walk.layers[:run])
        + repetition * width
        + place
    )


def _run_saved_activations(step: Step, run: int, repetitions: int) -> Moment:
    """What some repetitions of a run keep until their backward."""
    if step.stretches is None:
        return [(repetitions, step.walk.layers[run].retained)]
    return step.stretches.kept(_layer_index(step, run, 0, 0), _layer_index(step, run, repetitions, 0))


def _earlier_layer_activations(
    step: Step, run: int, repetition: int, place: int
) -> list[tuple[Count, BytesByPath]]:
    """What everything ahead of a layer keeps for backward."""
    walk = step.walk
    moment = _embeddings_kept(step, entered=agreed(run + repetition + place > 0))
    for number, layers in enumerate(walk.layers[:run]):
        moment += [
            *_run_saved_activations(step, number, layers.count),
            *_unsharded_run_parameters(step, layers, layers.count),
        ]
    moment += [
        *_run_saved_activations(step, run, repetition),
        *_unsharded_run_parameters(step, walk.layers[run], repetition),
    ]
    moment += [(1, step.around.holds(group)) for group in walk.layers[run].pattern[:place]]
    if step.stretches is not None:
        return (
            [
                *moment,
                *step.stretches.kept(
                    _layer_index(step, run, repetition, 0), _layer_index(step, run, repetition, place)
                ),
            ]
            if place
            else moment
        )
    return moment + [(1, group.part.retained) for group in walk.layers[run].pattern[:place]]


def _embeddings_kept(step: Step, *, entered: bool) -> list[tuple[Count, BytesByPath]]:
    """What the embeddings keep. Once the first layer was ``entered``, the input that it keeps goes by their
    name.
    """
    first = step.walk.embeddings
    if first is None:
        return []
    renamed = [(1, _output_of(first, step.walk.layers[0].pattern[0]))] if entered and step.walk.layers else []
    return [(1, first.part.retained), (1, step.around.holds(first)), *renamed]


def _output_of(embeddings: Group, layer: Group) -> BytesByPath:
    """The first layer's kept input, named anew."""
    if not layer.part.keeps_input:
        return EMPTY
    names = {
        path: f"{module_of(embeddings.parameters[0].path)}/output" for _, path in layer.part.arriving.held
    }
    saved = Component.SAVED_ACTIVATIONS
    pairs = [((saved, names[path]), size) for (_, path), size in layer.part.arriving.held.items()]
    return BytesByPath.of(
        [*pairs, *(((saved, path), -size) for (_, path), size in layer.part.arriving.held.items())]
    )


def _all_kept(step: Step) -> list[tuple[Count, BytesByPath]]:
    walk = step.walk
    moment = _embeddings_kept(step, entered=True)
    for number, layers in enumerate(walk.layers):
        moment += [
            *_run_saved_activations(step, number, layers.count),
            *_unsharded_run_parameters(step, layers, layers.count),
        ]
    return moment


def everything_kept(step: Step) -> Moment:
    """What a micro-batch keeps between its forward and its backward, which are not next to one another in a
    pipeline. What the engine gathered is there once for all of them.
    """
    step = replace(step, around=ShardingOverhead())
    head = [(1, step.walk.head.part.retained)] if step.walk.head else []
    loss = [(1, step.walk.loss.retained)] if step.walk.loss else []
    return [(1, step.kept_tables), (1, step.kept_masks), *_all_kept(step), *head, *loss]


def _unsharded_run_parameters(
    step: Step, layers: Layers, repetitions: Count
) -> list[tuple[Count, BytesByPath]]:
    """What the engine keeps of some repetitions of a run between forward and backward."""
    return [(repetitions, step.around.holds(group)) for group in layers.pattern]


def _segment_inputs(step: Step, run: int, repetition: int, place: int) -> Moment:
    return step.stretches.entered(_layer_index(step, run, repetition, place)) if step.stretches else []


def _segment_backward_moments(step: Step, index: int, group: Group) -> tuple[Moment, ...]:
    """Candidates for what a layer and others of its stretch hold in its backward."""
    if step.stretches is None:
        return ([(1, group.part.backward)],)
    inside = step.stretches.inside(index)
    return tuple([*inside, *body] for body in step.stretches.bodies(index))


def _cached_forward_tensors(
    walk: StageLayers, run: int, repetition: int, place: int
) -> list[tuple[Count, BytesByPath]]:
    """What the model's forward keeps besides: embeddings it still names, weights' casts of layers that save
    nothing.
    """
    moment = [(1, walk.embeddings.part.cached)] if walk.embeddings else []
    moment += [(layers.count, group.part.cached) for layers in walk.layers[:run] for group in layers.pattern]
    moment += [(repetition, group.part.cached) for group in walk.layers[run].pattern]
    return moment + [(1, group.part.cached) for group in walk.layers[run].pattern[:place]]


def _embedding_output(step: Step, run: int, repetition: int, place: int) -> list[tuple[Count, BytesByPath]]:
    """The model's forward holds on to the embeddings' output; for the first layer it is that layer's
    input.
    """
    walk = step.walk
    first = walk.entry if run >= walk.entry else 0
    if (
        walk.embeddings is None
        or agreed(run - first + repetition + place == 0)
        or walk.layers[first].pattern[0].part.keeps_input
    ):
        return []
    return [
        (
            1,
            BytesByPath.of(
                [
                    (
                        (Component.TEMPORARIES, f"{module_of(walk.embeddings.parameters[0].path)}/output"),
                        walk.embeddings.part.output,
                    )
                ]
            ),
        )
    ]


def _tower_resident_tensors(step: Step, run: int) -> Moment:
    """What goes by a name while the layers of a pictures' tower run, and those that come after it."""
    if run < step.walk.entry:
        return [(1, step.beside.inside)] if run else []
    if not step.walk.entry:
        return []
    saved = step.walk.layers[step.walk.entry - 1].pattern[-1].part.keeps_input
    return [(1, step.beside.features), *([] if saved else [(1, step.beside.states)])]


def _tower_backward_adjustment(step: Step, run: int) -> Moment:
    """While backward passes through a pictures' tower: what the layers of the words shared is gone, and the
    gradient of their embeddings, which are looked up before the tower runs, is there.
    """
    if run >= step.walk.entry or step.walk.embeddings is None:
        return []
    words = module_of(step.walk.embeddings.parameters[0].path)
    own = (step.walk.layers[0].pattern[0].name.removesuffix("*"), words)
    kept = [*step.kept_tables.held.items(), *step.kept_masks.held.items()]
    gone = BytesByPath.of((key, -size) for key, size in kept if not key[1].startswith(own))
    if run == step.walk.entry - 1:  # which makes that gradient
        return [(1, gone)]
    return [
        (1, gone),
        (
            1,
            BytesByPath.of(
                [((Component.TEMPORARIES, f"{words}/gradient"), step.walk.embeddings.part.output)]
            ),
        ),
    ]


def _later_layer_leftovers(
    step: Step, run: int, repetition: int, place: int
) -> list[tuple[Count, BytesByPath]]:
    """What layers behind this one have left: their gradients, and what stays until the graph goes."""
    walk = step.walk
    behind = [(layers.count, group) for layers in walk.layers[run + 1 :] for group in layers.pattern]
    behind += [(walk.layers[run].count - 1 - repetition, group) for group in walk.layers[run].pattern]
    behind += [(1, group) for group in walk.layers[run].pattern[place + 1 :]]
    lingering = [
        (times, group.part.lingers)
        for times, group in behind
        if group.part.lingers is not EMPTY and group.part.lingers.held
    ]
    return [*_gradients_left(step, run, repetition, place), *lingering]


def _gradients_left(step: Step, run: int, repetition: int, place: int) -> list[tuple[Count, BytesByPath]]:
    """Gradients that layers behind this one have left. When accumulating they have been added to the resident
    ones, and in a step inside backward they are used up, except a tied head's: autograd adds it to the
    embeddings' own before it reaches the parameter.
    """
    if step.lets_go:
        return _head_left(step) if step.walk.tied else []
    walk, around = step.walk, step.around
    moment = _head_left(step)
    for layers in walk.layers[run + 1 :]:
        moment += [(layers.count, around.leaves(group)) for group in layers.pattern]
    here = walk.layers[run]
    moment += [(here.count - 1 - repetition, around.leaves(group)) for group in here.pattern]
    return moment + [(1, around.leaves(group)) for group in here.pattern[place + 1 :]]


def _head_left(step: Step) -> list[tuple[Count, BytesByPath]]:
    return [(1, step.around.leaves(step.walk.head))] if step.walk.head else []
