"""SGLang on a rank: weights and a pool of tokens share a fraction of what was free before loading; all else lives in the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from memsheet.arith import Count, maximum, minimum
from memsheet.engines.sglang import MOST_REQUESTS, REQUESTS, WINDOW_SHARE, Release, graph_sequences, release_of
from memsheet.errors import refuse
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.runtime import outside_tensors
from memsheet.formulas.serving.capacity import held, lengths_of
from memsheet.formulas.serving.graphs import graph_items
from memsheet.formulas.serving.kv_cache import bytes_per_token, caching_layers, kv_elements_per_token
from memsheet.formulas.serving.loaded import SGLANG_WAYS, loaded_items, loaded_tensors
from memsheet.formulas.serving.profiled import layer_bytes
from memsheet.formulas.serving.sampling import masked_sampler_bytes
from memsheet.formulas.serving.sglang_states import SLOTS, States, slot_bytes, states_of
from memsheet.frozen import dataclass
from memsheet.references import SGLANG, formula
from memsheet.sheet import NOTHING, Bytes, Cited, Component, Instant, Item, Sheet, total
from memsheet.spec.device import Cluster
from memsheet.spec.dtypes import INT32
from memsheet.spec.engine import Engine
from memsheet.spec.model import Attention, CrossAttention, LatentAttention, ModelSpec, Recurrent
from memsheet.spec.plan import Plan
from memsheet.units import GIB

RUNNING = (Instant.PREFILL, Instant.DECODE)
EVERY = (Instant.LOAD, *RUNNING)
AT_POOL = Cited(SGLANG, "v0.5.23 mem_cache/kv_cache_configurator.py:2990, model_executor/pool_configurator.py:637")
AT_RUN = Cited(SGLANG, "v0.5.23 arg_groups/memory_hook.py:61: activations live in what the fraction leaves")
AT_TABLE = Cited(SGLANG, "v0.4.3.post4 mem_cache/memory_pool.py:65 ReqToTokenPool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Bytes of a token on one rank: in layers that keep every token, and in those with a pool for their window."""

    whole: Count
    window: Count
    reach: int  # tokens of the window

    @property
    def counted(self) -> float:
        """What the engine divides the room by: a token of the first and its share of the second."""
        return self.whole + WINDOW_SHARE * self.window if self.whole else self.window


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A rank of a pipeline stage before its pool is made. ``room``: bytes for the pool (None without a card); ``free``: what was free before
    loading.
    """

    items: tuple[Item, ...]
    cell: Cell
    states: States
    room: Bytes | None
    free: Bytes
    weights: Bytes


def items(spec: ModelSpec, plan: Plan, _: Engine, cluster: Cluster | None, stage: int) -> list[Item]:
    """Everything on a rank of a stage; all stages have as many tokens as the one that has room for the fewest."""
    if plan.phase == "load":
        part = stage_model(spec, plan, stage)
        kept = loaded_items(part, plan, loaded_tensors(part, plan), (Instant.LOAD,), SGLANG_WAYS)
        return [*kept, *outside_tensors(plan, cluster, {Instant.LOAD: 0})]
    release = release_of(plan.engine_version)
    stages = [_stage(stage_model(spec, plan, number), plan, release, cluster) for number in range(plan.mesh.pp)]
    own, tokens = stages[stage], _tokens(stages, plan)
    sizes = Bytes(
        *(pool_bytes(own.cell, count, plan.page_tokens or 1) for count in (tokens.high, tokens.value, tokens.low))
    )  # most where others take least
    states = own.states.bytes
    table = Bytes.exact(table_bytes(_requests(plan, tokens.value, stages), plan.max_model_len or 1))
    kept = (
        [Item(Component.KV_CACHE, "mamba_pool", dict.fromkeys(RUNNING, Bytes(states.high, states.value, states.low)), AT_POOL)]
        if states.high
        else []
    )
    return [
        *own.items,
        *kept,
        Item(Component.KV_CACHE, "token_to_kv_pool", dict.fromkeys(RUNNING, sizes), AT_POOL),
        Item(Component.BUFFERS, "req_to_token_pool", dict.fromkeys(RUNNING, table), AT_TABLE),
    ]


def _stage(part: ModelSpec, plan: Plan, release: Release, cluster: Cluster | None) -> Stage:
    assert plan.max_batched_tokens is not None
    assert plan.max_sequences is not None
    loaded = loaded_items(part, plan, loaded_tensors(part, plan), EVERY, SGLANG_WAYS)
    largest = minimum(graph_sequences(release, cluster.device if cluster else None, int(plan.mesh.tp)), plan.max_sequences)
    working = {
        Instant.PREFILL: _working(part, plan, plan.max_batched_tokens, largest),
        Instant.DECODE: _working(part, plan, largest, largest),
    }
    outside = outside_tensors(plan, cluster, {Instant.LOAD: 0, **{when: size.value for when, size in working.items()}})
    weights = total(item.at[Instant.LOAD] for item in loaded)
    free = _free(cluster, outside) if cluster else NOTHING
    room = _room(plan, free, weights) if cluster else None
    states = states_of(slot_bytes(part, plan), room)
    return Stage(
        items=(*loaded, Item(Component.TEMPORARIES, "widest_layer", working, AT_RUN), *graph_items(plan, largest), *outside),
        cell=cell_of(part, plan, release), weights=weights, free=free, states=states, room=_left(room, states),
    )  # fmt: skip


def _left(room: Bytes | None, states: States) -> Bytes | None:
    """What the states leave for tokens."""
    taken = states.bytes
    return None if room is None else Bytes(room.low - taken.low, room.value - taken.value, room.high - taken.high)


def _working(part: ModelSpec, plan: Plan, tokens: Count, sequences: Count) -> Bytes:
    """The widest layer over a chunk, or the logits of a batch: nothing is sorted, and only the last position of a prompt has logits."""
    layer = layer_bytes(part, plan, tokens)
    if part.head.kind == "none":
        return layer
    drawn = masked_sampler_bytes(sequences, part.head.width, plan.precision.compute)
    return Bytes(layer.low, maximum(layer.value, drawn), maximum(layer.high, drawn))


def _free(cluster: Cluster, outside: list[Item]) -> Bytes:
    """Free before loading: the context of an idle process is there, and a communicator that has summed once (v0.4.3.post4
    distributed/device_communicators/pynccl.py:112), whose buffers are in the host's memory where cards have no link of their own.
    """
    device = cluster.device
    context = next(item.largest for item in outside if item.path == "cuda")
    nccl = next((item.largest for item in outside if item.path == "nccl"), NOTHING)
    linked = "NVLink" in (device.scale_up_kind or "") or cluster.links.switched
    return Bytes(
        device.framework_low_bytes - context.value - (nccl.high if linked else nccl.value), device.framework_bytes - context.low - (nccl.value if linked else nccl.low),
        device.framework_high_bytes - context.low - nccl.low,
    )  # fmt: skip


@formula(
    cites=SGLANG,
    at="v0.4.3.post4 model_executor/model_runner.py:668: free now less (1 - mem_fraction_static) of what was free before loading",
)
def _room(plan: Plan, free: Bytes, weights: Bytes) -> Bytes:
    """Bytes for the pool. Loading is seen by the driver, so the gaps between segments count."""
    assert plan.memory_fraction is not None
    low, value, high = (int(size * plan.memory_fraction) for size in (free.low, free.value, free.high))
    return Bytes(low - weights.high, value - weights.value, high - weights.low)


@formula(
    cites=SGLANG, at="v0.5.23 model_executor/pool_configurator.py:490 keys and values, :656 windows by a pool of their own; latents once"
)
def cell_of(part: ModelSpec, plan: Plan, release: Release) -> Cell:
    """Bytes of a token in a stage's layers. Raises InputError for what has other pools."""
    assert plan.kv_dtype is not None
    whole, window, reach = 0, 0, 0
    kinds = {block.kind for stack in part.stacks for run in stack.runs for block in run.pattern}
    split = bool(kinds & release.windowed)
    if any(stack.role == "encoder" for stack in part.stacks):
        raise refuse("model", part.name, "has an encoder, whose cache is not modelled for sglang yet", "--engine transformers")
    for _, mixer, layers in caching_layers(part):
        if isinstance(mixer, CrossAttention):
            raise refuse("model", part.name, "reads another sequence, whose cache is not modelled for sglang yet", "--engine transformers")
        if isinstance(mixer, Recurrent):
            raise refuse("model", part.name, "is of a family that sglang does not serve", "--engine transformers")
        if not isinstance(mixer, Attention | LatentAttention):
            continue  # states, which have a pool of their own
        size = layers * plan.kv_dtype.nbytes(kv_elements_per_token(mixer, plan.mesh.tp))
        cut = (mixer.window or mixer.chunk) if split and isinstance(mixer, Attention) else None
        whole, window = (whole, window + size) if cut else (whole + size, window)
        reach = max(reach, cut or 0)
    return Cell(whole=whole, window=window, reach=reach)


def _tokens(stages: list[Stage], plan: Plan) -> Bytes:
    """Tokens of the pool, whole pages of them: of the stage with the fewest; without a card those that are asked for."""
    page, asked = plan.page_tokens or 1, (plan.max_sequences or 1) * (plan.max_model_len or 1)
    rooms = [(stage.room, stage.cell.counted) for stage in stages if stage.cell.counted]
    if not rooms or any(room is None for room, _ in rooms):
        return Bytes.exact(asked)
    ends = [
        [max(0, int(end // cell)) // page * page for end in (room.low, room.value, room.high)] for room, cell in rooms if room is not None
    ]
    return Bytes(*(min(end[place] for end in ends) for place in range(3)))


@formula(cites=SGLANG, at="v0.4.3.post4 mem_cache/memory_pool.py:225: a slot more than there are tokens (a page in later releases)")
def pool_bytes(cell: Cell, tokens: Count, page: int) -> Count:
    """Bytes of the pools of so many tokens."""
    if not cell.whole:
        return cell.window * (tokens + page)
    windows = int(tokens * WINDOW_SHARE) // page * page + page if cell.window else 0
    return cell.whole * (tokens + page) + cell.window * windows


@formula(cites=SGLANG, at="v0.4.3.post4 model_executor/model_runner.py:727: a row a request and one more, a place for each token and four")
def table_bytes(requests: Count, length: Count) -> Count:
    """Bytes of the table that says where each token of a request is."""
    return INT32.nbytes((requests + 1) * (length + 4))


def _requests(plan: Plan, tokens: int, stages: list[Stage]) -> int:
    """Requests that may run: as the plan says, else by the tokens, at least and at most so many; never more than there are states for."""
    asked = plan.max_sequences is not None and plan.max_sequences != MOST_REQUESTS
    found = int(plan.max_sequences or 1) if asked else min(max(tokens * 512 // (plan.max_model_len or 1), REQUESTS), MOST_REQUESTS)
    slots = [stage.states.slots.value // SLOTS for stage in stages if stage.states.bytes.high]
    return min([found, *slots])


def _pool(spec: ModelSpec, plan: Plan, cluster: Cluster | None) -> tuple[list[Stage], Bytes, Cell]:
    release = release_of(plan.engine_version)
    stages = [_stage(stage_model(spec, plan, number), plan, release, cluster) for number in range(plan.mesh.pp)]
    return stages, _tokens(stages, plan), max((stage.cell for stage in stages), key=lambda cell: cell.counted)


def room(spec: ModelSpec, plan: Plan, cluster: Cluster | None) -> Callable[[int], Bytes]:
    """How many sequences of a length the pool holds."""
    _, tokens, cell = _pool(spec, plan, cluster)
    page = plan.page_tokens or 1
    return lambda length: Bytes(*(_holds(cell, count, length, page) for count in (tokens.low, tokens.value, tokens.high)))


def facts(spec: ModelSpec, plan: Plan, cluster: Cluster | None, _: tuple[Sheet, ...]) -> Mapping[str, Any]:
    """What a serving engineer asks: tokens, sequences at several lengths, and the engine's own start-up lines."""
    if plan.phase == "load":
        return {}
    assert plan.kv_dtype is not None
    release, page, full = release_of(plan.engine_version), plan.page_tokens or 1, plan.max_model_len or 1
    stages, tokens, cell = _pool(spec, plan, cluster)
    sequences = room(spec, plan, cluster)
    per_token = cell.whole + cell.window
    found: dict[str, Any] = {
        "read": f"sglang {release.tag}", "kv_bytes_per_token": bytes_per_token(spec, plan.kv_dtype), "kv_bytes_per_token_per_rank": per_token,
        "kv_bytes_per_sequence": bytes_per_token(spec, plan.kv_dtype) * full, "kv_tokens": tokens.value, "kv_tokens_low": tokens.low,
        "kv_tokens_high": tokens.high, "pages": tokens.value // page, "page_tokens": page,
        "max_sequences": {str(n): sequences(n).value for n in lengths_of(plan)},
        "capacity": held(replace(plan, max_sequences=_requests(plan, tokens.value, stages)), sequences, tokens.value // full, (page - 1) * per_token // 2),
    }  # fmt: skip
    if cluster is None:
        return found
    own = stages[0]
    left = min((stage.room or NOTHING for stage in stages), key=lambda size: size.value)
    one = int(cell.counted * page)
    found["short_bytes"] = Bytes(one - left.high, one - left.value, one - left.low)
    found["start_up"] = _lines(plan, release, own, tokens, _requests(plan, tokens.value, stages))
    found["budget"] = {
        "memory_fraction": plan.memory_fraction,
        "free_before_loading": own.free,
        "weights": own.weights,
        "kv_cache": left,
        "needs_tokens": page,
    }
    if tokens.value < full:
        found["warning"] = f"requests end at {tokens.value:,} tokens, for the pool has no more"
    return found


def _holds(cell: Cell, tokens: int, length: int, page: int) -> int:
    """Sequences of a length in a pool of so many tokens, and in that of the windows."""
    paged = -(-length // page) * page
    if not cell.window:
        return tokens // paged
    windows = int(tokens * WINDOW_SHARE) // page * page if cell.whole else tokens
    return min(tokens // paged if cell.whole else windows, windows // min(paged, cell.reach + page))


def _lines(plan: Plan, release: Release, stage: Stage, tokens: Bytes, requests: int) -> list[str]:
    """The lines the release prints (its GB are GiB)."""
    pool = pool_bytes(stage.cell, tokens.value, plan.page_tokens or 1)
    dtype = f" dtype: torch.{'bfloat16' if plan.kv_dtype is plan.precision.compute else 'float8_e4m3fn'}," if release.prints_dtype else ""
    latent = f"KV size: {pool / GIB:.2f} GB"
    halves = (
        latent
        if any(item.path == "absorbed" for item in stage.items)
        else f"K size: {pool / 2 / GIB:.2f} GB, V size: {pool / 2 / GIB:.2f} GB"
    )
    return [
        f"Load weight end. … mem usage={stage.weights.value / GIB:.2f} GB.",
        f"KV Cache is allocated.{dtype} #tokens: {tokens.value}, {halves}",
        f"max_total_num_tokens={tokens.value}, chunked_prefill_size={plan.max_batched_tokens}, max_running_requests={requests}, context_len={plan.max_model_len}",
    ]
