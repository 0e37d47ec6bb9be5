"""vLLM on a rank: weights, what its profiling run peaked at, and a pool of blocks that takes the rest of its
fraction of the card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.arith import Count, minimum
from memsheet.engines.vllm.attention_buffers import ATTENTION, attention_item
from memsheet.engines.vllm.capacity import (
    Pool,
    cache_capacity_facts,
    cacheless_facts,
    shared_blocks,
)
from memsheet.engines.vllm.connector_buffers import CONNECTOR, connector_items, host_cache_bytes
from memsheet.engines.vllm.cut_blocks import refuses_cut_block
from memsheet.engines.vllm.facts import release_of
from memsheet.engines.vllm.given_pool import checked_bytes, pool_bytes, pool_flag
from memsheet.engines.vllm.graphs import driver_note, graph_items, largest_recorded
from memsheet.engines.vllm.loaded import WAYS, as_built, ways_of, with_packed_ends
from memsheet.engines.vllm.log_lines import start_up
from memsheet.engines.vllm.online import (
    STREAMED_SINCE,
    quantizes_online,
    unquantized_bytes,
    unquantized_items,
)
from memsheet.engines.vllm.options import vllm_options
from memsheet.engines.vllm.pages import CacheReach, Layout, kinds_of, layout_of, sequence_blocks
from memsheet.engines.vllm.profiled import makes_tokens, profile_peak_items, profile_run_peak
from memsheet.engines.vllm.releases import Release
from memsheet.engines.vllm.sampling import sampler_state_bytes
from memsheet.engines.vllm.sparse_buffers import index_items
from memsheet.engines.vllm.speculative import (
    ahead_of,
    draft_graphs,
    draft_items,
    drafted_peaks,
    release_for,
    speculative_facts,
)
from memsheet.engines.vllm.unpacked_latents import with_own_caches
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.runtime import outside_tensors
from memsheet.formulas.serving.capacity import check_shared
from memsheet.formulas.serving.cut_blocks import check_cut_blocks, cut_block_notes
from memsheet.formulas.serving.deepep import deepep_items
from memsheet.formulas.serving.dp_attention import group_plan
from memsheet.formulas.serving.drafts import with_draft
from memsheet.formulas.serving.kv_cache import caching_layers
from memsheet.formulas.serving.loaded import RESTS, Ways, loaded_items, loaded_tensors
from memsheet.formulas.serving.recorded_serving import recorded_serving_notes
from memsheet.formulas.serving.stages import every_stage, same_again
from memsheet.frozen import dataclass
from memsheet.late import late_functions
from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.hardware import version_of
from memsheet.plan.model import Attention, LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import NOTHING, Bytes, Cited, Component, FromCode, Instant, Item, Sheet, sum_byte_ranges
from memsheet.units import format_bytes

with late_functions(__name__):
    from memsheet.engines.vllm.deepep import fixed_buffer_bytes
    from memsheet.engines.vllm.host_weights import with_host_weights
    from memsheet.engines.vllm.lora import lora_facts, lora_host_bytes, lora_items, recorded_twice
    from memsheet.engines.vllm.lora_buffers import buffer_item
    from memsheet.engines.vllm.pictures import deepstack_items, layer_embedding_items


LOADED = (Instant.LOAD,)
RUNNING = (Instant.PREFILL, Instant.DECODE)
EVERY = (Instant.LOAD, *RUNNING)
AT_POOL = Cited(
    PAGED_SERVER_CODE, "v1/worker/gpu_worker.py determine_available_memory: what the fraction leaves"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A rank of one pipeline stage before its pool is made: its items, its pool's layout, the bytes that
    are for it, and those that the fraction leaves (None without a card).
    """

    items: tuple[Item, ...]
    layout: Layout
    available: Bytes | None
    left: Bytes | None
    peak: Bytes  # the engine's "peak activation"
    weights: Bytes


def items(spec: ModelSpec, plan: Plan, _: Engine, cluster: Cluster | None, stage: int) -> list[Item]:
    """Everything on a rank of a stage; all stages have as many blocks as the one that has room for the
    fewest.
    """
    spec, plan = with_own_caches(spec), group_plan(plan)
    if plan.serving.phase == "load":
        part = stage_model(spec, plan, stage)
        vendor = cluster.device.vendor if cluster else None
        check_cut_blocks(part, plan, vendor=vendor, refuses=refuses_cut_block)
        built, ways = (
            as_built(part, release_of(plan.engine_version)),
            _ways_on_card(plan, cluster),
        )
        tensors = with_packed_ends(loaded_tensors(built, plan, ways), plan)
        held = loaded_items(built, plan, tensors, LOADED, ways)
        if vllm_options(plan).host_weights_gib:
            held = with_host_weights(part, plan, held)[0]
        held += unquantized_items(built, plan, tensors)
        if plan.served_adapters is not None:
            held += lora_items(part, plan, release_of(plan.engine_version), LOADED)
        return [*held, *outside_tensors(plan, cluster, {Instant.LOAD: 0})]
    release = release_for(release_of(plan.engine_version), plan)
    stages = _stages(spec, plan, cluster)
    own = stages[stage]
    blocks = _kv_pool_blocks(stages, plan, release)
    pool = Bytes(
        *(own.layout.block_bytes * count for count in (blocks.high, blocks.value, blocks.low))
    )  # most where others take least
    if not own.layout.groups and not makes_tokens(spec):
        return list(own.items)
    return [*own.items, Item(Component.KV_CACHE, "pool", dict.fromkeys(RUNNING, pool), AT_POOL)]


@same_again
def _stages(spec: ModelSpec, plan: Plan, cluster: Cluster | None) -> tuple[Stage, ...]:
    release = release_for(release_of(plan.engine_version), plan)
    return every_stage(spec, plan, lambda part: _vllm_stage(part, plan, release, cluster))


def _ways_on_card(plan: Plan, cluster: Cluster | None) -> Ways:
    """How the plan's release loads on its cards."""
    version = plan.engine_version
    return ways_of(release_of(version), version, cluster.device if cluster else None)


def _vllm_stage(part: ModelSpec, plan: Plan, release: Release, cluster: Cluster | None) -> Stage:
    vendor = cluster.device.vendor if cluster else None
    check_cut_blocks(part, plan, vendor=vendor, refuses=refuses_cut_block)
    built = as_built(part, release)
    held = with_packed_ends(loaded_tensors(built, plan, WAYS), plan)
    loaded = loaded_items(built, plan, held, EVERY, _ways_on_card(plan, cluster))
    copied = list[Item]()
    if vllm_options(plan).host_weights_gib:
        loaded, copied = with_host_weights(part, plan, loaded)
    cached = with_draft(part, plan)
    loaded += [_attention_scale_item(cached), *draft_items(part, plan, release)]
    loaded += index_items(part, plan, loaded, EVERY)
    if part.towers:
        loaded += [*deepstack_items(part, plan), *layer_embedding_items(part, plan, release)]
    if plan.served_adapters is not None:
        loaded += lora_items(part, plan, release, EVERY)
    states = _sampler_states(part, plan, release)
    assert plan.serving.max_batched_tokens is not None
    assert plan.serving.max_sequences is not None
    peaks = {
        Instant.PREFILL: profile_run_peak(part, plan, release, plan.serving.max_batched_tokens),
        Instant.DECODE: profile_run_peak(
            part, plan, release, minimum(plan.serving.max_batched_tokens, plan.serving.max_sequences)
        ),
    }
    peaks = dict(drafted_peaks(part, plan, release, peaks))
    working = (*states, *copied, *profile_peak_items(peaks))
    outside = outside_tensors(
        plan, cluster, {Instant.LOAD: 0, **{when: peak.total.value for when, peak in peaks.items()}}
    )
    largest = largest_recorded(plan, release, cluster.device if cluster else None)
    graphs = graph_items(part, plan, release, largest, cluster)
    most = {
        Instant.PREFILL: plan.serving.max_batched_tokens,
        Instant.DECODE: minimum(plan.serving.max_batched_tokens, plan.serving.max_sequences),
    }
    if plan.served_adapters is not None:
        graphs = recorded_twice(graphs, plan, release)
        tokens = {when: (most[when], peak) for when, peak in peaks.items()}
        working = (*working, *buffer_item(part, plan, release, tokens, cluster))
    tensors = [
        *loaded,
        *working,
        *deepep_items(part, plan, fixed_buffer_bytes),
        *graphs,
        *draft_graphs(part, plan, release, largest, cluster),
        *outside,
        attention_item(part, plan, release, cluster.device if cluster else None, largest),
        *connector_items(part, plan),
    ]
    weights = sum_byte_ranges(
        item.at[Instant.LOAD]
        for item in loaded
        if item.component is not Component.ALLOCATOR_SLACK or item.path == RESTS
    )
    workspace = sum_byte_ranges(item.largest for item in outside if item.component is Component.WORKSPACES)
    layout = layout_of(kinds_of(cached, plan, release), release)
    left = _available_kv_cache_bytes(plan, release, cluster, tensors) if cluster else None
    return Stage(
        items=(*tensors, *unquantized_items(built, plan, held)),
        layout=layout,
        weights=weights,
        peak=peaks[Instant.PREFILL].total + workspace + sum_byte_ranges(item.largest for item in states),
        available=pool_bytes(plan, layout, left),
        left=left,
    )


ALLOCATED = 512
"""The least a tensor takes (kMinBlockSize, pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp)."""


def _attention_scale_item(part: ModelSpec) -> Item:
    """Scalars of each attention layer, which a cache in eight bits needs: seven, in newer releases four."""
    layers = sum(
        count for _, mixer, count in caching_layers(part) if isinstance(mixer, Attention | LatentAttention)
    )
    source = FromCode("vllm-project/vllm", "v0.11.0", "vllm/attention/layer.py", 140)
    return Item(
        Component.BUFFERS,
        "attn.scales",
        dict.fromkeys(EVERY, Bytes(4 * ALLOCATED * layers, 7 * ALLOCATED * layers, 7 * ALLOCATED * layers)),
        source,
    )


def _sampler_states(part: ModelSpec, plan: Plan, release: Release) -> list[Item]:
    counts = release.sampler_of(part.model_type).counts and makes_tokens(part)
    if not counts or part.head.kind == "none":
        return []
    assert plan.serving.max_sequences is not None
    size = Bytes.exact(sampler_state_bytes(plan.serving.max_sequences, part.head.width))
    return [
        Item(
            Component.BUFFERS,
            "sampler_states",
            dict.fromkeys(RUNNING, size),
            Cited(PAGED_SERVER_CODE, "v1/worker/gpu/sample/penalties.py:43"),
        )
    ]


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "gpu_worker.py: fraction · memory - weights - peak of the profiling run - what others than torch "
        "took since (or in all)"
    ),
)
def _available_kv_cache_bytes(plan: Plan, release: Release, cluster: Cluster, tensors: list[Item]) -> Bytes:
    """Bytes for the pool: the low end where everything else is high, negative where that alone is more than
    the fraction. Segments' gaps are no part of the engine's sum.
    """
    device = cluster.device
    assert plan.cache.memory_fraction is not None
    low, value, high = (
        int(size * plan.cache.memory_fraction)
        for size in (device.framework_low_bytes, device.framework_bytes, device.framework_high_bytes)
    )
    others = sum_byte_ranges(
        size for item in tensors if (size := _profiled_item_bytes(item, release)) is not None
    )
    return Bytes(low - others.high, value - others.value, high - others.low)


LOADED_GAPS = ("weights", "lora")
"""Segments that are there when the run is over; those of the run itself are given back before its end."""
LOADED_LATER = 2
"""Of the context at its high end, a half: kernels that are loaded after the first look at the card, which
that end allows as much as an idle process (catalog/overheads.toml).
"""


def _profiled_item_bytes(item: Item, release: Release) -> Bytes | None:
    """What the engine's sum takes of an item. The context is there before its first look at the card, and
    grows by what is loaded later.
    """
    size = item.at.get(Instant.PREFILL, NOTHING)
    match item.component:
        case Component.ALLOCATOR_SLACK:
            counted = item.path == RESTS or (release.counts_gaps and item.path in LOADED_GAPS)
            return size if counted else None
        case Component.WORKSPACES if item.path in (ATTENTION, CONNECTOR):
            return None  # made with the pool, after its size was settled
        case Component.CUDA_GRAPHS if not release.counts_graphs:
            return None
        case Component.CONTEXT if item.path == "cuda" and not release.counts_context:
            return Bytes(0, size.value - size.low, size.high // LOADED_LATER)
        case Component.CONTEXT if item.path == "cuda":
            return Bytes(
                size.low, size.value, 2 * size.high
            )  # all that is used on the card, by a second process too
        case _:
            return size


def _kv_pool_blocks(stages: tuple[Stage, ...], plan: Plan, release: Release) -> Bytes:
    """Blocks of the pool: of the stage with the fewest; without a card as many as the sequences that are
    asked for take.
    """
    sizes = [(stage.available, stage.layout) for stage in stages if stage.layout.block_bytes]
    if not sizes:
        return NOTHING
    if any(available is None for available, _ in sizes):
        return Bytes.exact(_requested_kv_blocks(sizes[0][1], plan, release))
    ends = [
        tuple(max(0, end // layout.block_bytes) for end in (room.low, room.value, room.high))
        for room, layout in sizes
        if room is not None
    ]
    return Bytes(*(min(end[place] for end in ends) for place in range(3)))


def _requested_kv_blocks(layout: Layout, plan: Plan, release: Release) -> Count:
    length, sequences = plan.serving.max_model_len or 1, plan.serving.cached_sequences
    return sequences * sequence_blocks(layout, length, release)


def _stages_and_kv_pool(
    spec: ModelSpec, plan: Plan, cluster: Cluster | None
) -> tuple[tuple[Stage, ...], Pool]:
    release = release_for(release_of(plan.engine_version), plan)
    stages = _stages(spec, plan, cluster)
    blocks = _kv_pool_blocks(stages, plan, release)
    layout = stages[0].layout
    shared = shared_blocks(layout, plan.serving.shared_prefix_tokens)
    _check_prefix(plan, layout, release)
    return stages, Pool(
        layout=layout,
        blocks=blocks,
        release=release,
        in_flight=_in_flight(plan, release),
        shared_blocks=shared,
        ahead=ahead_of(plan),
        longest=int(plan.serving.max_model_len or 1),
    )


def _check_prefix(plan: Plan, layout: Layout, release: Release) -> None:
    """Prefixes are cached where nobody says, but by V0 (v0.7.3 engine/arg_utils.py:220)."""
    states = any(group.kept is CacheReach.STATE for group in layout.groups)
    why = (
        "what recurrent states keep of a prefix is not modelled"
        if states
        else f"prefix caching is off in {release.tag}"
    )
    check_shared(plan, caches=not states and release.since >= (0, 8), why=why)


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 config/lora.py:42: adapters to copy from; config/offload.py; config/cache.py:383",
)
def host_bytes(spec: ModelSpec, plan: Plan, _: Cluster | None, stage: int) -> int:
    """Adapters, blocks of the cache and weights that a rank keeps on the host, in bytes."""
    kept = lora_host_bytes(spec, plan) if plan.served_adapters is not None else 0
    kept += host_cache_bytes(plan)
    if not vllm_options(plan).host_weights_gib:
        return kept
    plan, release = group_plan(plan), release_of(plan.engine_version)
    part = stage_model(spec, plan, stage)
    built, ways = as_built(part, release), ways_of(release)
    held = with_packed_ends(loaded_tensors(built, plan, ways), plan)
    loaded = loaded_items(built, plan, held, LOADED, ways)
    whole, left = (
        sum_byte_ranges(item.largest for item in items).value
        for items in (loaded, with_host_weights(part, plan, loaded)[0])
    )
    return kept + int(whole - left)


def notes(spec: ModelSpec, plan: Plan, cluster: Cluster | None) -> tuple[str, ...]:
    """What to know of a plan besides its bytes."""
    vendor = cluster.device.vendor if cluster else None
    cut = cut_block_notes(spec, group_plan(plan), vendor, refuses_cut_block)
    old = driver_note(plan, release_of(plan.engine_version), cluster.device if cluster else None)
    return (*cut, *recorded_serving_notes(spec, plan), *old, *_online_notes(spec, group_plan(plan)))


def _online_notes(spec: ModelSpec, plan: Plan) -> Iterator[str]:
    """That older releases hold weights whole before they are in eight bits."""
    if not quantizes_online(spec, plan) or version_of(plan.engine_version) < STREAMED_SINCE:
        return
    release, since = release_of(plan.engine_version), ".".join(map(str, STREAMED_SINCE))
    built, ways = as_built(stage_model(spec, plan, 0), release), ways_of(release)
    size = format_bytes(int(unquantized_bytes(plan, loaded_tensors(built, plan, ways)).value))
    yield (
        f"weights are put into fp8 as they are read since vllm {since}; a release before it loads all of "
        f"them first, {size} a GPU more"
    )


def room(spec: ModelSpec, plan: Plan, cluster: Cluster | None) -> Callable[[int], Bytes]:
    """How many sequences of a length the pool holds; without one as many as may be started."""
    spec, plan = with_own_caches(spec), group_plan(plan)
    if not makes_tokens(spec):
        return lambda _: Bytes.exact(int(plan.serving.max_sequences or 1))
    return _stages_and_kv_pool(spec, plan, cluster)[1].sequences


def facts(spec: ModelSpec, plan: Plan, cluster: Cluster | None, _: tuple[Sheet, ...]) -> Mapping[str, Any]:
    """What a serving engineer asks: blocks, tokens, sequences at several lengths, and the engine's own
    start-up lines.
    """
    spec, plan = with_own_caches(spec), group_plan(plan)
    release = release_of(plan.engine_version)
    if plan.serving.phase == "load":
        return {}
    if not makes_tokens(spec):
        return {"read": f"{plan.engine} {release.tag}", **cacheless_facts(plan)}
    stages, pool = _stages_and_kv_pool(spec, plan, cluster)
    found = {
        "read": f"{plan.engine} {release.tag}",
        **cache_capacity_facts(with_draft(spec, plan), plan, pool),
    }
    if plan.served_adapters is not None:
        found["lora"] = lora_facts(spec, plan, lora_items(stage_model(spec, plan, 0), plan, release, LOADED))
    if plan.speculative is not None:
        found["speculative"] = speculative_facts(
            stage_model(spec, plan, plan.mesh.pp - 1), plan, release, plan.precision.compute
        )
    if cluster is None:
        return found
    worst = max(stages, key=lambda stage: _kv_shortfall_bytes(stage, plan, pool).value)
    found["short_bytes"] = _kv_shortfall_bytes(worst, plan, pool)
    found["start_up"] = start_up(plan, pool, stages[0].weights, stages[0].left or NOTHING)
    found["budget"] = _memory_budget_facts(plan, cluster, worst)
    return found


def _in_flight(plan: Plan, release: Release) -> int:
    """Tokens that may be scheduled and not settled; a pipeline has a batch in each stage."""
    batches = plan.mesh.pp + 1 if release.in_flight > 1 else 1
    return batches * int(plan.serving.max_batched_tokens or 1)


def _kv_shortfall_bytes(stage: Stage, plan: Plan, pool: Pool) -> Bytes:
    """Bytes that a stage's pool lacks for one sequence of max_model_len, without which the engine does not
    start; negative where it has them.
    """
    needed = (
        sequence_blocks(stage.layout, plan.serving.max_model_len or 1, pool.release, pool.in_flight)
        * stage.layout.block_bytes
    )
    room = checked_bytes(plan, pool.release, stage.layout, stage.available or NOTHING, stage.left)
    return Bytes(needed - room.high, needed - room.value, needed - room.low)


def _memory_budget_facts(plan: Plan, cluster: Cluster, stage: Stage) -> Mapping[str, Any]:
    """The engine's own sum, in its own words. ``pool_flag``: what sizes the pool in the fraction's place."""
    sized = {"pool_flag": pool_flag(plan)} if pool_flag(plan) else {}
    return {
        **sized,
        "memory_fraction": plan.cache.memory_fraction, "requested_bytes": int(cluster.device.framework_bytes * (plan.cache.memory_fraction or 0)),
        "weights": stage.weights, "peak_activation": stage.peak, "kv_cache": stage.available,
    }  # fmt: skip
