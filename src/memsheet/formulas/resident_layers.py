"""What is resident beside the layer at work: what earlier layers keep, what later layers left."""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.arith import Count, agreed
from memsheet.formulas.groups import Group, Layers, StageLayers
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Moment
from memsheet.formulas.training_step import Step
from memsheet.frozen import replace
from memsheet.plan.plan import AdapterKind
from memsheet.sheet import Component


def layer_index(step: Step, run: int, repetition: int, place: int) -> int:
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
    return step.stretches.kept_inputs(layer_index(step, run, 0, 0), layer_index(step, run, repetitions, 0))


def earlier_layer_activations(
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
                *step.stretches.kept_inputs(
                    layer_index(step, run, repetition, 0), layer_index(step, run, repetition, place)
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
    renamed = [(1, step.walk.entered_input)] if entered and step.walk.layers else []
    return [(1, first.part.retained), (1, step.around.holds(first)), *renamed]


def all_kept(step: Step) -> list[tuple[Count, BytesByPath]]:
    walk = step.walk
    moment = _embeddings_kept(step, entered=True)
    for number, layers in enumerate(walk.layers):
        moment += [
            *_run_saved_activations(step, number, layers.count),
            *_unsharded_run_parameters(step, layers, layers.count),
        ]
    return moment


def early_gradients(step: Step, run: int, repetition: int, place: int) -> list[tuple[Count, BytesByPath]]:
    """Gradients that a term of the loss made of parameters themselves: autograd holds them until those of the
    layers, for which it waits, are there (peft 0.21.2 tuners/adalora/model.py:230-257, AdaLoraModel.forward).
    """
    adapter = step.plan.adapter
    if adapter is None or adapter.kind is not AdapterKind.ADALORA:
        return []
    walk = step.walk
    passed = [(layers.count, group) for layers in walk.layers[:run] for group in layers.pattern]
    if run < len(walk.layers):
        pattern = walk.layers[run].pattern
        passed += [(repetition, group) for group in pattern] + [(1, group) for group in pattern[:place]]
    return [(count, group.gradients) for count, group in passed]


def everything_kept(step: Step) -> Moment:
    """What a micro-batch keeps between its forward and its backward, which are not next to one another in a
    pipeline. What the engine gathered is there once for all of them.
    """
    step = replace(step, around=ShardingOverhead())
    head = [(1, step.walk.head.part.retained)] if step.walk.head else []
    loss = [(1, step.walk.loss.retained)] if step.walk.loss else []
    return [(1, step.kept_tables), (1, step.kept_masks), *all_kept(step), *head, *loss]


def _unsharded_run_parameters(
    step: Step, layers: Layers, repetitions: Count
) -> list[tuple[Count, BytesByPath]]:
    """What the engine keeps of some repetitions of a run between forward and backward."""
    return [(repetitions, step.around.holds(group)) for group in layers.pattern]


def segment_inputs(step: Step, run: int, repetition: int, place: int) -> Moment:
    return step.stretches.entered(layer_index(step, run, repetition, place)) if step.stretches else []


def segment_backward_moments(step: Step, index: int, group: Group) -> tuple[Moment, ...]:
    """Candidates for what a layer and others of its stretch hold in its backward."""
    if step.stretches is None:
        return ([(1, group.part.backward)],)
    inside = step.stretches.inside(index)
    return tuple([*inside, *body] for body in step.stretches.bodies(index))


def cached_forward_tensors(
    walk: StageLayers, run: int, repetition: int, place: int
) -> list[tuple[Count, BytesByPath]]:
    """What the model's forward keeps besides: embeddings it still names, weights' casts of layers that save
    nothing, states of layers that it collects.
    """
    here = walk.layers[run].pattern
    times = [(layers.count, group) for layers in walk.layers[:run] for group in layers.pattern]
    times += [*((repetition, group) for group in here), *((1, group) for group in here[:place])]
    moment = [(1, walk.embeddings.part.cached)] if walk.embeddings else []
    moment += [(count, group.part.cached) for count, group in times]
    return moment + [(count, group.part.collected) for count, group in times if group.part.collected.held]


def embedding_output(step: Step, run: int, repetition: int, place: int) -> list[tuple[Count, BytesByPath]]:
    """The model's forward holds on to the embeddings' output; for the first layer it is that layer's
    input.
    """
    walk = step.walk
    first = walk.entry if run >= walk.entry else 0
    if (
        walk.embeddings is None
        or agreed(run - first + repetition + place == 0)
        or walk.layers[first].pattern[0].part.keeps_input
        or walk.layers[first].pattern[0].part.collected.held
    ):
        return []
    return [
        (
            1,
            BytesByPath.of(
                [
                    (
                        (Component.TEMPORARIES, f"{walk.embeddings.first_module}/output"),
                        walk.embeddings.part.output,
                    )
                ]
            ),
        )
    ]


def asked_embeddings(step: Step) -> Moment:
    """From the end of forward to that of backward, what embeddings return where it stays though it is on the
    host; what they retain on the card is counted as that.
    """
    first = step.walk.embeddings
    if first is None or first.part.lingers.held.keys() <= first.part.retained.held.keys():
        return []
    return [(1, first.part.lingers)]


def tower_resident_tensors(step: Step, run: int) -> Moment:
    """What goes by a name while the layers of a pictures' tower run, and those that come after it."""
    if run < step.walk.entry:
        return [(1, step.beside.inside)] if run else []
    if not step.walk.entry:
        return []
    saved = step.walk.layers[step.walk.entry - 1].pattern[-1].part.keeps_input
    return [(1, step.beside.features), *([] if saved else [(1, step.beside.states)])]


def tower_backward_adjustment(step: Step, run: int) -> Moment:
    """While backward passes through a pictures' tower: what the layers of the words shared is gone, and the
    gradient of their embeddings, which are looked up before the tower runs, is there.
    """
    if run >= step.walk.entry or step.walk.embeddings is None:
        return []
    words = step.walk.embeddings.first_module
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


def later_layer_leftovers(
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
    return [*_gradients_left(step, run, repetition, place), *lingering, *reductions_held(step, behind)]


def _gradients_left(step: Step, run: int, repetition: int, place: int) -> list[tuple[Count, BytesByPath]]:
    """Gradients that layers behind this one have left. When accumulating they have been added to the resident
    ones, and in a step inside backward they are used up, except a tied head's: autograd adds it to the
    embeddings' own before it reaches the parameter.
    """
    if step.lets_go:
        return head_left(step) if step.walk.tied else []
    walk, around = step.walk, step.around
    moment = head_left(step)
    for layers in walk.layers[run + 1 :]:
        moment += [(layers.count, around.leaves(group)) for group in layers.pattern]
    here = walk.layers[run]
    moment += [(here.count - 1 - repetition, around.leaves(group)) for group in here.pattern]
    return moment + [(1, around.leaves(group)) for group in here.pattern[place + 1 :]]


def reductions_held(step: Step, behind: Sequence[tuple[Count, Group]]) -> list[tuple[Count, BytesByPath]]:
    """What reductions of groups ``behind``, so many times each, and of the head keep until backward is
    over.
    """
    held, head = step.around.lingers, step.walk.head
    if held is None:
        return []
    return [(count, held(group)) for count, group in (*behind, *([(1, head)] if head else []))]


def head_left(step: Step) -> list[tuple[Count, BytesByPath]]:
    return [(1, step.around.leaves(step.walk.head))] if step.walk.head else []
