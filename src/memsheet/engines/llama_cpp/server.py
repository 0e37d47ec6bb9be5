"""Serving with llama.cpp: on every device a buffer of weights, one of the cache and one to compute in, all
there before the first token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Any

from memsheet.arith import maximum
from memsheet.engines.llama_cpp.buffers import (
    CELLS,
    Buffers,
    Facts,
    blocks_of,
    buffers_of,
    cache_devices,
    cache_of,
    layer_placement,
    ubatch_of,
)
from memsheet.engines.llama_cpp.draft import (
    Drafting,
    draft_buffers,
    draft_caches,
    draft_per_token,
    drafting_of,
)
from memsheet.engines.llama_cpp.driver import CUDA_LIKE, driver_items, unused_driver_items
from memsheet.engines.llama_cpp.facts import MAX_SEQUENCES
from memsheet.engines.llama_cpp.latent_fork import cell_bytes
from memsheet.engines.llama_cpp.lora import lora_file_host_bytes, lora_file_items
from memsheet.engines.llama_cpp.options import llama_cpp_options
from memsheet.engines.llama_cpp.placement import LayerDevices
from memsheet.engines.llama_cpp.states import state_bytes
from memsheet.formulas.serving.drafts import draft_facts, prefix_draft_items
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.dtypes import FP16, FP32
from memsheet.plan.engine import Engine
from memsheet.plan.model import Block, LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import GGML, LLAMA_CPP, formula
from memsheet.sheet import Bytes, Cited, Component, Derived, Evidence, Instant, Item, Sheet

SERVING = (Instant.PREFILL, Instant.DECODE)
ALWAYS = (Instant.LOAD, *SERVING)
MIXED = Derived(
    "types as llama.cpp's quantizer gives them, with an importance matrix or without; a file of its maker's "
    "own rules (UD-, _XL, _L) says them in its header"
)
POOL = Cited(
    GGML, "ggml-cuda.cu: activations quantized for a product; high: a matrix dequantized to fp16 for cuBLAS"
)
MOST = 2**24
"""Sequences that are not counted further."""


def items(spec: ModelSpec, plan: Plan, engine: Engine, cluster: Cluster | None, stage: int) -> list[Item]:
    """Everything on one device."""
    del engine
    own = llama_cpp_options(plan)
    if own.split_mode == "none" and stage != own.main_gpu:
        return unused_driver_items(cluster, (Instant.LOAD,) if plan.serving.phase == "load" else ALWAYS)
    instants = (Instant.LOAD,) if plan.serving.phase == "load" else ALWAYS
    made = buffers_of(spec, plan)
    pooled = cluster is None or cluster.device.backend in CUDA_LIKE
    found = _buffer_items(spec, plan, made, stage, pooled=pooled)
    found += lora_file_items(spec, plan, stage, instants, int(made.compute[stage].value))
    if drafting := drafting_of(spec, plan):
        found += prefix_draft_items(
            _buffer_items(drafting.model, drafting.plan, draft_buffers(drafting), stage, pooled=pooled)
        )
    return [*found, *driver_items(plan, cluster, instants)]


def _buffer_items(
    spec: ModelSpec, plan: Plan, made: Buffers, stage: int, *, pooled: bool = True
) -> list[Item]:
    """A model's buffers on one device. ``pooled``: its products allocate from a pool, as CUDA's do."""
    mixed = any(size.low != size.high for size in made.weights[stage].values())
    evidence: Evidence = (
        MIXED if mixed else Cited(LLAMA_CPP, "llama-model.cpp load_tensors: tensors as the file stores them")
    )
    instants = (Instant.LOAD,) if plan.serving.phase == "load" else ALWAYS
    found = [
        Item(Component.PARAMETERS, path, dict.fromkeys(instants, size), evidence)
        for path, size in made.weights[stage].items()
    ]
    if plan.serving.phase != "load":
        keys, values = made.caches[stage]
        held = Cited(LLAMA_CPP, "llama-kv-cache.cpp: allocated whole at the start")
        found += [
            Item(Component.KV_CACHE, path, dict.fromkeys(SERVING, Bytes.exact(size)), held)
            for path, size in (("cache.k", keys), ("cache.v", values))
            if size
        ]
        rows = Cited(LLAMA_CPP, "llama-memory-recurrent.cpp: a row in fp32 for every sequence")
        found += [
            Item(Component.KV_CACHE, path, dict.fromkeys(SERVING, Bytes.exact(size)), rows)
            for path, size in zip(("cache.r", "cache.s"), made.states[stage], strict=True)
            if size
        ]
        graph = Cited(GGML, "ggml-alloc.c over the graph of the longest batch")
        size, beside = made.compute[stage], _unread_graph_bytes(spec, plan)
        found.append(
            Item(
                Component.TEMPORARIES,
                "compute_buffer",
                dict.fromkeys(SERVING, Bytes(max(0, size.low - beside), size.value, size.high + beside)),
                graph,
            )
        )
        if pooled:
            found.append(
                Item(
                    Component.WORKSPACES,
                    "cuda_pool",
                    dict.fromkeys(SERVING, _matmul_pool_bytes(spec, plan)),
                    POOL,
                )
            )
    return found


READ = frozenset(
    {
        "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "glm4", "deepseek_v2", "deepseek_v3", "granite", "smollm3", "olmo2",
        "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "gemma4_text", "gemma4_unified_text", "nemotron_h",
    }
)  # fmt: skip
"""Families whose graph is written out here; of others the widest tensors are known, and that there may be one
more of each.
"""


def _unread_graph_bytes(spec: ModelSpec, plan: Plan) -> int:
    """What a graph that was not read may hold besides."""
    strange = [block for block in blocks_of(spec) if block.kind not in READ]
    inner = [block.feed_forward.intermediate for block in strange if block.feed_forward is not None]
    return int(FP32.nbytes(ubatch_of(plan) * (2 * spec.hidden + max(inner, default=0)))) if strange else 0


@formula(
    cites=GGML,
    at=(
        "ggml-cuda.cu ggml_cuda_op_mul_mat: 144 bytes of 128 quantized activations; high: the widest "
        "matrix and both operands in fp16"
    ),
)
def _matmul_pool_bytes(spec: ModelSpec, plan: Plan) -> Bytes:
    """What products allocate while they run and the pool keeps."""
    n, blocks = ubatch_of(plan), {id(b): b for b in blocks_of(spec)}.values()
    sides = dict.fromkeys(w.shape[-2:] for block in blocks for w in block.weights if len(w.shape) > 1)
    widest = reduce(maximum, (side for both in sides for side in both), 0)
    largest = reduce(maximum, (out * width for out, width in sides), 0)
    value = n * widest * 144 // 128
    return Bytes(0, value, maximum(value, FP16.nbytes(largest + 2 * n * widest)))


def facts(
    spec: ModelSpec, plan: Plan, cluster: Cluster | None, sheets: tuple[Sheet, ...]
) -> Mapping[str, Any]:
    """Cache bytes a token, cells that fit, and the lines that llama.cpp prints."""
    made, devices = buffers_of(spec, plan), int(plan.mesh.pp)
    where = layer_placement(len(blocks_of(spec)), plan, Facts.of(plan))
    rows = [_per_token(block, plan, Facts.of(plan)) for block in blocks_of(spec)]
    per_device = [
        sum(row for row, at in zip(rows, cache_devices(where, plan), strict=True) if at == d)
        for d in range(devices)
    ]
    drafting = drafting_of(spec, plan)
    beside = draft_per_token(drafting) if drafting else [0] * devices
    found: dict[str, Any] = {
        "kv_bytes_per_token": sum(rows) + sum(beside), "kv_bytes_per_token_per_rank": max(map(add, per_device, beside)),
        "kv_bytes_per_sequence": _kept_bytes(made) + (_kept_bytes(draft_buffers(drafting)) if drafting else 0),
        "kv_tokens": made.cells, "pages": 0, "max_sequences": {},
    }  # fmt: skip
    if plan.serving.phase == "load":
        return found
    backend = cluster.device.backend if cluster else "CUDA"
    found["start_up"] = start_up(made, backend)
    if drafting:
        found["start_up"] += start_up(draft_buffers(drafting), backend)
        found["speculative"] = _drafting_facts(drafting, plan, devices)
    if cluster is not None:
        rooms = [_device_cache_room_bytes(sheet, cluster) for sheet in sheets]
        lengths = sorted(
            {n for n in (1024, 4096, 8192, 32768, 131072) if n <= (spec.max_positions or n)}
            | {int(plan.serving.max_model_len or 1)}
        )
        bound = MOST if Facts.of(plan).fork else MAX_SEQUENCES
        found["max_sequences"] = {
            str(n): min(bound, _llama_sequences_that_fit(spec, plan, where, rooms, n)) for n in lengths
        }
        found["kv_tokens"] = CELLS * _llama_sequences_that_fit(spec, plan, where, rooms, CELLS, windows=1)
    return found


def _kept_bytes(made: Buffers) -> int:
    """What a context keeps on all devices: keys and values, and states."""
    return sum(map(sum, (*made.caches, *made.states)))


def _drafting_facts(drafting: Drafting, plan: Plan, devices: int) -> Mapping[str, Any]:
    """What the draft model costs on all devices."""
    own = draft_buffers(drafting)
    items = [
        item
        for stage in range(devices)
        for item in prefix_draft_items(_buffer_items(drafting.model, drafting.plan, own, stage))
    ]
    return {**draft_facts(items, plan, sum(draft_per_token(drafting))), "contexts": drafting.contexts}


def _per_token(block: Block, plan: Plan, facts: Facts) -> int:
    """Bytes that a cell of a layer takes."""
    one = replace(plan, workload=replace(plan.serving, max_model_len=CELLS, max_sequences=1))
    return sum(cache_of(block, one, facts, CELLS)) // CELLS


def _device_cache_room_bytes(sheet: Sheet, cluster: Cluster) -> int:
    """What a device has for its caches."""
    used = (
        sheet.at(Instant.DECODE, without=()).value
        - sheet.of(Component.KV_CACHE, instant=Instant.DECODE).value
    )
    return max(0, int(cluster.device.framework_bytes - used))


def _llama_sequences_that_fit(
    spec: ModelSpec,
    plan: Plan,
    where: LayerDevices,
    rooms: list[int],
    length: int,
    *,
    windows: int | None = None,
) -> int:
    """Sequences of a length whose cells all devices have room for, each cell with its column of the mask and
    what is unpacked of it. ``windows``: kept whatever their number.
    """
    facts, blocks, ubatch = Facts.of(plan), blocks_of(spec), ubatch_of(plan)
    kinds = Counter(zip(blocks, cache_devices(where, plan), strict=True))
    latents = [m for block in blocks for m in block.mixers if isinstance(m, LatentAttention)]
    own = llama_cpp_options(plan)
    unpacked = max((cell_bytes(m, own.mla_mode, ubatch, own.attn_max_batch) for m in latents), default=0)
    column = ubatch * (2 if facts.recent else 6) + unpacked

    def fits(sequences: int) -> bool:
        asked = replace(
            plan,
            workload=replace(
                plan.serving, max_model_len=sequences * length, max_sequences=windows or sequences
            ),
        )
        held = [0] * (where.host + 1)
        for (block, device), times in kinds.items():
            held[device] += times * (
                sum(cache_of(block, asked, facts, ubatch)) + sum(state_bytes(block, asked))
            )
        if drafting := drafting_of(spec, asked):
            held = list(map(add, held, draft_caches(drafting)))
        grown = column * max(0, sequences * length - int(plan.serving.max_model_len or 0))
        return all(size + grown <= room for size, room in zip(held[:-1], rooms, strict=True))

    most = 1
    while most < MOST and fits(most):
        most *= 2
    return bisect_left(range(1, most + 1), True, key=lambda n: not fits(n))


@formula(
    cites=LLAMA_CPP,
    at="llama-model.cpp load_tensors: the table of tokens and what no device takes lie on the host",
    counts="int",
)
def host_bytes(spec: ModelSpec, plan: Plan, _: Cluster | None, stage: int) -> int:
    """What the one process holds in host memory, said with its first device, or with the one that has all:
    weights, caches and buffers that are not on any.
    """
    own = llama_cpp_options(plan)
    if stage != (own.main_gpu if own.split_mode == "none" else 0):
        return 0
    drafting = drafting_of(spec, plan)
    every = [buffers_of(spec, plan), *([draft_buffers(drafting)] if drafting else [])]
    held = (
        sum(int(size.value) for size in made.weights[-1].values())
        + sum((*made.caches[-1], *made.states[-1]))
        + int(made.compute[-1].value)
        for made in every
    )
    return sum(held) + lora_file_host_bytes(spec, plan)


def start_up(made: Buffers, backend: str = "CUDA") -> list[str]:
    """The buffers in llama.cpp's own words, to put beside its log."""
    names = [f"{backend}{number}" for number in range(len(made.compute) - 1)]
    lines = [
        (
            f"load_tensors: {name:>12} model buffer size = "
            f"{sum(size.value for size in sizes.values()) / 2**20:8.2f} MiB"
        )
        for name, sizes in zip(("CPU_Mapped", *names), (made.weights[-1], *made.weights), strict=False)
        if sizes
    ]
    lines += [
        f"llama_kv_cache: {name:>10} KV buffer size = {sum(held) / 2**20:8.2f} MiB"
        for name, held in zip((*names, "CPU"), made.caches, strict=True)
        if sum(held)
    ]
    lines += [
        f"llama_memory_recurrent: {name:>10} RS buffer size = {sum(held) / 2**20:8.2f} MiB"
        for name, held in zip((*names, "CPU"), made.states, strict=True)
        if sum(held)
    ]
    lines += [
        f"sched_reserve: {name:>11} compute buffer size = {size.value / 2**20:8.2f} MiB"
        for name, size in zip(
            (*names, f"{backend}_Host" if backend in CUDA_LIKE else "CPU"), made.compute, strict=True
        )
        if size.value
    ]
    return lines
