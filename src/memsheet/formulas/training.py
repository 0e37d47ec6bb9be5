"""A training step as moments: what is resident at each candidate for a high-water mark, instant by instant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

from memsheet.arith import Count, maximum
from memsheet.formulas.evaluate import EMPTY, Bag, Moment, largest
from memsheet.formulas.groups import Group, Layers, Walk
from memsheet.formulas.states import Held, gradient_dtype, module_of
from memsheet.formulas.surroundings import Surroundings
from memsheet.references import SUBLINEAR, TORCH_OPTIM, formula
from memsheet.sheet import Component, Instant
from memsheet.spec.plan import Implementation, OptimizerName, Plan, RecomputeMode


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Everything the moments of a step are made of."""

    walk: Walk
    around: Surroundings
    states: Bag  # parameters, masters, moments, buffers, inputs
    resident_gradients: Bag  # with gradient accumulation, at every instant
    shared: Bag  # rotary tables: saved by the first layer that uses them
    masks: Bag  # through the model's forward
    plan: Plan

    @property
    def accumulates(self) -> bool:
        return self.resident_gradients is not EMPTY

    @property
    def kept_masks(self) -> Bag:
        """A checkpoint holds on to its arguments, the mask among them, until its layer has run backward."""
        return self.masks if self.plan.recompute.mode is RecomputeMode.FULL else EMPTY


def moments(step: Step) -> dict[Instant, list[Moment]]:
    """Candidates for the high-water mark of every instant of a training step, except the optimizer's."""
    base: Moment = [(1, step.states), (1, step.around.always), (1, step.around.through), (1, step.resident_gradients)]
    return {
        Instant.LOAD: [[(1, step.states), (1, step.around.always)]],
        Instant.FORWARD: [[*base, *moment] for moment in _forward(step)],
        Instant.LOSS: [[*base, (1, step.shared), *_all_kept(step), *moment] for moment in _loss(step)],
        Instant.BACKWARD: [[*base, *moment] for moment in _backward(step)],
    }


def _forward(step: Step) -> Iterator[Moment]:
    walk, around = step.walk, step.around
    if walk.embeddings:
        yield [(1, walk.embeddings.part.forward), (1, around.forward(None, walk.embeddings)), (1, step.masks)]
    for group, run, repetition, place in walk.visits():
        if 0 < repetition < walk.layers[run].count - 1:
            continue  # the last one has the same neighbours, and more is kept
        before, _ = walk.around(run, repetition, place)
        sofar: Moment = [
            (1, step.shared), (1, step.masks), *_before(step, run, repetition, place), *_cached(walk, run, repetition, place),
            *_embedding_output(step, run, repetition, place),
        ]  # fmt: skip
        yield [*sofar, (1, group.part.forward), (1, around.forward(before, group))]
        yield [*sofar, (1, group.part.arriving), (1, around.entering(before, group))]


def _loss(step: Step) -> Iterator[Moment]:
    """On top of what all layers keep: the head, then the loss, which still has the head's parameters gathered."""
    walk, around = step.walk, step.around
    if walk.head and walk.loss:
        cached = [(1, step.kept_masks), *((layers.count, group.part.cached) for layers in walk.layers for group in layers.pattern)]
        yield [*cached, (1, walk.head.part.arriving), (1, around.entering(_last(walk), walk.head))]
        yield [*cached, (1, walk.head.part.forward), (1, around.forward(_last(walk), walk.head))]
        left = [(1, walk.head.part.retained), (1, walk.head.part.cached)]
        yield [*cached, *left, (1, walk.loss.forward), (1, around.forward(_last(walk), walk.head))]


def _last(walk: Walk) -> Group | None:
    return walk.layers[-1].pattern[-1] if walk.layers else walk.embeddings


def _backward(step: Step) -> Iterator[Moment]:
    walk, around = step.walk, step.around
    if walk.head and walk.loss:
        kept: Moment = [(1, step.shared), (1, step.kept_masks), *_all_kept(step)]
        yield [*kept, (1, walk.head.part.retained), (1, around.holds(walk.head)), (1, walk.loss.backward)]
        fused = (1, walk.loss.gradients)
        yield [
            *kept, fused, (1, walk.head.part.backward), (1, around.backward(_last(walk), walk.head, None)), (1, around.during(len(walk.layers), 0)),
        ]  # fmt: skip
        yield [*kept, (1, walk.head.part.arriving), (1, around.leaving(_last(walk), walk.head))]
    for group, run, repetition, place in walk.visits(around.stops):
        before, after = walk.around(run, repetition, place)
        kept = [(1, step.shared), (1, step.kept_masks), *_before(step, run, repetition, place), *_left(step, run, repetition, place)]
        yield [
            *kept,
            *_segment(step),
            (1, group.part.backward),
            (1, around.backward(before, group, after)),
            (1, around.during(run, repetition)),
        ]
        yield [*kept, (1, group.part.arriving), (1, around.leaving(before, group))]
    if walk.embeddings:
        after = walk.layers[0].pattern[0] if walk.layers else walk.head
        own = [(1, walk.embeddings.part.backward), (1, around.backward(None, walk.embeddings, after)), (1, around.during(-1, 0))]
        yield [*_everything_left(step), *own]
        yield [*_everything_left(step), (1, around.leaving(None, walk.embeddings))]
    if around.end is not EMPTY:
        yield [(1, around.end)]


def _everything_left(step: Step) -> Moment:
    if step.accumulates:
        return _head_left(step) if step.walk.tied else []
    layers = [(run.count, step.around.leaves(group)) for run in step.walk.layers for group in run.pattern]
    return [*layers, *_head_left(step)]


# ---- what earlier layers keep, what later layers left ----------------------------------------------------------------------


@formula(cites=SUBLINEAR, at="section 4: only the input of each segment is kept; a segment is computed again before its backward")
def segment_length(layers: int, plan: Plan) -> int:
    """Layers that are recomputed together: every k layers, or the stack cut into k segments."""
    recompute = plan.recompute
    if recompute.segments:
        return -(-layers // recompute.segments)
    return recompute.every


def layer_count(walk: Walk) -> int:
    return sum(len(layers.pattern) * layers.count for layers in walk.layers)


def _share(step: Step) -> tuple[int, int]:
    """Of a run's kept inputs, one in so many stays: (numerator, denominator)."""
    return 1, segment_length(layer_count(step.walk), step.plan) if step.plan.recompute.mode is RecomputeMode.FULL else 1


def _kept(step: Step, layers: Layers, repetitions: Count) -> list[tuple[Count, Bag]]:
    """What some repetitions of a run keep until their backward."""
    _, length = _share(step)
    if length == 1:
        return [(repetitions, layers.retained)]
    inputs = [group.part.retained for group in layers.pattern]
    return [(-(-repetitions * len(inputs) // length), inputs[0])]


def _before(step: Step, run: int, repetition: int, place: int) -> list[tuple[Count, Bag]]:
    """What everything ahead of a layer keeps for backward."""
    walk = step.walk
    moment = _embeddings_kept(step, entered=run + repetition + place > 0)
    for layers in walk.layers[:run]:
        moment += [*_kept(step, layers, layers.count), *_held(step, layers, layers.count)]
    moment += [*_kept(step, walk.layers[run], repetition), *_held(step, walk.layers[run], repetition)]
    moment += [(1, step.around.holds(group)) for group in walk.layers[run].pattern[:place]]
    if _share(step)[1] == 1:
        moment += [(1, group.part.retained) for group in walk.layers[run].pattern[:place]]
    return moment


def _embeddings_kept(step: Step, *, entered: bool) -> list[tuple[Count, Bag]]:
    """What the embeddings keep. Once the first layer was ``entered``, the input that it keeps goes by their name."""
    first = step.walk.embeddings
    if first is None:
        return []
    renamed = [(1, _output_of(first, step.walk.layers[0].pattern[0]))] if entered and step.walk.layers else []
    return [(1, first.part.retained), (1, step.around.holds(first)), *renamed]


def _output_of(embeddings: Group, layer: Group) -> Bag:
    """The first layer's kept input, named anew."""
    if not layer.part.keeps_input:
        return EMPTY
    names = {path: f"{module_of(embeddings.parameters[0].path)}/output" for _, path in layer.part.arriving.held}
    saved = Component.SAVED_ACTIVATIONS
    pairs = [((saved, names[path]), size) for (_, path), size in layer.part.arriving.held.items()]
    return Bag.of([*pairs, *(((saved, path), -size) for (_, path), size in layer.part.arriving.held.items())])


def _all_kept(step: Step) -> list[tuple[Count, Bag]]:
    walk = step.walk
    moment = _embeddings_kept(step, entered=True)
    for layers in walk.layers:
        moment += [*_kept(step, layers, layers.count), *_held(step, layers, layers.count)]
    return moment


def _held(step: Step, layers: Layers, repetitions: Count) -> list[tuple[Count, Bag]]:
    """What the engine keeps of some repetitions of a run between forward and backward."""
    return [(repetitions, step.around.holds(group)) for group in layers.pattern]


def _segment(step: Step) -> list[tuple[Count, Bag]]:
    """Inside a recomputed segment of several layers: what its other layers keep while the last one's backward runs."""
    _, length = _share(step)
    if length == 1:
        return []
    heaviest = largest([[(1, g.plain.retained)] for layers in step.walk.layers for g in layers.pattern])
    return [(min(length, layer_count(step.walk)) - 1, heaviest)]


def _cached(walk: Walk, run: int, repetition: int, place: int) -> list[tuple[Count, Bag]]:
    """What the model's forward keeps besides: embeddings it still names, weights' casts of layers that save nothing."""
    moment = [(1, walk.embeddings.part.cached)] if walk.embeddings else []
    moment += [(layers.count, group.part.cached) for layers in walk.layers[:run] for group in layers.pattern]
    moment += [(repetition, group.part.cached) for group in walk.layers[run].pattern]
    return moment + [(1, group.part.cached) for group in walk.layers[run].pattern[:place]]


def _embedding_output(step: Step, run: int, repetition: int, place: int) -> list[tuple[Count, Bag]]:
    """The model's forward holds on to the embeddings' output; for the first layer it is that layer's input."""
    walk = step.walk
    if walk.embeddings is None or run + repetition + place == 0 or walk.layers[0].pattern[0].part.keeps_input:
        return []
    return [
        (1, Bag.of([((Component.TEMPORARIES, f"{module_of(walk.embeddings.parameters[0].path)}/output"), walk.embeddings.part.output)]))
    ]


def _left(step: Step, run: int, repetition: int, place: int) -> list[tuple[Count, Bag]]:
    """Gradients that layers behind this one have left. When accumulating they have been added to the resident ones, except a tied
    head's: autograd adds it to the embeddings' own before it reaches the parameter.
    """
    if step.accumulates:
        return _head_left(step) if step.walk.tied else []
    walk, around = step.walk, step.around
    moment = _head_left(step)
    for layers in walk.layers[run + 1 :]:
        moment += [(layers.count, around.leaves(group)) for group in layers.pattern]
    here = walk.layers[run]
    moment += [(here.count - 1 - repetition, around.leaves(group)) for group in here.pattern]
    return moment + [(1, around.leaves(group)) for group in here.pattern[place + 1 :]]


def _head_left(step: Step) -> list[tuple[Count, Bag]]:
    return [(1, step.around.leaves(step.walk.head))] if step.walk.head else []


# ---- the optimizer's step ----------------------------------------------------------------------------------------------------


@formula(
    cites=TORCH_OPTIM,
    at="adam.py:762-799 _foreach_sqrt makes one copy of all second moments; :540-546 two copies of one tensor in the loop",
)
def step_temporaries(parameters: tuple[tuple[Held, Count], ...], plan: Plan) -> Count:
    """Bytes that the optimizer's arithmetic takes, for tensors with the elements a rank keeps of each."""
    assert plan.optimizer is not None
    if plan.optimizer.name is not OptimizerName.ADAMW:
        return 0
    dtype = plan.adapter.dtype if plan.adapter else plan.precision.moments
    match plan.optimizer.implementation:
        case Implementation.FOREACH:
            return sum(h.times * dtype.nbytes(elements) for h, elements in parameters)
        case Implementation.LOOP:
            return 2 * reduce(maximum, (dtype.nbytes(elements) for _, elements in parameters), 0)
        case _:
            return 0


def gradient_bag(parameters: tuple[tuple[Held, Count], ...], plan: Plan) -> Bag:
    """All gradients as they stand before the optimizer's step."""
    return Bag.of(
        ((Component.GRADIENTS, module_of(h.path)), h.times * gradient_dtype(h, plan).nbytes(elements)) for h, elements in parameters
    )
