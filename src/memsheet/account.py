"""account(model, plan, cluster, stage) → Sheet: every byte on one rank.

What only one engine or task needs is imported where it is needed, so that a cold start stays short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from memsheet.arith import Count, where
from memsheet.errors import input_error
from memsheet.formulas.model_code import engine_for, model_code
from memsheet.formulas.pipeline import chunk_models
from memsheet.formulas.runtime import outside_tensors
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.plan.device import Cluster
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import LatentAttention, LinearAttention, ModelSpec, StateSpace
from memsheet.plan.plan import ENDS_OF_ROUTING, AttentionKind, Plan
from memsheet.plan.workload import Training
from memsheet.sheet import (
    OUTSIDE_ALLOCATOR,
    OUTSIDE_TENSORS,
    Bytes,
    Component,
    Instant,
    Item,
    LaterItems,
    Sheet,
)

with late_functions(__name__):
    from memsheet.formulas.states.open_storage import mixers_left_whole, with_high_end
    from memsheet.step_items import (
        bag_items,
        ended_gradients,
        ordered_byte_range,
        ranged_sizes,
        step_items,
    )

if TYPE_CHECKING:
    from memsheet.formulas.sharding.resident_state import ResidentState
    from memsheet.formulas.sharding.states_of_plan import RecentStates
    from memsheet.formulas.step import Rank


def account_rank(
    model: ModelSpec,
    plan: Plan,
    cluster: Cluster | None = None,
    stage: int = 0,
    *,
    device: str = "cuda",
    replays: bool = False,
) -> Sheet:
    """The sheet of a rank of pipeline stage ``stage`` (its ranks are alike). ``device``: "cuda", or "cpu" for
    a processor's kernels.

    ``replays``: the allocator's slack is that of the step's own allocations where the engine's can be
    replayed, which takes a fraction of a second, else a share of them.

    Where a copy's name leaves open what is quantized, the high end is with that whole.

    Raises InputError when something of the model or plan is not modelled; nothing is left out silently.
    """
    # a plan whose step is played is asked for several times: by a job, by its changes, by what tells of them
    account = replayed_rank_sheet if replays else _resolved_rank_sheet
    sheet = account(model, plan, cluster, stage, device=device, replays=replays)
    if plan.quantization is None or (largest := mixers_left_whole(model, plan)) is None:
        return sheet
    return with_high_end(sheet, account(model, largest, cluster, stage, device=device, replays=replays))


def _resolved_rank_sheet(
    model: ModelSpec, plan: Plan, cluster: Cluster | None, stage: int, *, device: str, replays: bool
) -> Sheet:
    """The sheet where everything that is quantized is what the plan says."""
    engine = engine_for(model, plan)
    if device == "cpu":
        _check_processor(model, plan)
        engine = replace(engine, processor=True)
    built = model_code(engine.layers).built(model, plan)
    items: Sequence[Item]
    host_bytes, notes, gradients = 0, tuple[str, ...](), None
    if isinstance(plan.workload, Training):
        from memsheet.formulas.step import Rank, account_training_step

        step = account_training_step(Rank.of(built, plan, stage), plan, engine)
        allocated = {instant: bag.total for instant, bag in step.bags.items()}
        host_bytes = step.kept.host.bytes
        notes = (*step.kept.notes, *step.kept.host.notes, *model_code(engine.layers).notes(model))
        if model.recording is not None:
            from memsheet.formulas.model_code.recorded import kernel_on_record_notes

            notes = (*notes, *kernel_on_record_notes(model.recording, plan))
        host_bytes, notes = host_bytes + step.kept.paged, (*notes, *_paged_state_notes(step.kept.paged))
        items, gradients = (
            step_items(step, engine, outside_tensors(plan, cluster, allocated)),
            ended_gradients(step),
        )
        if replays and cluster is not None and engine.replays and not plan.cuda_graphs:
            from memsheet.formulas.replay.slack import items_with_replayed_slack

            items, said = items_with_replayed_slack(
                list(items), built, plan, engine, cluster, allocated, stage
            )
            notes = (*notes, *said)
            if step.low is not None:
                low, high = (
                    replayed_rank_sheet(model, one, cluster, stage, device=device, replays=True)
                    for one in _routed_ends(plan)
                )
                items = _with_slack_ends(items, low, high)
    else:
        from memsheet.formulas.serving.servers import server_of

        server = server_of(engine)
        items = server.items(built, plan, engine, cluster, stage)
        host_bytes = server.host_bytes(built, plan, cluster, stage) if hasattr(server, "host_bytes") else 0
        notes = server.notes(built, plan, cluster) if hasattr(server, "notes") else ()
    first, last = _stage_rank_bounds(plan, stage)
    if plan.quantization is not None:
        from memsheet.formulas.states.held import left_whole

        notes = (*notes, *left_whole(built, plan))
    return Sheet(
        rank=first,
        stage=stage,
        same_as=tuple(range(first + 1, last)),
        items=items if isinstance(items, LaterItems) else tuple(items),
        host_bytes=host_bytes,
        notes=notes,
        gradients=gradients,
    )


def _routed_ends(plan: Plan) -> Iterator[Plan]:
    """The plan where tokens are routed as they are at the low and the high end."""
    assert plan.routing is not None
    for spread in ENDS_OF_ROUTING[1:]:
        yield replace(plan, routing=replace(plan.routing, spread=spread))


def _with_slack_ends(items: Sequence[Item], low: Sheet, high: Sheet) -> list[Item]:
    """The allocator's slack with the ends of two other sheets of the same step."""
    ends = [
        next(item for item in sheet.items if item.component is Component.ALLOCATOR_SLACK)
        for sheet in (low, high)
    ]
    return [
        replace(
            item,
            at={
                when: ordered_byte_range(size.value, ends[0].at[when].low, ends[1].at[when].high)
                for when, size in item.at.items()
            },
        )
        if item.component is Component.ALLOCATOR_SLACK and item.evidence == ends[1].evidence
        else item
        for item in items
    ]


replayed_rank_sheet = lru_cache(maxsize=256)(_resolved_rank_sheet)
"""Those whose step was played, which takes a hundred times as long: the last ones are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a sheet adds up to: device bytes of every instant, everything counted, and host bytes."""

    device: Mapping[Instant, Bytes]
    host_bytes: Count


def rank_of(model: ModelSpec, plan: Plan, stage: int = 0) -> Rank:
    """What a rank of a stage has of a model: the same for all plans with as many stages and chunks."""
    from memsheet.formulas.step import Rank

    return Rank.of(model_code(engine_for(model, plan).layers).built(model, plan), plan, stage)


def deciding_stages(model: ModelSpec, plan: Plan) -> dict[int, tuple[int, ...]]:
    """A pipeline's stages that can hold most, each with those that have the same layers and hold no more: of
    these the first keeps most micro-batches. The last stage stands alone.
    """
    last, found, layers = plan.mesh.pp - 1, dict[int, tuple[int, ...]](), dict[int, Any]()
    built = model_code(engine_for(model, plan).layers).built(model, plan)
    for stage in range(plan.mesh.pp):
        own = [chunk.stacks for chunk in chunk_models(built, plan, stage)]
        first = next((one for one, held in layers.items() if held == own), stage) if stage < last else last
        found[first] = (*found[first], stage) if first != stage else ()
        layers.setdefault(first, own)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What the tensors of a training step add up to at every instant: bytes, and how far the ends of their
    range lie below and above.
    """

    tensors: Mapping[Instant, Count]
    below: Mapping[Instant, Count]
    above: Mapping[Instant, Count]
    paged: Count
    host_bytes: Count


def step_totals(rank: Rank, plan: Plan, cluster: Cluster) -> Totals:
    """The sums of the sheet that ``account_rank`` makes of a training step, without its items: what a search
    weighs many plans by.

    Raises InputError as ``account_rank`` does.
    """
    return totals_of(sums_of(rank, plan), plan, cluster)


def totals_of(sums: Sums, plan: Plan, cluster: Cluster) -> Totals:
    """Tensors and what is on the card besides. The share that the allocator's slack is reaches further than
    what a sheet's range has at least (``Sheet.at``).
    """
    device = {i: Bytes(size - sums.below[i], size, size + sums.above[i]) for i, size in sums.tensors.items()}
    for item in outside_tensors(plan, cluster, dict(sums.tensors)):
        device |= {instant: device[instant] + size for instant, size in item.at.items()}
    return Totals(device=device, host_bytes=sums.host_bytes + sums.paged)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakBytes:
    """What is expected at the peak: of tensors, of the allocator's segments, and of the whole card."""

    allocated: Count
    reserved: Count
    device: Count


def step_peak_bytes(model: ModelSpec, plan: Plan, cluster: Cluster, stage: int) -> PeakBytes:
    """The peaks of the sheet that ``account_rank`` makes of a training step by shares of slack, without its
    items. Raises InputError as that does.
    """
    from memsheet.formulas.step import account_training_step

    step = account_training_step(rank_of(model, plan, stage), plan, engine_for(model, plan))
    tensors = {instant: bag.total for instant, bag in step.bags.items()}
    peaks = dict.fromkeys((OUTSIDE_TENSORS, OUTSIDE_ALLOCATOR, ()), 0)
    outside = outside_tensors(plan, cluster, tensors)
    for instant, size in tensors.items():
        for without, most in peaks.items():
            counted = [item.at[instant].value for item in outside if item.component not in without]
            peaks[without] = max(most, sum(counted, size))
    return PeakBytes(allocated=peaks[OUTSIDE_TENSORS], reserved=peaks[OUTSIDE_ALLOCATOR], device=peaks[()])


def sums_of(rank: Rank, plan: Plan) -> Sums:
    """The tensors of a step.

    Raises InputError as ``account_rank`` does.
    """
    from memsheet.formulas.step import account_training_step

    engine = engine_for(rank.model, plan)
    step = account_training_step(rank, plan, engine)
    kept, bags = step.kept, step.bags
    below, above = dict.fromkeys(bags, 0), dict.fromkeys(bags, 0)
    for instant, size, there in ranged_sizes(step):
        below[instant] = below[instant] + where(there, size.value - size.low, 0)
        above[instant] = above[instant] + where(there, size.high - size.value, 0)
    tensors = {instant: bag.total for instant, bag in bags.items()}
    return Sums(tensors=tensors, below=below, above=above, paged=kept.paged, host_bytes=kept.host.bytes)


def divided_states(rank: Rank, plan: Plan, instants: Iterable[Instant]) -> Mapping[Instant, Count]:
    """Of the tensors of a step with a distributed optimizer, those that data-parallel ranks divide: the
    states, and scratch while it works.
    """
    from memsheet.formulas.sharding.algorithm import algorithm_of

    alone = algorithm_of(engine_of(plan).sharding).state_alone
    assert alone is not None
    states, at_step = _recent_totals().made_of(
        rank.model, plan, lambda own: _state_totals(alone(rank.model, own))
    )
    return {i: states + (at_step if i is Instant.OPTIMIZER_STEP else 0) for i in instants}


def _state_totals(kept: ResidentState) -> tuple[Count, Count]:
    return kept.states.total, kept.at_step.total


@cache
def _recent_totals() -> RecentStates[tuple[Count, Count]]:
    from memsheet.formulas.sharding.states_of_plan import RecentStates

    return RecentStates(32, 1 << 17)


def check_accounted(rank: Rank, plan: Plan) -> None:
    """Raises InputError where a step would for what is not modelled of its layers or of what shares them."""
    from memsheet.formulas.activations import check_modelled
    from memsheet.formulas.sharding.algorithm import algorithm_of

    engine = engine_for(rank.model, plan)
    check_modelled(rank.whole, plan, engine)
    algorithm_of(engine.sharding).check(plan)


def _check_processor(model: ModelSpec, plan: Plan) -> None:
    """Raises InputError for what only a GPU does, and for what a processor does otherwise than is modelled:
    latent attention is computed by plain operations there (aten sdp_utils_cpp.cpp, check_head_dim_size_cpp).
    """
    if plan.offload.activations:
        raise input_error(
            "offload.activations",
            True,
            "moves nothing on a processor, where host and device are one memory",
            "leave it out",
        )
    if plan.attention is AttentionKind.XFORMERS:
        raise input_error("attention", "xformers", "has kernels for GPUs alone", "sdpa or eager")
    mixers = model.mixers()
    trains = isinstance(plan.workload, Training)
    if trains and any(isinstance(mixer, StateSpace) for mixer in mixers):
        raise input_error(
            "device",
            "cpu",
            "has no kernel for a selective scan, and Python over the tokens takes too long",
            "--device cuda",
        )
    if trains and any(isinstance(mixer, LinearAttention) for mixer in mixers):
        why = "convolves and multiplies linear attention otherwise than a GPU, which is not modelled"
        raise input_error("device", "cpu", why, "--device cuda; `memsheet trace --device cpu` runs it")
    if plan.attention is AttentionKind.SDPA and any(isinstance(mixer, LatentAttention) for mixer in mixers):
        why = "has no kernel on a processor for heads of two sizes, and its plain operations are not modelled"
        raise input_error("attention", "sdpa", why, "eager; `memsheet trace --device cpu` runs it")


def _stage_rank_bounds(plan: Plan, stage: int) -> tuple[int, int]:
    """First rank of a stage and the one after its last; plans of a stratum differ in size, so their sheet is
    that of rank ``stage``.
    """
    if not isinstance(plan.mesh.gpus, int):
        return stage, stage + 1
    size = plan.mesh.gpus // plan.mesh.pp
    return stage * size, (stage + 1) * size


def _paged_state_notes(size: Count) -> Iterator[str]:
    """States in shared pages: on the card while there is room, on the host otherwise, where they are counted
    (bitsandbytes 0.50.2 optim/optimizer.py:387, cudaMallocManaged).
    """
    if not (type(size) is int and size == 0):
        yield (
            "optimizer states in pages are counted on the host: they are on the card while there is room, "
            "and need not fit"
        )


def account_bare(parameters: int, plan: Plan, cluster: Cluster | None = None) -> Sheet:
    """The states of a bare parameter count on one rank; of one that serves, its weights."""
    from memsheet.formulas.bare_states import bare_host, bare_ranges, bare_states, bare_weights
    from memsheet.formulas.states.gradients import UNSYNCED, UNSYNCED_NOTE

    engine, trains = engine_of(plan), isinstance(plan.workload, Training)
    bags = bare_states(parameters, plan, engine) if trains else {Instant.LOAD: bare_weights(parameters, plan)}
    ranges = bare_ranges(parameters, plan, engine) if trains else {}
    allocated = {instant: bag.total for instant, bag in bags.items()}
    loaded = 0 if trains else allocated[Instant.LOAD]
    items = [*bag_items(bags, engine, ranges), *outside_tensors(plan, cluster, allocated, loaded=loaded)]
    ranks = tuple(range(1, int(plan.mesh.gpus)))
    if not trains:
        return Sheet(rank=0, same_as=ranks, items=tuple(items))
    host = bare_host(parameters, plan, engine)
    notes = (*host.notes, *((UNSYNCED_NOTE,) if UNSYNCED in ranges else ()))
    return Sheet(rank=0, same_as=ranks, items=tuple(items), host_bytes=host.bytes, notes=notes)
