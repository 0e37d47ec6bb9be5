"""The parts of a model in order of execution, each with its numbers and its parameters: what a step walks
through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any

from memsheet.arith import Count, agreed, is_array, mixed_stratum
from memsheet.formulas.activations import Ends, block_part, end_parts, run_config_of
from memsheet.formulas.alike_rows import by_alike_rows
from memsheet.formulas.layers_of_plan import layers_of_plan
from memsheet.formulas.model_code import model_code
from memsheet.formulas.model_code.shared_tables import LetGo
from memsheet.formulas.states.held import HeldTensor, module_of, tensors_on_rank
from memsheet.formulas.states.params import JOIN, START, fold_path_indices, stack_prefix
from memsheet.formulas.tapes.bytes_by_path import (
    EMPTY,
    BytesByPath,
    bags_laid_together,
    fields_laid_together,
    merge_moment,
)
from memsheet.formulas.tapes.evaluate import Part, Release
from memsheet.frozen import NamedTuple, dataclass, replace
from memsheet.plan.engine import Engine
from memsheet.plan.model import Block, ModelSpec, Moe, Norm, Role, Stack, Weight
from memsheet.plan.plan import Plan, Recompute, RecomputeMode, Spread
from memsheet.sheet import Component


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """One part of the model: embeddings, a layer, or the head. ``plain`` is the part without recompute;
    ``gradients`` those of all its parameters (the head's include what a fused loss makes). ``inside``: the
    parameters of a unit inside the layer, which is gathered and reduced apart from the rest of it.
    """

    name: str
    part: Part
    plain: Part
    parameters: tuple[HeldTensor, ...]
    gradients: BytesByPath
    inside: tuple[HeldTensor, ...] = ()

    @property
    def first_module(self) -> str:
        """The module of its first parameter; its own name where it has none (pictures look nothing up)."""
        return module_of(self.parameters[0].path) if self.parameters else self.name


@dataclass(frozen=True, eq=False)
class Layers:
    """Layers that repeat: ``pattern`` in order, ``count`` times."""

    pattern: tuple[Group, ...]
    count: int

    @cached_property
    def retained(self) -> BytesByPath:
        """What one repetition of the pattern keeps for backward."""
        return BytesByPath.of(pair for group in self.pattern for pair in group.part.retained.held.items())


@dataclass(frozen=True, eq=False)
class StageLayers:
    """A stage in order of execution. ``tied``: the head computes with the embedding table. ``entry``: the
    first run of layers that words pass through; those before it are a tower's. ``end``: masks that are there
    when backward comes to the embeddings. ``rest``: parameters of no group that a step of words uses;
    ``graded``: it is known of each whether a step gives it a gradient. ``idle_ends``: "embeddings" or
    "head", where a module of its group never runs. ``outer_norms``: of the head's group the final norms that
    are no children of the model's own base, by their whole paths.
    """

    embeddings: Group | None
    layers: tuple[Layers, ...]
    head: Group | None
    loss: Part | None
    tied: bool
    entry: int = 0
    end: BytesByPath = EMPTY
    rest: tuple[HeldTensor, ...] = ()
    graded: bool = False
    idle_ends: tuple[str, ...] = ()
    outer_norms: tuple[HeldTensor, ...] = ()

    @cached_property
    def entered_input(self) -> BytesByPath:
        """The input that the first layer keeps, by the name of the embeddings that made it."""
        if self.embeddings is None or not self.layers:
            return EMPTY
        first = self.layers[0].pattern[0].part
        if not first.keeps_input:
            return EMPTY
        saved, output = Component.SAVED_ACTIVATIONS, f"{self.embeddings.first_module}/output"
        kept = [(path, size) for (_, path), size in first.arriving.held.items()]
        return BytesByPath.of(
            [*(((saved, output), size) for _, size in kept), *(((saved, path), -size) for path, size in kept)]
        )

    def hosted(self) -> tuple[Count, ...]:
        """Bytes of every tensor that waits for backward in host memory."""
        ends = [
            part.hosted
            for part in (self.embeddings and self.embeddings.part, self.head and self.head.part, self.loss)
            if part
        ]
        layers = [
            group.part.hosted * run.count for run in self.layers for group in run.pattern if group.part.hosted
        ]
        return tuple(size for sizes in (*ends, *layers) for size in sizes)

    def visits(
        self, stops: frozenset[tuple[int, int]] = frozenset()
    ) -> Iterator[tuple[Group, int, int, int]]:
        """The layers worth looking at as (group, run, repetition, place in the pattern): first and last
        repetition of each run, and ``stops``, the (run, repetition) where something else happens.
        """
        for run, layers in enumerate(self.layers):
            for repetition in _worth_it(layers.count, {r for n, r in stops if n == run}):
                for place, group in enumerate(layers.pattern):
                    yield group, run, repetition, place

    def around(self, run: int, repetition: int, place: int) -> tuple[Group | None, Group | None]:
        """The groups before and after a layer."""
        layers = self.layers[run]
        if place > 0:
            before: Group | None = layers.pattern[place - 1]
        elif agreed(repetition > 0):
            before = layers.pattern[-1]
        else:
            before = self.layers[run - 1].pattern[-1] if run else self.embeddings
        if place + 1 < len(layers.pattern):
            after: Group | None = layers.pattern[place + 1]
        elif agreed(repetition + 1 < layers.count):
            after = layers.pattern[0]
        else:
            after = self.layers[run + 1].pattern[0] if run + 1 < len(self.layers) else self.head
        return before, after


def _worth_it(count: Count, stops: set[int]) -> list[Count]:
    """First and last repetitions, and ``stops``. In a stratum whose plans have other counts of layers they
    have four or more.
    """
    if is_array(count):
        return [0, 1, count - 2, count - 1] if agreed(count >= FEW) and not stops else mixed_stratum()
    return sorted(r for r in {0, 1, count - 2, count - 1, *stops} if 0 <= r < count)


FEW = 4
"""Repetitions of which first, second, last but one and last are different ones."""


def walk_stage_layers(spec: ModelSpec, plan: Plan, engine: Engine, *, release: Release) -> StageLayers:
    """A stage's groups with their numbers. ``release``: gradients are added to existing ones as soon as they
    are made.
    """
    known, routing = layers_of_plan(plan, engine), plan.routing
    spread = routing.spread if routing and isinstance(routing.spread, Spread) else None
    of_spec = [(way, walk) for of, gone, way, walk in known.walks if of is spec and gone == release]
    walk: StageLayers | None = next((walk for way, walk in of_spec if way is spread), None)
    if walk is None:
        own = replace(known.plan, routing=routing) if spread else known.plan
        if of_spec:
            walk = _walk_routed_otherwise(spec, of_spec[0][1], own, known.groups, engine, release=release)
        walk = walk or _make_walk(spec, own, known.groups, engine, release=release)
        known.walks.append((spec, release, spread, walk))
    return walk


def _walk_routed_otherwise(
    spec: ModelSpec,
    walk: StageLayers,
    plan: Plan,
    made: dict[Any, Group],
    engine: Engine,
    *,
    release: Release,
) -> StageLayers | None:
    """A walk of the same plan under another routing: with other experts, which alone know of it. None where
    layers are not those that were made of their blocks alone.
    """
    whose: dict[int, MadeOf] = {id(group): known for known, group in made.items() if known.release == release}
    layers = [group for run in walk.layers for group in run.pattern]
    if plan.adapter is not None or any(id(group) not in whose for group in layers):
        return None
    prefixes, again = {each.path: stack_prefix(each) for each in spec.stacks}, dict[int, Group]()
    for group in layers:
        known = whose[id(group)]
        if id(group) in again or not isinstance(known.block.feed_forward, Moe):
            continue
        how = _as_run(plan, recomputed=known.recomputed)
        part, plain = block_part(known.block, prefixes[known.path], how, engine, release=release)
        routed = made[known.of(plan)] = replace(group, part=part, plain=plain, gradients=part.gradients)
        again[id(group)] = routed
    runs = (
        Layers(tuple([again.get(id(group), group) for group in run.pattern]), run.count)
        for run in walk.layers
    )
    return replace(walk, layers=tuple(runs))


class MadeOf(NamedTuple):
    """What decides a layer's group: the path of its stack, its block, whether it is recomputed, what becomes
    of its gradients, and the routing of its tokens to experts, where it has some.
    """

    path: str
    block: Block
    recomputed: bool
    release: Release
    spread: object = None

    def of(self, plan: Plan) -> MadeOf:
        """The same under a plan's routing."""
        routing = plan.routing if isinstance(self.block.feed_forward, Moe) else None
        spread = routing.spread if routing and isinstance(routing.spread, Spread) else None
        return MadeOf(self.path, self.block, self.recomputed, self.release, spread)


def _make_walk(
    spec: ModelSpec, plan: Plan, made: dict[Any, Group], engine: Engine, *, release: Release
) -> StageLayers:
    ends = end_parts(spec, plan, engine, release=release)
    layers, entry = list[Layers](), 0
    by_module = plan.recompute.mode is RecomputeMode.SELECTIVE and not plan.recompute.by_layers
    whole = plan.recompute.mode is RecomputeMode.NONE or by_module  # layers, none of them under a checkpoint
    frozen = ends.embeddings is not None and enters_frozen(spec, plan) and whole
    code = model_code(engine.layers)
    let_go = by_alike_rows(
        plan, lambda own: code.let_go(spec, own, run_config_of(own, engine)), fields_laid_together
    )
    for each in spec.stacks:
        own, seen = list[Layers](), entry == 0 and any(stack.role == JOIN for stack in spec.stacks)
        for pattern, count in _cut_at_recompute(each, plan):
            groups = list[Group]()
            for block, recomputed in pattern:
                key = MadeOf(each.path, block, recomputed, release).of(plan)
                if key not in made:
                    how = _as_run(plan, recomputed=recomputed)
                    made[key] = _layer_group(
                        block, each, how, engine, release=release, input_grad=not (seen and frozen)
                    )
                groups.append(made[key])
            own.append(Layers(tuple(groups), count))
        if each.role == BRIDGE:
            own[-1] = _bridge_between_stacks(own[-1], let_go, counted=not release)
        elif (
            own
            and (
                gone := by_alike_rows(
                    plan,
                    lambda own: code.made_again(spec, own, run_config_of(own, engine)),
                    bags_laid_together,
                )
            )
            is not EMPTY
        ):
            own[0] = _layers_run_again(own[0], gone)
        elif own and frozen and not seen:
            own = _frozen_entry_layers(
                each,
                own,
                partial(
                    _layer_group, stack=each, plan=plan, engine=engine, release=release, input_grad=False
                ),
            )
        layers += own
        entry = len(layers) if each.role == JOIN else entry
    tied = spec.head.tied and ends.embeddings is not None and ends.head is not None
    start = _edge_group(
        "embeddings", (ends.embeddings,), spec.embeddings.weights, spec.embeddings.norms, plan
    )
    last = head_group(spec, plan, ends)
    return StageLayers(
        embeddings=start,
        layers=tuple(layers),
        head=last,
        loss=ends.loss,
        tied=tied,
        entry=entry,
        end=let_go.end,
        rest=tuple(_parameters_around(spec, plan)),
        graded=spec.recording is not None,
        idle_ends=spec.recording.idle_ends if spec.recording else (),
        outer_norms=_outer_norms(spec.stacks[-1], plan) if last else (),
    )


def _outer_norms(stack: Stack, plan: Plan) -> tuple[HeldTensor, ...]:
    """Final norms of a stack that lies inside another module than the model's base, as words' do beside a
    tower or an encoder.
    """
    prefix = f"{stack.final_path}." if stack.final_path else ""
    weights = (weight for norm in stack.final_norms for weight in norm.weights)
    found = _parameters_among(weights, prefix, plan)
    return tuple(held for held in found if "." in module_of(held.path).rpartition(".")[0])


def _parameters_around(spec: ModelSpec, plan: Plan) -> Iterator[HeldTensor]:
    """What neither layers nor ends have, beside what only pictures reach. Of another stack's layers it is
    what lies around them: those are groups of their own, as a record says.
    """
    towers = tuple(f"{tower.path}." for tower in spec.towers)
    units = None if spec.recording is None else tuple(f"{unit}." for unit in spec.recording.units)
    for weight in spec.extras:
        path = fold_path_indices(weight.path)
        of_layer = path.partition(".*.")[2].count(".") > 0 if units is None else path.startswith(units)
        if weight.role is not Role.BUFFER and not of_layer and not path.startswith(towers):
            yield from tensors_on_rank(path, weight, 1, plan)


def _bridge_between_stacks(bridge: Layers, gone: LetGo, *, counted: bool) -> Layers:
    """What lies between two stacks, with what is gone when backward comes to it and when its backward is
    over. ``counted``: gradients are.
    """
    (group,) = bridge.pattern
    before = merge_moment([(1, gone.masks), (1, gone.gradients)]) if counted else gone.masks
    gradients = merge_moment([(1, group.gradients), (-1, gone.masks), (-1, gone.gradients), (-1, gone.after)])
    return Layers((replace(group, gradients=gradients, part=_backward_without(group.part, before)),), 1)


def _layers_run_again(first: Layers, gone: BytesByPath) -> Layers:
    """A stack's first layers, which are run again without what is ``gone`` when backward has come to them."""
    group, *others = first.pattern
    return Layers((replace(group, part=_backward_without(group.part, gone)), *others), first.count)


def _backward_without(part: Part, gone: BytesByPath) -> Part:
    """A part whose backward begins when what is ``gone`` is no longer there."""
    backward, again, behind = (
        merge_moment([(1, bag), (-1, gone)]) for bag in (part.backward, part.again, part.behind)
    )
    return replace(part, backward=backward, again=again, behind=behind)


BRIDGE = "bridge"
"""The role of what lies between two stacks, which no checkpoint runs again."""


def enters_frozen(spec: ModelSpec, plan: Plan) -> bool:
    """Whether nothing before the first layer trains."""
    if plan.virtual_tokens:
        return False
    tables = {weight.path.split(".")[-2] for weight in spec.embeddings.weights}
    return plan.adapter is not None and not tables & {*plan.adapter.full_modules, *plan.adapter.targets}


def _as_run(plan: Plan, *, recomputed: bool) -> Plan:
    if plan.recompute.by_layers:
        return replace(
            plan, recompute=Recompute(mode=RecomputeMode.FULL if recomputed else RecomputeMode.NONE)
        )
    return plan if recomputed else replace(plan, recompute=replace(plan.recompute, mode=RecomputeMode.NONE))


Flagged = tuple[tuple[Block, bool], ...]
"""Blocks in order, and whether each is recomputed."""


def _cut_at_recompute(stack: Stack, plan: Plan) -> Iterator[tuple[Flagged, int]]:
    """Runs of a stack as (pattern, count)."""
    if plan.recompute.by_layers:
        yield from _every_so_many(stack, plan.recompute.every)
        return
    for pattern, count, recomputed in (
        _first_so_many(stack, plan)
        if stack.role not in (BRIDGE, START, JOIN)
        else [(stack.runs[0].pattern, 1, False)]
    ):
        yield tuple((block, recomputed) for block in pattern), count


def _every_so_many(stack: Stack, every: int) -> Iterator[tuple[Flagged, int]]:
    """Each ``every``-th layer is recomputed, counted from 1."""
    blocks = [block for run in stack.runs for _ in range(run.count) for block in run.pattern]
    flagged = tuple((block, (number + 1) % every == 0) for number, block in enumerate(blocks))
    whole, rest = divmod(len(flagged), every)
    if whole and flagged[: every * whole] == flagged[:every] * whole:
        yield flagged[:every], whole
        flagged = flagged[every * whole :] if rest else ()
    if flagged:
        yield flagged, 1


def _first_so_many(stack: Stack, plan: Plan) -> Iterator[tuple[tuple[Block, ...], int, bool]]:
    """``recompute.layers`` recomputes only the first so many."""
    if plan.recompute.layers is None:
        yield from ((run.pattern, run.count, True) for run in stack.runs)
        return
    first = plan.recompute.layers
    for run in stack.runs:
        width = len(run.pattern)
        whole, part = divmod(min(max(first, 0), width * run.count), width)
        first -= width * run.count
        if whole:
            yield run.pattern, whole, True
        if part:
            yield run.pattern[:part], 1, True
            yield run.pattern[part:], 1, False
        if run.count - whole - bool(part):
            yield run.pattern, run.count - whole - bool(part), False


def _frozen_entry_layers(stack: Stack, layers: list[Layers], make: Callable[[Block], Group]) -> list[Layers]:
    """Other groups for the first layers, up to the one that trains something: nothing before it does (where
    whole layers are recomputed peft asks for its input's gradient all the same).
    """
    if any(is_array(run.count) for run in stack.runs):
        mixed_stratum()
    blocks = [block for run in stack.runs for _ in range(run.count) for block in run.pattern]
    made = {block: make(block) for block in dict.fromkeys(blocks)}
    training = (n for n, block in enumerate(blocks) if any(h.trains for h in made[block].parameters))
    groups, entered = [made[block] for block in blocks[: next(training, 0) + 1]], list[Layers]()
    for run in layers:
        count, width = run.count, len(run.pattern)
        while groups and count:
            entered.append(Layers((*groups[:width], *run.pattern[len(groups) :]), 1))
            groups, count = groups[width:], count - 1
        if count:
            entered.append(Layers(run.pattern, count))
    return entered


def _layer_group(
    block: Block, stack: Stack, plan: Plan, engine: Engine, *, release: Release, input_grad: bool = True
) -> Group:
    prefix = stack_prefix(stack)
    part, plain = block_part(block, prefix, plan, engine, release=release, input_grad=input_grad)
    return Group(
        f"{stack.path}.*",
        part,
        plain,
        _parameters_among(block.weights, f"{prefix}.", plan),
        part.gradients,
        _parameters_among(model_code(engine.layers).inside(block), f"{prefix}.", plan),
    )


def _parameters_among(weights: Iterable[Weight], prefix: str, plan: Plan) -> tuple[HeldTensor, ...]:
    """Of a block's tensors those that are parameters: buffers stay whole on every rank."""
    own = (weight for weight in weights if weight.role is not Role.BUFFER)
    return tuple(held for weight in own for held in tensors_on_rank(prefix + weight.path, weight, 1, plan))


def head_group(spec: ModelSpec, plan: Plan, ends: Ends) -> Group | None:
    """Head and loss of a stage that has them."""
    norms = spec.stacks[-1].final_norms
    return _edge_group("head", (ends.head, ends.loss), spec.head.weights, norms, plan)


def _edge_group(
    name: str,
    parts: tuple[Part | None, ...],
    weights: tuple[Weight, ...],
    norms: tuple[Norm, ...],
    plan: Plan,
) -> Group | None:
    if parts[0] is None:
        return None
    around = tuple(w for norm in norms for w in norm.weights)
    own = (*around, *weights) if name == "head" else (*weights, *around)  # in the order in which they run
    gradients = BytesByPath.of(pair for part in parts if part for pair in part.gradients.held.items())
    return Group(
        name,
        parts[0],
        parts[0],
        _parameters_among(own, "", plan),
        gradients,
    )
