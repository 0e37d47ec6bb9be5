"""SGLang on a rank: weights and a pool of tokens share a fraction of what was free before loading; all else
lives in the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.arith import given_or, minimum, rounded_down
from memsheet.engines.sglang.attention_groups import grouped_graphs, grouped_tensors
from memsheet.engines.sglang.attention_state import attention_items
from memsheet.engines.sglang.deepep import both_modes_bytes
from memsheet.engines.sglang.facts import (
    ASKED_SINCE,
    HALVED_SINCE,
    MOST_REQUESTS,
    REQUESTS,
    WINDOW_SHARE,
    graph_sequences,
    release_of,
)
from memsheet.engines.sglang.free_memory import (
    bytes_left_for_tokens,
    elementwise_larger,
    free_before_loading_bytes,
    working_memory_bytes,
)
from memsheet.engines.sglang.graphs import graph_items, kept_logits_items, recorded_sizes
from memsheet.engines.sglang.loaded import WAYS, refuses_cut_block
from memsheet.engines.sglang.log_lines import sglang_log_lines
from memsheet.engines.sglang.lora import (
    lora_branch_items,
    lora_pool_facts,
    lora_pool_host_bytes,
    lora_pool_items,
)
from memsheet.engines.sglang.options import sglang_options
from memsheet.engines.sglang.own_modules import as_built
from memsheet.engines.sglang.pool import Cell, cell_with_draft_count, draft_cell, pool_bytes, table_bytes
from memsheet.engines.sglang.prefix import prefixed_layer
from memsheet.engines.sglang.releases import Release, version_of
from memsheet.engines.sglang.speculative import (
    ahead_tokens,
    draft_worker_items,
    loaded_first,
    table_tokens,
    worker_facts,
)
from memsheet.engines.sglang.stage import Stage
from memsheet.engines.sglang.states import keeping_of, slot_bytes, states_of
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.runtime import outside_tensors
from memsheet.formulas.serving.capacity import check_shared, concurrency_facts, lengths_of
from memsheet.formulas.serving.cut_blocks import check_cut_blocks, cut_block_notes
from memsheet.formulas.serving.deepep import deepep_items
from memsheet.formulas.serving.dp_attention import group_plan
from memsheet.formulas.serving.drafts import prefix_draft_items, verified_tokens, with_draft
from memsheet.formulas.serving.loaded import loaded_items
from memsheet.formulas.serving.recorded_serving import recorded_serving_notes
from memsheet.formulas.serving.sparse_index import served_bytes_per_token
from memsheet.formulas.serving.stages import every_stage, same_again
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import SGLANG, formula
from memsheet.sheet import NOTHING, Bytes, Cited, Component, Instant, Item, Sheet, sum_byte_ranges
from memsheet.units import GIB

RUNNING = (Instant.PREFILL, Instant.DECODE)
EVERY = (Instant.LOAD, *RUNNING)
AT_POOL = Cited(
    SGLANG, "v0.5.23 mem_cache/kv_cache_configurator.py:2990, model_executor/pool_configurator.py:637"
)
AT_RUN = Cited(SGLANG, "v0.5.23 arg_groups/memory_hook.py:61: activations live in what the fraction leaves")
AT_TABLE = Cited(SGLANG, "v0.4.3.post4 mem_cache/memory_pool.py:65 ReqToTokenPool")


def items(spec: ModelSpec, plan: Plan, _: Engine, cluster: Cluster | None, stage: int) -> list[Item]:
    """Everything on a rank of a stage; all stages have as many tokens as the one that has room for the
    fewest.
    """
    if plan.serving.phase == "load":
        part = stage_model(as_built(spec), plan, stage)
        vendor = cluster.device.vendor if cluster else None
        check_cut_blocks(part, plan, vendor=vendor, refuses=refuses_cut_block)
        kept = loaded_items(part, group_plan(plan), grouped_tensors(part, plan), (Instant.LOAD,), WAYS)
        kept += lora_pool_items(part, plan, 0, (Instant.LOAD,))
        return [*kept, *outside_tensors(plan, cluster, {Instant.LOAD: 0})]
    stages = _stages(spec, plan, cluster)
    plan = group_plan(plan)
    own, tokens = stages[stage], _token_pool_tokens(stages, plan)
    table = Bytes.exact(table_bytes(_table_requests(plan, tokens.value, stages), table_tokens(plan)))
    return [
        *own.items,
        *_draft_pool(own, plan, tokens),
        *_pool_items(own, plan, tokens),
        Item(Component.BUFFERS, "req_to_token_pool", dict.fromkeys(RUNNING, table), AT_TABLE),
    ]


def _pool_items(own: Stage, plan: Plan, tokens: Bytes) -> list[Item]:
    """The model's pools of tokens and of states, most where others take least."""
    ends = (tokens.high, tokens.value, tokens.low)
    sizes = Bytes(*(pool_bytes(own.cell, count, plan.cache.page_tokens or 1) for count in ends))
    states = Bytes(own.states.bytes.high, own.states.bytes.value, own.states.bytes.low)
    found = {"mamba_pool": states, "token_to_kv_pool": sizes}
    return [
        Item(Component.KV_CACHE, path, dict.fromkeys(RUNNING, size), AT_POOL)
        for path, size in found.items()
        if size is sizes or own.states.bytes.high
    ]


def _draft_pool(own: Stage, plan: Plan, tokens: Bytes) -> list[Item]:
    """The pool of who drafts, as long as the model's."""
    if not (own.draft.whole or own.draft.window):
        return []
    size = Bytes(
        *(
            pool_bytes(own.draft, count, plan.cache.page_tokens or 1)
            for count in (tokens.high, tokens.value, tokens.low)
        )
    )
    return prefix_draft_items(
        [Item(Component.KV_CACHE, "token_to_kv_pool", dict.fromkeys(RUNNING, size), AT_POOL)]
    )


@same_again
def _stages(spec: ModelSpec, plan: Plan, cluster: Cluster | None) -> tuple[Stage, ...]:
    release = release_of(plan.engine_version)
    whole = as_built(spec)
    return every_stage(whole, plan, lambda part: _sglang_stage(part, plan, release, cluster))


def _sglang_stage(part: ModelSpec, plan: Plan, release: Release, cluster: Cluster | None) -> Stage:
    vendor = cluster.device.vendor if cluster else None
    check_cut_blocks(part, plan, vendor=vendor, refuses=refuses_cut_block)
    group = group_plan(plan)
    assert group.serving.max_batched_tokens is not None
    assert group.serving.max_sequences is not None
    loaded = loaded_items(part, group, grouped_tensors(part, plan), EVERY, WAYS)
    largest = minimum(
        sglang_options(plan).graph_sequences
        or graph_sequences(release, cluster.device if cluster else None, int(plan.mesh.tp)),
        group.serving.max_sequences,
    )
    working = {
        Instant.PREFILL: elementwise_larger(
            working_memory_bytes(part, plan, group.serving.max_batched_tokens, largest),
            prefixed_layer(part, group, release),
        ),
        Instant.DECODE: working_memory_bytes(
            part, plan, largest * verified_tokens(plan), largest * verified_tokens(plan)
        ),
    }
    outside = outside_tensors(
        plan, cluster, {Instant.LOAD: 0, **{when: size.value for when, size in working.items()}}
    )
    weights = sum_byte_ranges(item.at[Instant.LOAD] for item in loaded)
    adapters = lora_pool_items(part, plan, largest, EVERY)
    branches = lora_branch_items(
        part, plan, {Instant.PREFILL: group.serving.max_batched_tokens, Instant.DECODE: largest}
    )
    free = free_before_loading_bytes(cluster, outside) if cluster else NOTHING
    drafts = draft_worker_items(part, plan, largest)
    first = loaded_first(plan, drafts)
    room = (
        _token_pool_room_bytes(
            plan, free, weights + first + sum_byte_ranges(item.at[Instant.LOAD] for item in adapters)
        )
        if cluster
        else None
    )
    states = states_of(slot_bytes(part, group), room, keeping_of(part, group, release))
    device = cluster.device if cluster else None
    sizes = recorded_sizes(int(largest), drafts=plan.speculative is not None)
    graphs = (
        *graph_items(part, group, release, largest, device, int(plan.mesh.attn_dp)),
        *kept_logits_items(part, plan, largest),
        *attention_items(part, group, release, largest * verified_tokens(plan), sizes, device),
        *grouped_graphs(plan, largest),
        *deepep_items(part, plan, both_modes_bytes),
    )
    return Stage(
        items=(
            *loaded,
            *adapters,
            *branches,
            *drafts,
            Item(Component.TEMPORARIES, "widest_layer", working, AT_RUN),
            *graphs,
            *outside,
        ),
        cell=cell_with_draft_count(part, group, release),
        weights=weights,
        free=free,
        states=states,
        room=bytes_left_for_tokens(room, states),
        draft=draft_cell(part, group, release),
        largest=largest,
    )


@formula(
    cites=SGLANG,
    at=(
        "v0.4.3.post4 model_executor/model_runner.py:668: free now less (1 - mem_fraction_static) of what "
        "was free before loading"
    ),
)
def _token_pool_room_bytes(plan: Plan, free: Bytes, weights: Bytes) -> Bytes:
    """Bytes for the pool. Loading is seen by the driver, so the gaps between segments count."""
    assert plan.cache.memory_fraction is not None
    low, value, high = (
        rounded_down(size * plan.cache.memory_fraction) for size in (free.low, free.value, free.high)
    )
    return Bytes(low - weights.high, value - weights.value, high - weights.low)


def _token_pool_tokens(stages: tuple[Stage, ...], plan: Plan) -> Bytes:
    """Tokens of the pool, whole pages of them: of the stage with the fewest; without a card those that are
    asked for.
    """
    page, asked = (
        plan.cache.page_tokens or 1,
        plan.serving.cached_sequences * given_or(plan.serving.max_model_len, 1),
    )
    most = sglang_options(plan).pool_tokens
    rooms = [(stage.room, stage.cell.counted) for stage in stages if stage.cell.counted]
    if not rooms and any(stage.states.bytes.high for stage in stages):
        alone = most or given_or(plan.serving.max_model_len, 1)
        return Bytes.exact(alone // page * page)  # v0.5.23 model_executor/pool_configurator.py:246
    if not rooms or any(room is None for room, _ in rooms):
        return Bytes.exact(minimum(asked, most) if most else asked)
    ahead = int(ahead_tokens(plan))
    ends = [
        [
            max(0, int(end // cell) + ahead) // page * page if end >= cell else 0
            for end in (room.low, room.value, room.high)
        ]
        for room, cell in rooms
        if room is not None
    ]
    whole = (min(end[place] for end in ends) for place in range(3))
    return Bytes(*(min(end, most // page * page) if most else end for end in whole))


def _table_requests(plan: Plan, tokens: int, stages: tuple[Stage, ...]) -> int:
    """Requests that the table has rows for: as the plan says, as far as the release takes it at its word;
    else by the tokens, at least and at most so many. Never more than there are states for.
    """
    number = version_of(plan.engine_version)
    usual = min(max(tokens * 512 // given_or(plan.serving.max_model_len, 1), REQUESTS), MOST_REQUESTS)
    halved = min(usual, tokens // 2) if number >= HALVED_SINCE else usual
    asked = int(plan.serving.max_sequences or MOST_REQUESTS)
    found = halved
    if asked != MOST_REQUESTS:
        most = tokens // 2 if number >= ASKED_SINCE else usual if number >= HALVED_SINCE else asked
        found = min(asked, most)
    slots = [stage.states.requests.value for stage in stages if stage.states.bytes.high]
    return max(1, min([found, *slots]))


def _max_running_requests(plan: Plan, tokens: int, stages: tuple[Stage, ...]) -> int:
    """Requests that may run: no more than every second token is one, where nobody says (v0.4.3.post4
    managers/tp_worker.py:110).
    """
    rows = _table_requests(plan, tokens, stages)
    return rows if plan.serving.max_sequences != MOST_REQUESTS else max(1, min(rows, tokens // 2))


def _stages_and_token_pool(
    spec: ModelSpec, plan: Plan, cluster: Cluster | None
) -> tuple[tuple[Stage, ...], Bytes, Cell]:
    stages = _stages(spec, plan, cluster)
    return (
        stages,
        _token_pool_tokens(stages, group_plan(plan)),
        max((stage.cell for stage in stages), key=lambda cell: cell.counted),
    )


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 lora/lora_manager.py:919: adapters to copy from; mem_cache/pool_host/base.py:222: a pool on "
        "the host of so many bytes, or so many times as long as the GPU's"
    ),
)
def host_bytes(spec: ModelSpec, plan: Plan, cluster: Cluster | None, stage: int) -> int:
    """Adapters and cache that a rank keeps on the host."""
    own, adapters = sglang_options(plan), lora_pool_host_bytes(spec, plan)
    if own.host_kv_gib:
        return adapters + int(own.host_kv_gib * GIB)
    if not own.host_kv_ratio or plan.serving.phase == "load":
        return adapters
    stages, group = _stages(spec, plan, cluster), group_plan(plan)
    pools = _pool_items(stages[stage], group, _token_pool_tokens(stages, group))
    return adapters + int(own.host_kv_ratio * sum(int(item.largest.value) for item in pools))


def room(spec: ModelSpec, plan: Plan, cluster: Cluster | None) -> Callable[[int], Bytes]:
    """How many sequences of a length the pool holds."""
    stages, tokens, cell = _stages_and_token_pool(spec, plan, cluster)
    plan = group_plan(plan)
    page = plan.cache.page_tokens or 1
    states = any(stage.states.bytes.high for stage in stages)
    check_shared(plan, caches=not states, why="what recurrent states keep of a prefix is not modelled")
    shared = plan.serving.shared_prefix_tokens // page * page
    ends = (tokens.low, tokens.value, tokens.high)
    return lambda length: _cap_by_state_slots(
        Bytes(*(_pool_sequences(cell, count, length, page, shared) for count in ends)), stages
    )


def _cap_by_state_slots(held: Bytes, stages: tuple[Stage, ...]) -> Bytes:
    """Never more sequences than there are states for."""
    for limit in (stage.states.requests for stage in stages if stage.states.bytes.high):
        held = Bytes(min(held.low, limit.low), min(held.value, limit.value), min(held.high, limit.high))
    return held


def notes(spec: ModelSpec, plan: Plan, cluster: Cluster | None) -> tuple[str, ...]:
    """What to know of a plan besides its bytes."""
    vendor = cluster.device.vendor if cluster else None
    cut = cut_block_notes(spec, plan, vendor, refuses_cut_block)
    return (*cut, *recorded_serving_notes(spec, plan))


def facts(spec: ModelSpec, plan: Plan, cluster: Cluster | None, _: tuple[Sheet, ...]) -> Mapping[str, Any]:
    """What a serving engineer asks: tokens, sequences at several lengths, and the engine's own start-up
    lines.
    """
    if plan.serving.phase == "load":
        return {}
    release, page, full = (
        release_of(plan.engine_version),
        plan.cache.page_tokens or 1,
        given_or(plan.serving.max_model_len, 1),
    )
    stages, tokens, cell = _stages_and_token_pool(spec, plan, cluster)
    sequences = room(spec, plan, cluster)
    plan = group_plan(plan)
    assert plan.cache.kv_dtype is not None
    per_token = cell.whole + cell.window + stages[-1].draft.whole + stages[-1].draft.window
    spec = with_draft(as_built(spec), plan)
    shared = (
        {"shared_prefix_bytes_per_rank": plan.serving.shared_prefix_tokens // page * page * cell.whole}
        if plan.serving.shared_prefix_tokens
        else {}
    )
    found: dict[str, Any] = {
        **shared, "read": f"sglang {release.tag}", "kv_bytes_per_token": served_bytes_per_token(spec, plan.cache.kv_dtype), "kv_bytes_per_token_per_rank": per_token,
        "kv_bytes_per_sequence": served_bytes_per_token(spec, plan.cache.kv_dtype) * full, "kv_tokens": tokens.value, "kv_tokens_low": tokens.low,
        "kv_tokens_high": tokens.high, "pages": tokens.value // page, "page_tokens": page,
        "max_sequences": {str(n): sequences(n).value for n in lengths_of(plan)},
        "capacity": concurrency_facts(replace(plan, workload=replace(plan.serving, max_sequences=_max_running_requests(plan, tokens.value, stages))), sequences, tokens.value // full, (page - 1) * per_token // 2),
    }  # fmt: skip
    if plan.served_adapters is not None:
        found["lora"] = lora_pool_facts(spec, plan, lora_pool_items(spec, plan, 0, (Instant.LOAD,)))
    if plan.speculative is not None:
        found["speculative"] = worker_facts(
            [*stages[-1].items, *_draft_pool(stages[-1], plan, tokens)], spec, plan, stages[-1].largest
        )
    if cluster is None:
        return found
    own = stages[0]
    left = min((stage.room or NOTHING for stage in stages), key=lambda size: size.value)
    one = int(cell.counted * page)
    lacks = [stage.states.lacks for stage in stages]
    found["short_bytes"] = Bytes(
        *(
            max(one - rest, *(getattr(size, end) for size in lacks))
            for end, rest in (("low", left.high), ("value", left.value), ("high", left.low))
        )
    )
    found["start_up"] = sglang_log_lines(
        plan, release, own, tokens, _max_running_requests(plan, tokens.value, stages)
    )
    found["budget"] = {
        "memory_fraction": plan.cache.memory_fraction,
        "free_before_loading": own.free,
        "weights": own.weights,
        "kv_cache": left,
        "needs_tokens": page,
    }
    if not cell.counted and own.states.bytes.high:
        found["warning"] = (
            f"without attention it counts {tokens.value:,} tokens over all requests at once: "
            "--max-total-tokens raises that"
        )
    if tokens.value < full:
        found["warning"] = f"requests end at {tokens.value:,} tokens, for the pool has no more"
    return found


@formula(
    cites=SGLANG,
    at=(
        "v0.4.3.post4 mem_cache/radix_cache.py match_prefix: whole pages of a prefix; what windows keep is "
        "not counted as shared"
    ),
    counts="int",
)
def _pool_sequences(cell: Cell, tokens: int, length: int, page: int, shared: int = 0) -> int:
    """Sequences of a length in a pool of so many tokens, and in that of the windows. ``shared``: tokens of
    all prompts, kept once.
    """
    paged = -(-length // page) * page
    shared = min(shared, paged - page)
    whole = max(0, (tokens - shared) // (paged - shared))
    if not cell.window:
        return whole
    windows = int(tokens * WINDOW_SHARE) // page * page if cell.whole else tokens
    return min(whole if cell.whole else windows, windows // min(paged, cell.reach + page))
