"""account(model, plan, cluster, stage) → Sheet: every byte on one rank.

What only one engine or task needs is imported where it is needed, so that a cold start stays short.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from memsheet.arith import Count, agreed, maximum, minimum
from memsheet.engines import find_engine
from memsheet.errors import refuse
from memsheet.formulas.activations import check_modelled, numerics
from memsheet.formulas.evaluate import EMPTY, Bag, Key, largest, merge
from memsheet.formulas.fsdp2_sizes import fsdp2_gradients, unsynced_gradient_bytes
from memsheet.formulas.groups import Walk, walk
from memsheet.formulas.kept import Host, Kept
from memsheet.formulas.model_code import model_code
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.runtime import outside_tensors
from memsheet.formulas.scaler import scaler_states, unscaling
from memsheet.formulas.states import Held, held_tensors, optimizer_bytes, parameter_bytes, parameter_shard
from memsheet.formulas.stretches import stretches
from memsheet.formulas.surroundings import Surroundings, replicated
from memsheet.formulas.training import Step, gradient_bag, moments, step_temporaries, stepped, widening
from memsheet.references import DERIVATIVES, ZERO
from memsheet.sheet import Bytes, Cited, Component, Derived, Evidence, Instant, Item, Sheet
from memsheet.spec.device import Cluster
from memsheet.spec.dtypes import INT64
from memsheet.spec.engine import Engine, Sharding
from memsheet.spec.model import LatentAttention, ModelSpec
from memsheet.spec.plan import AttentionKind, Implementation, Plan

EVIDENCE: dict[Component, Evidence] = {
    **dict.fromkeys(
        (Component.PARAMETERS, Component.MASTER_WEIGHTS, Component.GRADIENTS, Component.OPTIMIZER_STATES), Cited(ZERO, "section 3.1")
    ),
    Component.SAVED_ACTIVATIONS: Cited(DERIVATIVES, "what each operation saves for its backward"),
    Component.TEMPORARIES: Cited(DERIVATIVES, "what each operation's backward allocates"),
}

UNSYNCED: Key = (Component.GRADIENTS, "no_sync")
UNSYNCED_NOTE = (
    "gradients are reduced after every micro-batch; accelerate and the Trainer keep them whole until the last one (no_sync): the high end"
)
NO_RANGES: Mapping[Key, tuple[Count, Count]] = MappingProxyType({})


def account(model: ModelSpec, plan: Plan, cluster: Cluster | None = None, stage: int = 0, *, device: str = "cuda") -> Sheet:
    """The sheet of a rank of pipeline stage ``stage`` (its ranks are alike). ``device``: "cuda", or "cpu" for a processor's kernels.

    Raises InputError when something of the model or plan is not modelled; nothing is left out silently.
    """
    engine = find_engine(plan.engine)
    assert engine is not None
    if device == "cpu":
        _check_processor(model, plan)
        engine = replace(engine, processor=True)
    part = stage_model(model_code(engine.code).built(model, plan), plan, stage)
    host, notes = Host(), tuple[str, ...]()
    if plan.task == "train":
        bags, kept = _train(part, plan, engine)
        tensors, allocated = _items(bags, engine, kept.ranges), {instant: bag.total for instant, bag in bags.items()}
        host, notes = kept.host, (*kept.notes, *kept.host.notes)
    else:
        from memsheet.formulas.serving import serving_items

        tensors = serving_items(part, plan, engine)
        allocated = _allocated(tensors)
    loaded = sum(i.at[Instant.LOAD].value for i in tensors if i.component is Component.PARAMETERS) if plan.task == "infer" else 0
    items = [*tensors, *outside_tensors(plan, cluster, allocated, loaded=loaded)]
    first, last = _ranks(plan, stage)
    return Sheet(
        rank=first, stage=stage, same_as=tuple(range(first + 1, last)), items=tuple(items), host_bytes=host.bytes, notes=notes
    )  # fmt: skip


def _check_processor(model: ModelSpec, plan: Plan) -> None:
    """Raises InputError for what only a GPU does, and for what a processor does otherwise than is modelled: latent attention is computed by
    plain operations there (aten sdp_utils_cpp.cpp, check_head_dim_size_cpp).
    """
    if plan.offload.activations:
        raise refuse("offload.activations", True, "moves nothing on a processor, where host and device are one memory", "leave it out")
    mixers = (mixer for stack in model.stacks for run in stack.runs for block in run.pattern for mixer in block.mixers)
    if plan.attention is AttentionKind.SDPA and any(isinstance(mixer, LatentAttention) for mixer in mixers):
        why = "has no kernel on a processor for heads of two sizes, and its plain operations are not modelled"
        raise refuse("attention", "sdpa", why, "eager; `memsheet trace --device cpu` runs it")


def _ranks(plan: Plan, stage: int) -> tuple[int, int]:
    """First rank of a stage and the one after its last; plans of a stratum differ in size, so their sheet is that of rank ``stage``."""
    if not isinstance(plan.mesh.gpus, int):
        return stage, stage + 1
    size = plan.mesh.gpus // plan.mesh.pp
    return stage * size, (stage + 1) * size


def _train(model: ModelSpec, plan: Plan, engine: Engine) -> tuple[dict[Instant, Bag], Kept]:
    """A step's instants. Of two micro-batches the smaller comes last and is the only one that finds gradients there, so either may hold
    most; with more of them a whole one does.
    """
    check_modelled(model, plan, engine)
    if not isinstance(plan.accumulation, int) or plan.accumulation != 2 or plan.last_microbatch == plan.microbatch:  # strata have no rests
        return _passes(model, plan, engine)
    last = plan.last_microbatch
    first, _ = _passes(model, replace(plan, global_batch=None), engine)
    second, kept = _passes(model, replace(plan, microbatch=last, global_batch=2 * last * plan.mesh.data_parallel), engine)
    return {instant: largest([[(1, first[instant])], [(1, second[instant])]]) for instant in first}, kept


def _passes(model: ModelSpec, plan: Plan, engine: Engine) -> tuple[dict[Instant, Bag], Kept]:
    """A step whose micro-batches are all alike."""
    how, code = numerics(plan, engine), model_code(engine.code)
    stage, kept = _kept(model, plan, engine)
    step = Step(
        walk=stage, around=kept.around, states=merge([(1, kept.states), (1, _inputs(plan))]), resident_gradients=kept.resident,
        shared=code.shared(model, plan, how), masks=code.masks(model, plan, how), plan=plan,
        stretches=stretches(stage, plan), keeps_masks=code.keeps_masks(model, plan),
    )  # fmt: skip
    peaks = {instant: largest(candidates) for instant, candidates in moments(step).items() if candidates}
    peaks[Instant.OPTIMIZER_STEP] = merge([(1, step.states), (1, step.around.always), (1, kept.at_step)])
    return peaks, kept


def _kept(model: ModelSpec, plan: Plan, engine: Engine) -> tuple[Walk, Kept]:
    """The model in order of execution, and what the engine keeps around it."""
    if engine.sharding is Sharding.DEEPSPEED:
        from memsheet.formulas.deepspeed import deepspeed_kept, deepspeed_walk
        from memsheet.formulas.zero_states import check_deepspeed

        check_deepspeed(plan)
        stage = deepspeed_walk(model, plan, engine)
        return stage, deepspeed_kept(model, plan, stage)
    parameters = tuple(held_tensors(model, plan))
    shards = tuple((h, parameter_shard(h, plan, engine.sharding)) for h in parameters if h.trains)
    accumulates = agreed(plan.accumulation > 1)
    release = stepped(plan) if plan.optimizer_in_backward else accumulates and engine.sharding.keeps_whole_gradients
    stage = walk(model, plan, engine, release=release)
    gradients = fsdp2_gradients(stage, plan) if engine.sharding is Sharding.FSDP2 else gradient_bag(shards, plan)
    unsynced = {UNSYNCED: (0, unsynced_gradient_bytes(parameters, plan))} if accumulates and engine.sharding is Sharding.FSDP2 else {}
    waiting = Bag.of((key, 0) for key in unsynced)
    kept = Kept(
        states=_states(model, plan, engine, parameters, shards), around=_around(engine, plan, parameters, stage),
        resident=merge([(1, gradients), (1, waiting)]) if accumulates else EMPTY, at_step=_at_step(shards, gradients, plan, engine),
        ranges=unsynced, notes=tuple(_notes(plan, unsynced)), host=Host(pinned=stage.hosted()),
    )  # fmt: skip
    if not (plan.offload.parameters or plan.offload.optimizer):
        return stage, kept
    from memsheet.formulas.fsdp2_offload import offloaded

    return stage, offloaded(kept, plan, parameters)


def _around(engine: Engine, plan: Plan, parameters: tuple[Held, ...], stage: Walk) -> Surroundings:
    """What is around the layers where DeepSpeed is not, which keeps everything its own way."""
    if engine.sharding is not Sharding.FSDP2:
        return replicated(plan, parameters)
    from memsheet.formulas.fsdp2_around import fsdp2

    return fsdp2(plan, stage, gloo=engine.processor)


def _notes(plan: Plan, unsynced: Mapping[Key, object]) -> Iterator[str]:
    if unsynced:
        yield UNSYNCED_NOTE
    if plan.optimizer and plan.optimizer.implementation is Implementation.TORCHAO:
        yield "torchao's step is compiled: buffers that torch.compile may take for it, of one parameter at a time, are not counted"


def _at_step(shards: tuple[tuple[Held, Count], ...], gradients: Bag, plan: Plan, engine: Engine) -> Bag:
    """Gradients and scratch while the optimizer works."""
    if plan.optimizer_in_backward:
        return EMPTY
    if plan.precision.master_weights is not None and engine.sharding is Sharding.REPLICATED:
        return largest([[(1, moment)] for moment in widening(shards, plan)])
    scratch = Bag.of([((Component.TEMPORARIES, "optimizer"), step_temporaries(shards, plan))])
    return merge([(1, gradients), (1, scratch), (1, unscaling(plan, engine))])


def _states(
    model: ModelSpec, plan: Plan, engine: Engine, parameters: tuple[Held, ...], shards: tuple[tuple[Held, Count], ...]
) -> Bag:  # fmt: skip
    """What is there at every instant of a steady step, gradients aside. ``shards``: what trains, and how much of it the rank keeps."""
    pairs: list[tuple[Key, Count]] = list(parameter_bytes(model, plan, parameters, engine.sharding).items())
    master = plan.precision.master_weights
    for h, kept in shards:
        if master is not None:
            pairs.append(((Component.MASTER_WEIGHTS, h.path), h.times * master.nbytes(kept)))
        pairs.append(((Component.OPTIMIZER_STATES, h.path), h.times * optimizer_bytes(h, kept, plan)))
    return Bag.of([*pairs, *scaler_states(plan, engine).held.items()])


def _inputs(plan: Plan) -> Bag:
    """Token ids and labels of a micro-batch."""
    size = INT64.nbytes(plan.microbatch * plan.seq_len)
    return Bag.of([((Component.INPUTS, "input_ids"), size), ((Component.INPUTS, "labels"), size)])


def _allocated(items: list[Item]) -> dict[Instant, Count]:
    """Tensor bytes at each instant."""
    found: dict[Instant, Count] = {}
    for item in (i for i in items if i.component is not Component.ALLOCATOR_SLACK):
        for instant, size in item.at.items():
            found[instant] = found[instant] + size.value if instant in found else size.value
    return found


def _items(bags: Mapping[Instant, Bag], engine: Engine, ranges: Mapping[Key, tuple[Count, Count]] = NO_RANGES) -> list[Item]:
    """Every (component, path) with its bytes at the instants where it is resident; ``ranges`` of those that are not exactly known."""
    rows: dict[Key, dict[Instant, Bytes]] = {}
    made: dict[Count, Bytes] = {}  # most sizes stand at several instants
    for instant, bag in bags.items():
        for key, size in bag.held.items():
            row = rows.setdefault(key, {})
            if key in ranges:
                row[instant] = _ranged(size, *ranges[key])
            elif type(size) is int:
                row[instant] = made.get(size) or made.setdefault(size, Bytes(size, size, size))
            else:
                row[instant] = Bytes(size, size, size)
    evidence = {component: _evidence(component, engine) for component in {component for component, _ in rows}}
    return [Item(component, path, at, evidence[component]) for (component, path), at in rows.items()]


def _ranged(value: Count, low: Count, high: Count) -> Bytes:
    return Bytes(minimum(low, value), value, maximum(high, value))


def _evidence(component: Component, engine: Engine) -> Evidence:
    return (
        engine.evidence.get(component.value)
        or EVIDENCE.get(component)
        or Derived(f"the engine's own buffers ({engine.name} {engine.tested})")
    )


def account_bare(parameters: int, plan: Plan, cluster: Cluster | None = None) -> Sheet:
    """The states of a bare parameter count on one rank."""
    from memsheet.formulas.bare import bare_host, bare_states

    engine = find_engine(plan.engine)
    assert engine is not None
    bags, host = bare_states(parameters, plan, engine), bare_host(parameters, plan, engine)
    items = [*_items(bags, engine), *outside_tensors(plan, cluster, {instant: bag.total for instant, bag in bags.items()})]
    ranks = tuple(range(1, int(plan.mesh.gpus)))
    return Sheet(rank=0, same_as=ranks, items=tuple(items), host_bytes=host.bytes, notes=host.notes)
