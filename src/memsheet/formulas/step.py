"""A training step on one rank: its chunks of the model, what the engine keeps around them, and the most that
each instant holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from memsheet.arith import Count, agreed, distinct, looked_up, minimum
from memsheet.errors import raise_if_problems
from memsheet.formulas.activations import check_modelled, run_config_of
from memsheet.formulas.grad_scaler import grad_unscale_rows, scaler_states
from memsheet.formulas.groups import StageLayers, walk_stage_layers
from memsheet.formulas.inputs import microbatch_inputs
from memsheet.formulas.int8_outliers import with_outliers
from memsheet.formulas.model_code import model_code
from memsheet.formulas.pipeline import (
    STEADY,
    chunk_models,
    dominates_flight,
    interleaved_flights,
    peak_flights,
    stage_model,
)
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.sharding.per_parameter_sizes import fsdp2_gradients, unsynced_gradient_bytes
from memsheet.formulas.sharding.replicated import ddp_overhead
from memsheet.formulas.sharding.resident_state import Host, ResidentState
from memsheet.formulas.states.held import Held, held_tensors, parameter_bytes, parameter_shard
from memsheet.formulas.states.optimizers import (
    adam_mini_problems,
    fused_backward_step,
    head_elements,
    optimizer_bytes,
    paged_states,
    step_temporaries,
)
from memsheet.formulas.stretches import recompute_segments
from memsheet.formulas.tapes.bytes_by_path import (
    EMPTY,
    BytesByPath,
    Key,
    Moment,
    bundle_moment,
    largest_moment_rows,
    merge_moment,
)
from memsheet.formulas.training import (
    Step,
    everything_kept,
    gradient_bag,
    master_copy_step_moments,
    peak_candidates,
)
from memsheet.frozen import dataclass
from memsheet.plan.engine import Engine, Sharding
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Implementation, OptimizerName, Plan, Spread
from memsheet.plan.torch_versions import gradients_stay, old_torch_note
from memsheet.sheet import Component, Instant

UNSYNCED: Key = (Component.GRADIENTS, "no_sync")
UNSYNCED_NOTE = (
    "gradients are reduced after every micro-batch; accelerate and the Trainer keep them "
    "whole until the last one (no_sync): the high end"
)

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
    stage: Count = 0
    orders: tuple[Order, ...] = ()
    which: Count = 0

    @classmethod
    def of(cls, spec: ModelSpec, plan: Plan, stage: int) -> Rank:
        return cls(model=stage_model(spec, plan, stage), chunks=chunk_models(spec, plan, stage), stage=stage)


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
    check_modelled(rank.model, plan, engine)
    bags, kept = _last_smaller(rank, plan, engine)
    if plan.routing is None or not _depends_on_routing(plan):
        return Trained(bags=bags, low=None, high=None, kept=kept)
    states = (
        kept if engine.sharding is Sharding.MEGATRON else None
    )  # which hold what they hold however tokens are routed
    low, high = (
        _last_smaller(rank, replace(plan, routing=replace(plan.routing, spread=spread)), engine, states)[0]
        for spread in (Spread.BALANCED, Spread.WORST)
    )
    return Trained(bags=bags, low=low, high=high, kept=kept)


def _depends_on_routing(plan: Plan) -> bool:
    """Whether the number of copies that a rank's experts are given depends on the routing."""
    routing = plan.routing
    stated = routing is not None and routing.spread is not Spread.EXPECTED
    return (
        routing is not None
        and not stated
        and not routing.balanced
        and not routing.padded
        and not agreed(plan.mesh.ep == 1)
    )


def _last_smaller(
    rank: Rank, plan: Plan, engine: Engine, states: ResidentState | None = None
) -> tuple[Instants, ResidentState]:
    """Of two micro-batches the smaller comes last and is the only one that finds gradients there, so either
    may hold most; with more of them a whole one does.
    """
    if (
        not isinstance(plan.accumulation, int)
        or plan.accumulation != 2
        or plan.last_microbatch == plan.microbatch
    ):  # strata have no rests
        return _equal_microbatch_peaks(rank, plan, engine, states)
    last = plan.last_microbatch
    first, _ = _equal_microbatch_peaks(rank, replace(plan, global_batch=None), engine)
    second, kept = _equal_microbatch_peaks(
        rank, replace(plan, microbatch=last, global_batch=2 * last * plan.mesh.data_parallel), engine
    )
    return {
        instant: largest_moment_rows([[(1, first[instant])], [(1, second[instant])]]) for instant in first
    }, kept


def _equal_microbatch_peaks(
    rank: Rank, plan: Plan, engine: Engine, states: ResidentState | None = None
) -> tuple[Instants, ResidentState]:
    """A step whose micro-batches are all alike: of the moments of a pipeline, the one that holds most."""
    walks, kept = _chunk_walks_and_states(rank, plan, engine, states)
    kept = with_outliers(kept, walks, rank.model, plan)
    steps = [_chunk_step(rank, number, chunk, kept, plan, engine) for number, chunk in enumerate(walks)]
    candidates: dict[Instant, list[Moment]] = {}
    for step, passes in _in_flight(steps, plan, rank):
        for instant, found in peak_candidates(step).items():
            if instant is Instant.LOAD or (instant is Instant.BACKWARD) in passes:
                candidates.setdefault(instant, []).extend(found)
    peaks = {
        instant: largest_moment_rows(candidates[instant]) for instant in Instant if candidates.get(instant)
    }
    peaks[Instant.OPTIMIZER_STEP] = merge_moment(
        [(1, steps[0].states), (1, kept.around.always), (1, kept.at_step), (1, steps[0].named)]
    )
    return peaks, kept


def _in_flight(steps: list[Step], plan: Plan, rank: Rank) -> Iterator[tuple[Step, frozenset[bool]]]:
    """Steps of a rank's chunks with what other micro-batches keep meanwhile, and the passes (backward or not)
    during which they do.
    """
    if agreed(plan.mesh.pp == 1):
        yield steps[0], frozenset((False, True))
        return
    kinds = [
        next(n for n, other in enumerate(steps) if other.walk is step.walk) for step in steps
    ]  # chunks of like layers
    whole = {kind: bundle_moment(everything_kept(steps[kind])) for kind in dict.fromkeys(kinds)}
    if agreed(plan.mesh.vpp == 1):
        (others,) = peak_flights(plan, rank.stage)[0].others
        yield (
            replace(steps[0], others=merge_moment([(times * others, bag) for times, bag in whole[0]])),
            frozenset((False, True)),
        )
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
    for flight in interleaved_flights(stages, chunks, stage, microbatches):
        numbers = tuple(
            sum(n for n, k in zip(flight.others, kinds, strict=True) if k == kind)
            for kind in dict.fromkeys(kinds)
        )
        found.setdefault((kinds[flight.chunk], flight.backward), set()).add(numbers)
    return {
        place: [one for one in sorted(counts) if not any(dominates_flight(other, one) for other in counts)]
        for place, counts in found.items()
    }


def _chunk_step(
    rank: Rank, number: int, chunk: StageLayers, kept: ResidentState, plan: Plan, engine: Engine
) -> Step:
    how, code, model = run_config_of(plan, engine), model_code(engine.code), rank.chunks[number]
    return Step(
        walk=chunk,
        around=kept.around,
        states=kept.states,
        resident_gradients=kept.resident,
        shared=code.shared(model, plan, how),
        masks=code.masks(model, plan, how),
        named=code.named(model, plan, how),
        beside=code.beside(model, plan, how),
        plan=plan,
        stretches=recompute_segments(chunk, plan),
        keeps_masks=code.keeps_masks(model, plan),
    )


def accumulates_gradients(plan: Plan, engine: Engine) -> bool:
    """Whether a micro-batch finds gradients of an earlier one, or of the step before."""
    return agreed(plan.accumulation > 1) or (
        engine.name == "transformers" and gradients_stay(plan.engine_version)
    )


def _chunk_walks_and_states(
    rank: Rank, plan: Plan, engine: Engine, known: ResidentState | None
) -> tuple[tuple[StageLayers, ...], ResidentState]:
    """The chunks of a rank in order of execution, and what the engine keeps around them, unless that is
    ``known``.
    """
    model = rank.model
    if engine.sharding is Sharding.MEGATRON:
        from memsheet.formulas.sharding.distributed_optimizer import megatron_kept

        walks = _walk_chunks(
            rank.chunks,
            lambda chunk: walk_stage_layers(chunk, plan, engine, release=True),
            known=bool(rank.orders),
        )
        return walks, known or megatron_kept(model, plan)
    if engine.sharding is Sharding.INTERNEVO:
        from memsheet.formulas.sharding.whole_parameter_owners import internevo_kept

        added = agreed(plan.accumulation > 1)
        return (walk_stage_layers(model, plan, engine, release=added),), _with_inputs(
            internevo_kept(model, plan), plan, model
        )
    if engine.sharding is Sharding.DEEPSPEED:
        from memsheet.formulas.sharding.partitioned import deepspeed_kept, deepspeed_walk
        from memsheet.formulas.sharding.partitioned_states import check_deepspeed

        check_deepspeed(plan)
        stage = deepspeed_walk(model, plan, engine)
        return (stage,), _with_inputs(_with_waiting(deepspeed_kept(model, plan, stage), stage), plan, model)
    parameters = tuple(held_tensors(model, plan))
    shards = tuple((h, parameter_shard(h, plan, engine.sharding)) for h in parameters if h.trains)
    if plan.optimizer is not None and plan.optimizer.name is OptimizerName.ADAM_MINI:
        raise_if_problems(adam_mini_problems((h for h, _ in shards), model))
    adds = accumulates_gradients(plan, engine)
    release = (
        fused_backward_step(plan)
        if plan.optimizer_in_backward
        else adds and engine.sharding.keeps_whole_gradients
    )
    stage = walk_stage_layers(model, plan, engine, release=release)
    gradients = (
        fsdp2_gradients(stage, plan) if engine.sharding is Sharding.FSDP2 else gradient_bag(shards, plan)
    )
    # torch 2.13 distributed/pipelining/stage.py, backward_maybe_with_nosync: whole gradients stay until the
    # last micro-batch
    reduces_last = engine.whole_in_pipelines and agreed(plan.mesh.pp > 1)
    unsynced = (
        {UNSYNCED: (0, unsynced_gradient_bytes(parameters, plan))}
        if adds and engine.sharding is Sharding.FSDP2
        else {}
    )
    waiting = BytesByPath.of((key, unsynced[key][1] if reduces_last else 0) for key in unsynced)
    unsynced = {} if reduces_last else unsynced
    kept = ResidentState(
        states=_resident_state_rows(model, plan, engine, parameters, shards),
        around=_sharding_overhead(engine, plan, parameters, stage),
        resident=merge_moment([(1, EMPTY if reduces_last else gradients), (1, waiting)]) if adds else EMPTY,
        at_step=_at_step(shards, gradients, plan, engine),
        gradients=EMPTY if plan.optimizer_in_backward else gradients,
        ranges=unsynced,
        notes=tuple(_training_step_notes(plan, unsynced)),
        host=Host(pinned=stage.hosted()),
        paged=0 if plan.offload.optimizer else paged_states(shards, plan),
    )
    if model.towers:
        from memsheet.formulas.idle_towers import with_towers

        kept = with_towers(
            kept,
            model,
            plan,
            engine,
            lambda one, elements: optimizer_bytes(one, elements, plan, head_elements(model)),
        )
    moves = plan.offload.parameters or plan.offload.optimizer
    if moves and engine.sharding is Sharding.FSDP1:
        from memsheet.formulas.sharding.flat_offload import flat_offloaded

        return (stage,), _with_inputs(flat_offloaded(kept, plan, stage, parameters), plan, model)
    if engine.sharding is not Sharding.FSDP2 or not moves:
        return (stage,), _with_inputs(kept, plan, model)
    from memsheet.formulas.sharding.per_parameter_offload import cpu_offload_resident_state

    return (stage,), _with_inputs(
        _with_waiting(cpu_offload_resident_state(kept, plan, parameters), stage), plan, model
    )


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


def _sharding_overhead(
    engine: Engine, plan: Plan, parameters: tuple[Held, ...], stage: StageLayers
) -> ShardingOverhead:
    """What is around the layers where DeepSpeed is not, which keeps everything its own way."""
    if engine.sharding is Sharding.FSDP1:
        from memsheet.formulas.sharding.flat_shards import fsdp1_overhead

        return fsdp1_overhead(plan, stage)
    if engine.sharding is not Sharding.FSDP2:
        return ddp_overhead(plan, parameters)
    from memsheet.formulas.sharding.per_parameter_shards import fsdp2_overhead

    rooted = engine.roots_frozen_ends and plan.adapter is not None
    return fsdp2_overhead(plan, replace(stage, tied=True) if rooted else stage, gloo=engine.processor)


def _training_step_notes(plan: Plan, unsynced: Mapping[Key, object]) -> Iterator[str]:
    if unsynced:
        yield UNSYNCED_NOTE
    if plan.engine == "transformers" and gradients_stay(plan.engine_version):
        yield old_torch_note(plan.engine_version)
    if plan.optimizer and plan.optimizer.implementation is Implementation.TORCHAO:
        yield (
            "torchao's step is compiled: buffers that torch.compile may take for it, of one parameter "
            "at a time, are not counted"
        )


def _at_step(
    shards: tuple[tuple[Held, Count], ...], gradients: BytesByPath, plan: Plan, engine: Engine
) -> BytesByPath:
    """Gradients and scratch while the optimizer works."""
    if plan.optimizer_in_backward:
        return EMPTY
    if plan.precision.master_weights is not None and engine.sharding is Sharding.REPLICATED:
        return largest_moment_rows([[(1, moment)] for moment in master_copy_step_moments(shards, plan)])
    scratch = BytesByPath.of([((Component.TEMPORARIES, "optimizer"), step_temporaries(shards, plan))])
    return merge_moment([(1, gradients), (1, scratch), (1, grad_unscale_rows(plan, engine))])


def _resident_state_rows(
    model: ModelSpec,
    plan: Plan,
    engine: Engine,
    parameters: tuple[Held, ...],
    shards: tuple[tuple[Held, Count], ...],
) -> BytesByPath:
    """What is there at every instant of a steady step, gradients aside. ``shards``: what trains, and how much
    of it the rank keeps.
    """
    pairs: list[tuple[Key, Count]] = list(parameter_bytes(model, plan, parameters, engine.sharding).items())
    master, block = plan.precision.master_weights, head_elements(model)
    for h, kept in shards:
        if master is not None:
            pairs.append(((Component.MASTER_WEIGHTS, h.path), h.times * master.nbytes(kept)))
        pairs.append(((Component.OPTIMIZER_STATES, h.path), h.times * optimizer_bytes(h, kept, plan, block)))
    return BytesByPath.of([*pairs, *scaler_states(plan, engine).held.items()])


def _with_waiting(kept: ResidentState, stage: StageLayers) -> ResidentState:
    """With what waits for backward on the host, beside the states that lie there."""
    return replace(kept, host=replace(kept.host, pinned=(*kept.host.pinned, *stage.hosted())))


def _with_inputs(kept: ResidentState, plan: Plan, model: ModelSpec) -> ResidentState:
    """What a micro-batch is made of, beside the states."""
    return replace(kept, states=merge_moment([(1, kept.states), (1, microbatch_inputs(model, plan))]))
