"""States that are divided tensor by tensor, or not at all: every rank has its share of each parameter, and of
its gradient and optimizer states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from memsheet.arith import Count
from memsheet.errors import raise_if_problems
from memsheet.formulas.grad_scaler import grad_unscale_rows, scaler_states
from memsheet.formulas.groups import Group, StageLayers, walk_stage_layers
from memsheet.formulas.inputs import microbatch_inputs
from memsheet.formulas.sharding.algorithm import Algorithm, Traffic
from memsheet.formulas.sharding.division import Division, Shards
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.sharding.resident_state import Host, ResidentState, with_added_states
from memsheet.formulas.sharding.states_of_plan import NOTHING_RECOMPUTED, RecentStates, plan_of_any_length
from memsheet.formulas.states.gradients import (
    UNSYNCED,
    UNSYNCED_NOTE,
    accumulates_gradients,
    gradient_bag,
    master_copy_step_moments,
    reduces_surely_every,
    reduces_surely_last,
)
from memsheet.formulas.states.held import HeldTensor, held_tensors, parameter_bytes
from memsheet.formulas.states.idle_towers import IDLE, idle_bytes
from memsheet.formulas.states.optimizers import (
    adam_mini_problems,
    fused_backward_step,
    head_elements,
    optimizer_bytes,
    paged_states,
    step_temporaries,
)
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Key, largest_moment_rows, merge_moment
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.plan.engine import Engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Implementation, OptimizerName, Plan, Schedule
from memsheet.plan.torch_versions import gradients_stay, old_torch_note
from memsheet.sheet import Component

with late_functions(__name__):
    from memsheet.formulas.sharding.bare_by_tensor import bare_ranges, bare_states, offloaded_bare_host


def algorithm_by_tensor(how: Division, traffic: Traffic) -> Algorithm:
    """The algorithm that divides states so."""
    return Algorithm(
        walk=partial(_tensor_walk, how),
        resident_state=partial(_tensor_state, how),
        bare_states=partial(bare_states, how),
        bare_host=partial(offloaded_bare_host, how),
        bare_ranges=partial(bare_ranges, how),
        parameter_shard=how.shard,
        traffic=traffic,
    )


def _tensor_walk(how: Division, model: ModelSpec, plan: Plan, engine: Engine) -> StageLayers:
    release = fused_backward_step(plan) if plan.optimizer_in_backward else how.accumulates_whole(plan, engine)
    return walk_stage_layers(model, plan, engine, release=release)


@dataclass(frozen=True, slots=True, eq=False)
class StatesAlone:
    """What a rank keeps whatever lengths its sequences have and whatever its layers do: ``parameters``,
    ``shards`` of those that train and the ``scratch`` of a step beside their gradients. ``kept``: what is
    there without layers; its ``resident`` is what waits of earlier micro-batches beside gradients, its
    ``gradients`` are empty where an algorithm says them of layers.
    """

    parameters: tuple[HeldTensor, ...]
    shards: Shards
    scratch: tuple[BytesByPath, ...]
    kept: ResidentState


def _tensor_state(
    how: Division, model: ModelSpec, plan: Plan, engine: Engine, stage: StageLayers
) -> ResidentState:
    """What a rank keeps through a step."""
    alone = _recent_alone.made_of(model, plan, lambda own: _states_alone(how, model, own, engine), engine)
    kept = _around_layers(how, alone, plan, engine, stage)
    if how.root_weights is not None and (model.towers or model.recording):
        table = None if stage.tied or plan.adapter else stage.embeddings
        kept = _beside_root(kept, how.root_weights(model, plan), table)
        kept = replace(kept, around=replace(kept.around, opens=how.root_gather(model, plan)))
    if how.beside_gradients is not None and model.recording and not plan.optimizer_in_backward:
        kept = _with_gradients(kept, how.beside_gradients(model, plan))
    if how.offloaded is not None and (plan.offload.parameters or plan.offload.optimizer):
        kept = how.offloaded(kept, plan, stage, alone.parameters)
    if (
        plan.schedule is Schedule.NAIVE and not model.embeddings.weights
    ):  # inputs are where they are looked up
        return kept
    return with_added_states(kept, microbatch_inputs(model, plan))


def plan_of_tensors(plan: Plan) -> Plan:
    """A plan without what no share of a tensor knows: what is recomputed, and lengths. Of the loss some do,
    which reduces a head's gradient before backward begins.
    """
    return plan_of_any_length(replace(plan, recompute=NOTHING_RECOMPUTED))


_recent_alone: RecentStates[StatesAlone] = RecentStates(32, 1 << 15, plan_of_tensors)


def _states_alone(how: Division, model: ModelSpec, plan: Plan, engine: Engine) -> StatesAlone:
    """What is there before anything goes to the host. Raises InputError for an optimizer that does not take
    the tensors.
    """
    parameters = tuple(held_tensors(model, plan))
    shards = tuple((h, how.shard(h, plan)) for h in parameters if h.trains)
    if plan.optimizer is not None and plan.optimizer.name is OptimizerName.ADAM_MINI:
        raise_if_problems(adam_mini_problems((h for h, _ in shards), model))
    reduces_last = reduces_surely_last(plan, engine)
    waits = (
        how.waiting is not None
        and accumulates_gradients(plan, engine)
        and not reduces_surely_every(plan, engine)
    )
    whole = how.waiting(parameters, plan) if waits and how.waiting is not None else 0
    unsynced = {UNSYNCED: (0, whole)} if waits and not reduces_last else {}
    kept = ResidentState(
        states=_resident_state_rows(how, model, plan, engine, parameters, shards),
        around=ShardingOverhead(),
        resident=BytesByPath.of([(UNSYNCED, whole if reduces_last else 0)] if waits else []),
        at_step=EMPTY,
        gradients=gradient_bag(shards, plan) if how.gradients is None else EMPTY,
        ranges=unsynced,
        notes=(
            *_training_step_notes(plan, engine, unsynced),
            *how.notes(model),
            *how.padding_notes(parameters, plan),
        ),
        paged=0 if plan.offload.optimizer else paged_states(shards, plan),
    )
    if model.towers or engine.trains_towers:
        kept = _with_idle(how, kept, model, plan)
    return StatesAlone(parameters, shards, _step_scratch(how, shards, plan, engine), kept)


def _around_layers(
    how: Division, alone: StatesAlone, plan: Plan, engine: Engine, stage: StageLayers
) -> ResidentState:
    """With what layers make of it: overhead around them, and gradients."""
    kept = alone.kept
    gradients = kept.gradients if how.gradients is None else how.gradients(stage, plan)
    resident = EMPTY
    if accumulates_gradients(plan, engine):
        earlier = EMPTY if reduces_surely_last(plan, engine) else gradients
        resident = merge_moment([(1, earlier), (1, kept.resident)])
    return replace(
        kept,
        around=how.overhead(plan, engine, alone.parameters, stage),
        resident=resident,
        at_step=_at_step(how, alone.scratch, gradients, plan),
        gradients=EMPTY if plan.optimizer_in_backward else gradients,
        host=Host(pinned=stage.hosted()),
    )


def _resident_state_rows(
    how: Division,
    model: ModelSpec,
    plan: Plan,
    engine: Engine,
    parameters: tuple[HeldTensor, ...],
    shards: Shards,
) -> BytesByPath:
    """What is there at every instant of a steady step, gradients aside."""
    pairs: list[tuple[Key, Count]] = list(parameter_bytes(model, plan, parameters, how.shard).items())
    master, block = plan.precision.master_weights, head_elements(model)
    for h, kept in shards:
        if master is not None:
            pairs.append(((Component.MASTER_WEIGHTS, h.path), h.times * master.nbytes(kept)))
        pairs.append(((Component.OPTIMIZER_STATES, h.path), h.times * optimizer_bytes(h, kept, plan, block)))
    if master is not None:  # which are made with the optimizer, whether or not a gradient ever comes
        pairs += (
            ((Component.MASTER_WEIGHTS, h.path), h.times * master.nbytes(how.shard(h, plan)))
            for h in parameters
            if h.unreached
        )
    return BytesByPath.of([*pairs, *scaler_states(plan, engine).held.items()])


def _step_scratch(how: Division, shards: Shards, plan: Plan, engine: Engine) -> tuple[BytesByPath, ...]:
    """What the optimizer's work takes: candidates, gradients among them, where it raises these to copies of
    another precision; else what is there beside them all.
    """
    if plan.optimizer_in_backward:
        return ()
    if plan.precision.master_weights is not None and how.raises_gradients:
        return tuple(master_copy_step_moments(shards, plan))
    scratch = BytesByPath.of([((Component.TEMPORARIES, "optimizer"), step_temporaries(shards, plan))])
    return scratch, grad_unscale_rows(plan, engine)


def _at_step(
    how: Division, scratch: tuple[BytesByPath, ...], gradients: BytesByPath, plan: Plan
) -> BytesByPath:
    """Gradients and scratch while the optimizer works."""
    if plan.optimizer_in_backward:
        return EMPTY
    if plan.precision.master_weights is not None and how.raises_gradients:
        return largest_moment_rows([[(1, moment)] for moment in scratch])
    return merge_moment([(1, gradients), *((1, rows) for rows in scratch)])


def _training_step_notes(plan: Plan, engine: Engine, unsynced: Mapping[Key, object]) -> Iterator[str]:
    if unsynced:
        yield UNSYNCED_NOTE
    if engine.older_releases and gradients_stay(plan.engine_version):
        yield old_torch_note(plan.engine_version)
    if plan.optimizer and plan.optimizer.implementation is Implementation.TORCHAO:
        yield (
            "torchao's step is compiled: buffers that torch.compile may take for it, of one parameter "
            "at a time, are not counted"
        )


def _with_idle(how: Division, kept: ResidentState, model: ModelSpec, plan: Plan) -> ResidentState:
    """With what parameters that get no gradient add to it."""
    block, found = head_elements(model), kept
    for key, note, listed in IDLE:
        if next(listed(model), None) is None:
            continue
        low, high = idle_bytes(
            model, plan, how.shard, lambda one, elements: optimizer_bytes(one, elements, plan, block), listed
        )
        waiting = BytesByPath.of([(key, low)] if high else [])
        found = replace(
            found,
            states=merge_moment([(1, found.states), (1, waiting)]),
            notes=(*found.notes, note),
            ranges={**found.ranges, key: (low, high)} if high else found.ranges,
        )
    return found


def _with_gradients(kept: ResidentState, more: BytesByPath) -> ResidentState:
    """With gradients that are there whenever those of all layers are."""
    adds = kept.resident is not EMPTY
    return replace(
        kept,
        resident=merge_moment([(1, kept.resident), (1, more)]) if adds else kept.resident,
        at_step=merge_moment([(1, kept.at_step), (1, more)]),
        gradients=merge_moment([(1, kept.gradients), (1, more)]),
    )


def _beside_root(kept: ResidentState, rooted: BytesByPath, embeddings: Group | None) -> ResidentState:
    """With what stands around the layers because no group of its own holds it. It is gone when the
    ``embeddings`` of a group of their own leave: what they look up needs no gradient, so that both wait for
    the end of backward, where the root comes first (torch 2.13 _fsdp_state.py:405-415).
    """
    around = kept.around

    def leaving(before: Group | None, group: Group) -> BytesByPath:
        found = around.leaving(before, group)
        return merge_moment([(1, found), (-1, rooted)]) if group is embeddings else found

    through = merge_moment([(1, around.through), (1, rooted)])
    return replace(kept, around=replace(around, through=through, leaving=leaving))
