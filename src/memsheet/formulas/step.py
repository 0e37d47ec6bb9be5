"""A training step on one rank: its chunks of the model, what the engine keeps around them, and the most that
each instant holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import compress, islice
from typing import TYPE_CHECKING

from memsheet.arith import Count, agreed, distinct, looked_up, minimum
from memsheet.formulas.activations import check_modelled, run_config_of
from memsheet.formulas.alike_rows import by_alike_rows, hash_of_single
from memsheet.formulas.captured_graphs import pooled_at_step, with_graphs
from memsheet.formulas.device_map import copied_tables, returned_logits, with_raised_logits
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.int8_outliers import with_outliers
from memsheet.formulas.model_code import model_code
from memsheet.formulas.pipeline import (
    STEADY,
    chunk_models,
    interleaved_flights,
    peak_flights,
    stage_model,
    undominated_flights,
)
from memsheet.formulas.recompute_segments import recompute_segments
from memsheet.formulas.resident_layers import everything_kept
from memsheet.formulas.sharding.algorithm import algorithm_of
from memsheet.formulas.sharding.resident_state import ResidentState
from memsheet.formulas.sharding.states_of_plan import RecentStates, plan_of_any_length
from memsheet.formulas.stage_buffers import warm_and_steady, with_stage_buffers
from memsheet.formulas.tapes.bytes_by_path import (
    BytesByPath,
    Moment,
    bundle_moment,
    fields_laid_together,
    largest_moment_rows,
    merge_moment,
)
from memsheet.formulas.training import peak_candidates
from memsheet.formulas.training_step import Step
from memsheet.frozen import dataclass, replace
from memsheet.plan.engine import Engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import ENDS_OF_ROUTING, Plan, Schedule, depends_on_routing
from memsheet.sheet import Component, Instant

if TYPE_CHECKING:
    from memsheet.formulas.graph_captures import Captured

Instants = dict[Instant, BytesByPath]
Order = tuple[int, int, int, tuple[int, ...]]
"""Stages, chunks of each, a stage, and of which kind each of its chunks is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What a rank of a pipeline ``stage`` has of a model: all of it, and the ``chunks`` that run one at a
    time.

    A search asks about ranks of several pipelines at once, whose layers are alike and only their numbers
    differ: then ``chunks`` are those that are not alike, ``orders`` say what each pipeline makes of them, and
    ``which`` of these pipelines each plan has.
    """

    model: ModelSpec
    chunks: tuple[ModelSpec, ...]
    whole: ModelSpec  # that it has a part of, and that a plan is of
    stage: Count = 0
    orders: tuple[Order, ...] = ()
    which: Count = 0

    @classmethod
    def of(cls, spec: ModelSpec, plan: Plan, stage: int) -> Rank:
        part, chunks = stage_model(spec, plan, stage), chunk_models(spec, plan, stage)
        return cls(model=part, chunks=chunks, whole=spec, stage=stage)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """A step's instants, with their low and high ends where routing leaves them open, and what the engine
    keeps.
    """

    bags: Instants
    low: Instants | None
    high: Instants | None
    kept: ResidentState


def account_training_step(rank: Rank, plan: Plan, engine: Engine) -> Trained:
    """A training step. Raises InputError naming what is not modelled.

    Where tokens choose their experts freely, three routings are accounted: balanced, as expected of even
    choices, and all on this rank.
    """
    by_alike_rows(plan, lambda own: check_modelled(rank.whole, own, engine), lambda *_: None)
    plan = model_code(engine.layers).of_rank(plan)
    # the allocator's own settings, of which tensors know nothing
    plan = replace(plan, expandable_segments=False) if plan.expandable_segments else plan
    bags, kept = _peaks_of_step(rank, plan, engine)
    if plan.routing is None or not depends_on_routing(plan):
        return Trained(bags=bags, low=None, high=None, kept=kept)
    alone = algorithm_of(engine.sharding).state_alone is not None
    states = kept if alone else None  # which holds what it holds however tokens are routed
    low, high = (
        _peaks_of_step(rank, replace(plan, routing=replace(plan.routing, spread=spread)), engine, states)[0]
        for spread in ENDS_OF_ROUTING[1:]
    )
    return Trained(bags=bags, low=low, high=high, kept=kept)


Peaks = tuple[Instants, ResidentState]
"""The most that each instant holds, and what the engine keeps."""
_recent_peaks: tuple[tuple[int, Rank, Plan, Engine, Peaks], ...] = ()
MOST_PEAKS = 12


def _peaks_of_step(rank: Rank, plan: Plan, engine: Engine, states: ResidentState | None = None) -> Peaks:
    """The peaks of a step. Those of the last plans are kept: one question asks of a plan whether its tensors
    are too many, for its sheet, and as one end of a routing. ``states``: what the engine keeps, where that is
    known.
    """
    global _recent_peaks  # noqa: PLW0603 - one value, replaced as a whole
    number = _number_of_single(rank, plan)
    beside = plan.cuda_graphs or plan.quantization is not None or engine.torch_pipelining
    if number is None or (states is not None and beside):  # which is in what is known, too
        return _last_smaller(rank, plan, engine, states)
    for told, known, of, by, found in _recent_peaks:
        if told == number and of == plan and by is engine and (known is rank or known == rank):
            return found
    made = _last_smaller(rank, plan, engine, states)
    _recent_peaks = ((number, rank, plan, engine, made), *_recent_peaks[: MOST_PEAKS - 1])
    return made


def _number_of_single(rank: Rank, plan: Plan) -> int | None:
    """What tells a plan from most others; None of the plans of a stratum, which are asked about once."""
    runs = (run for part in (rank.model, *rank.chunks) for stack in part.stacks for run in stack.runs)
    return hash_of_single(plan) if all(type(run.count) is int for run in runs) else None


def _last_smaller(rank: Rank, plan: Plan, engine: Engine, states: ResidentState | None) -> Peaks:
    """Of two micro-batches the smaller comes last and is the only one that finds gradients there, so either
    may hold most; with more of them a whole one does.
    """
    if (
        not isinstance(plan.accumulation, int)
        or plan.accumulation != 2
        or plan.last_microbatch == plan.training.microbatch
    ):  # strata have no rests
        return _equal_microbatch_peaks(rank, plan, engine, states)
    last = plan.last_microbatch
    first, _ = _equal_microbatch_peaks(
        rank, replace(plan, workload=replace(plan.training, global_batch=None)), engine, None
    )
    second, kept = _equal_microbatch_peaks(
        rank,
        replace(
            plan,
            workload=replace(plan.training, microbatch=last, global_batch=2 * last * plan.mesh.data_parallel),
        ),
        engine,
        None,
    )
    return {
        instant: largest_moment_rows([[(1, first[instant])], [(1, second[instant])]]) for instant in first
    }, kept


def _equal_microbatch_peaks(rank: Rank, plan: Plan, engine: Engine, states: ResidentState | None) -> Peaks:
    """A step whose micro-batches are all alike: of the moments of a pipeline, the one that holds most."""
    steps, kept, graphs = _steps_of_rank(rank, plan, engine, states)
    candidates: dict[Instant, list[Moment]] = {}
    for step, passes in _in_flight(steps, plan, rank):
        for instant, found in peak_candidates(step).items():
            if instant is Instant.LOAD or (instant is Instant.BACKWARD) in passes:
                candidates.setdefault(instant, []).extend(found)
    peaks = {
        instant: largest_moment_rows(candidates[instant]) for instant in Instant if candidates.get(instant)
    }
    pooled, kept = pooled_at_step(peaks, kept, graphs)
    peaks[Instant.OPTIMIZER_STEP] = merge_moment(
        [(1, steps[0].states), (1, kept.around.always), (1, kept.at_step), (1, steps[0].named), (1, pooled)]
    )
    return peaks, kept


StepsOfRank = tuple[list[Step], ResidentState, "Captured | None"]
"""A step of each chunk of a rank, what the engine keeps around them, and what its CUDA graphs hold."""
_recent_steps: tuple[tuple[int, Rank, Plan, Engine, StepsOfRank], ...] = ()
MOST_STEPS = 4


def _steps_of_rank(rank: Rank, plan: Plan, engine: Engine, states: ResidentState | None) -> StepsOfRank:
    """What a rank's chunks are without other micro-batches beside them, in which alone stages of a pipeline
    that have the same layers differ: those of the last ranks are kept.
    """
    global _recent_steps  # noqa: PLW0603 - one value, replaced as a whole
    number, anywhere = _number_of_single(rank, plan), not (engine.torch_pipelining or plan.cuda_graphs)
    for told, known, of, by, found in _recent_steps if number is not None else ():
        alike = known.model is rank.model and (anywhere or known.stage == rank.stage)
        if alike and told == number and of == plan and by is engine and known.chunks == rank.chunks:
            return found
    walks, kept = _chunk_walks_and_states(rank, plan, engine, states)
    kept = with_outliers(kept, walks, rank.model, plan)
    kept = with_raised_logits(kept, rank.whole, plan, rank.stage, engine)
    kept = with_stage_buffers(kept, walks[0], plan, rank.stage) if engine.torch_pipelining else kept
    code = model_code(engine.layers)
    graphs = code.captured(code, rank.model, plan, rank.stage)
    kept = with_graphs(kept, walks, rank.model, graphs)
    steps = [_chunk_step(rank, number, chunk, kept, plan, engine) for number, chunk in enumerate(walks)]
    if number is not None:
        made = (number, rank, plan, engine, (steps, kept, graphs))
        _recent_steps = (made, *_recent_steps[: MOST_STEPS - 1])
    return steps, kept, graphs


def _in_flight(steps: list[Step], plan: Plan, rank: Rank) -> Iterator[tuple[Step, frozenset[bool]]]:
    """Steps of a rank's chunks with what other micro-batches keep meanwhile, and the passes (backward or not)
    during which they do.
    """
    if agreed(plan.mesh.pp == 1) or plan.schedule is Schedule.NAIVE:
        yield steps[0], frozenset((False, True))
        return
    kinds = [
        next(n for n, other in enumerate(steps) if other.walk is step.walk) for step in steps
    ]  # chunks of like layers
    whole = {kind: bundle_moment(everything_kept(steps[kind])) for kind in dict.fromkeys(kinds)}
    if agreed(plan.mesh.vpp == 1):
        (others,) = peak_flights(plan, rank.stage)[0].others
        for step, count, passes in warm_and_steady(steps[0], others):
            beside = merge_moment([(times * count, bag) for times, bag in whole[0]])
            yield replace(step, others=beside), passes
        return
    orders = rank.orders or ((plan.mesh.pp, plan.mesh.vpp, rank.stage, tuple(kinds)),)
    for (kind, backward), counts in _kept_beside(plan.accumulation, orders, rank.which).items():
        candidates = [
            [(times * n, bag) for n, moment in zip(one, whole.values(), strict=True) for times, bag in moment]
            for one in counts
        ]
        yield replace(steps[kind], others=largest_moment_rows(candidates)), frozenset((backward,))


Beside = dict[tuple[int, bool], list[tuple[Count, ...]]]
"""For a kind of chunk that runs forward or backward: how many micro-batches each kind keeps besides, at the
moments that may be the worst.
"""


def _kept_beside(accumulation: Count, of: tuple[Order, ...], which: Count) -> Beside:
    """In a stratum, moment by moment: plans that have fewer of them have their last one again."""
    asked = minimum(accumulation, STEADY * max(stages for stages, *_ in of)) * len(of) + which
    orders = {one: _other_chunks_in_flight(*of[one % len(of)], one // len(of)) for one in distinct(asked)}
    first = next(iter(orders.values()))
    if all(order == first for order in orders.values()):
        return first

    moments = {place: max(len(order[place]) for order in orders.values()) for place in first}
    flat = {
        number: [n for place in first for one in _pad_with_last(order[place], moments[place]) for n in one]
        for number, order in orders.items()
    }
    numbers = iter(looked_up(flat, asked))
    kept = len(dict.fromkeys(of[0][3]))
    return {place: [tuple(islice(numbers, kept)) for _ in range(moments[place])] for place in first}


def _pad_with_last(counts: list[tuple[Count, ...]], length: int) -> list[tuple[Count, ...]]:
    return [*counts, *([counts[-1]] * (length - len(counts)))]


@lru_cache(maxsize=4096)
def _other_chunks_in_flight(
    stages: int, chunks: int, stage: int, kinds: tuple[int, ...], microbatches: int
) -> Beside:
    found: dict[tuple[int, bool], set[tuple[int, ...]]] = {}
    of_kinds = [[k == kind for k in kinds] for kind in dict.fromkeys(kinds)]
    for flight in interleaved_flights(stages, chunks, stage, microbatches):
        numbers = tuple([sum(compress(flight.others, of_kind)) for of_kind in of_kinds])
        found.setdefault((kinds[flight.chunk], flight.backward), set()).add(numbers)
    return {place: undominated_flights(sorted(counts)) for place, counts in found.items()}


def _chunk_step(
    rank: Rank, number: int, chunk: StageLayers, kept: ResidentState, plan: Plan, engine: Engine
) -> Step:
    code, model = model_code(engine.layers), rank.chunks[number]
    found = by_alike_rows(plan, lambda own: _besides_layers(model, own, engine), fields_laid_together)
    buffers, tables = (
        BytesByPath.of(
            pair for pair in found.shared.held.items() if (pair[0][0] is Component.BUFFERS) is stays
        )
        for stays in (True, False)
    )
    return Step(
        walk=chunk,
        around=kept.around,
        states=merge_moment([(1, kept.states), (1, buffers)]) if buffers.held else kept.states,
        resident_gradients=kept.resident,
        shared=copied_tables(tables, plan, rank.stage, model.layers),
        returned=returned_logits(rank.whole, plan, rank.stage),
        masks=found.masks,
        until_loss=found.until_loss,
        named=found.named,
        beside=by_alike_rows(
            plan, lambda own: code.beside(model, own, run_config_of(own, engine)), fields_laid_together
        ),
        plan=plan,
        stretches=recompute_segments(chunk, plan),
        keeps_masks=code.keeps_masks(model, plan),
        masks_inside=code.masks_inside,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Besides:
    """What a chunk's model code has besides its layers: tables that these share, masks, what is there until
    the loss, and what the loop names from there on.
    """

    shared: BytesByPath
    masks: BytesByPath
    until_loss: BytesByPath
    named: BytesByPath


def _besides_layers(model: ModelSpec, plan: Plan, engine: Engine) -> _Besides:
    code, asked = model_code(engine.layers), (model, plan, plan.training.shape, run_config_of(plan, engine))
    return _Besides(code.shared(*asked), code.masks(*asked), code.until_loss(*asked), code.named(*asked))


def _chunk_walks_and_states(
    rank: Rank, plan: Plan, engine: Engine, known: ResidentState | None
) -> tuple[tuple[StageLayers, ...], ResidentState]:
    """The chunks of a rank in order of execution, and what the engine keeps around them, unless that is
    ``known``.
    """
    algorithm = algorithm_of(engine.sharding)
    algorithm.check(plan)
    walks = _walk_chunks(
        rank.chunks, lambda chunk: algorithm.walk(chunk, plan, engine), known=bool(rank.orders)
    )
    if known is None and algorithm.state_alone is not None:
        of_any = plan_of_any_length(plan)
        known = _recent_states.made_of(rank.model, of_any, partial(algorithm.state_alone, rank.model))
        known = known if of_any is plan else algorithm.with_lengths(known, rank.model, plan)
    return walks, known or algorithm.resident_state(rank.model, plan, engine, walks[0])


_recent_states: RecentStates[ResidentState] = RecentStates(16, 1 << 15)


def _walk_chunks(
    chunks: tuple[ModelSpec, ...], make: Callable[[ModelSpec], StageLayers], *, known: bool
) -> tuple[StageLayers, ...]:
    """A walk of each chunk; those of like layers share one. ``known``: there are none."""
    if known:
        return tuple(map(make, chunks))
    made: list[tuple[ModelSpec, StageLayers]] = []
    for chunk in chunks:
        made.append((chunk, next((walk for other, walk in made if other == chunk), None) or make(chunk)))
    return tuple(walk for _, walk in made)
