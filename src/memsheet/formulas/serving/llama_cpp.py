"""Serving with llama.cpp: on every device a buffer of weights, one of the cache and one to compute in, all there before the first token.

Read at ggml-org/llama.cpp 00395eb2 (2026) and at b7342's time (December 2025); the fork ik_llama.cpp at 8db70379 (May 2025).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from memsheet.arith import round_up
from memsheet.formulas.serving.driver import driver_items
from memsheet.formulas.serving.ggml_devices import compute_buffers
from memsheet.formulas.serving.llama_cpp_build import Reserved
from memsheet.formulas.serving.llama_cpp_graph import reserved_graph
from memsheet.formulas.serving.llama_cpp_weights import OUTPUT, TOKENS, Stored, stored_tensors
from memsheet.frozen import dataclass
from memsheet.references import GGML, LLAMA_CPP, formula
from memsheet.sheet import NOTHING, Bytes, Cited, Component, Derived, Evidence, Instant, Item, Sheet
from memsheet.spec.device import Cluster
from memsheet.spec.dtypes import FP16, DType
from memsheet.spec.engine import Engine
from memsheet.spec.model import Attention, Block, LatentAttention, ModelSpec
from memsheet.spec.plan import AttentionKind, Plan

WHOLE = True
CELLS, CELLS_PLAIN = 256, 32
"""Cells that a context is padded to; the fork's without flash attention (llama_kv_cache_get_padding)."""
LAST_OF_2025 = 7342
"""The newest numbered build whose masks are fp32 inputs cast on the device and whose output layer is offloaded last."""
SERVING = (Instant.PREFILL, Instant.DECODE)
ALWAYS = (Instant.LOAD, *SERVING)
MIXED = Derived("types as llama.cpp's quantizer gives them; a published file may have types of its own, which its header says")
POOL = Cited(GGML, "ggml-cuda.cu: activations quantized for a product; high: a matrix dequantized to fp16 for cuBLAS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a version does. ``fork``: ik_llama.cpp."""

    fork: bool
    recent: bool

    @staticmethod
    def of(plan: Plan) -> Facts:
        version = (plan.engine_version or "").lower()
        build = re.search(r"\bb(\d{3,6})\b", version)
        fork = "ik_llama" in version or version.startswith("ik")
        return Facts(fork=fork, recent=not fork and (build is None or int(build[1]) > LAST_OF_2025))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where layers lie: a device for each, and for the output. The host is number ``host``."""

    layers: tuple[int, ...]
    output: int
    host: int

    @property
    def whole(self) -> bool:
        """Whether everything but the table of tokens is on devices."""
        return self.host not in (*self.layers, self.output)


@formula(cites=LLAMA_CPP, at="llama-model.cpp load_tensors: the last layers go to devices, in even shares that count the output as a layer")
def placed(layers: int, plan: Plan, facts: Facts) -> Placed:
    """Devices of a model's layers; of an explicit ``layers_per_stage`` as it says."""
    devices = int(plan.mesh.pp)
    wanted = layers + 1 if plan.gpu_layers is None else min(plan.gpu_layers, layers + 1)
    if plan.layers_per_stage is not None and wanted == layers + 1:
        own = tuple(device for device, count in enumerate(plan.layers_per_stage) for _ in range(count))
        return Placed(layers=own, output=devices - 1, host=devices)
    first = max(layers + (1 if facts.recent else 0) - wanted, 0)

    def device(layer: int) -> int:
        on = layer - first
        return on * devices // wanted if 0 <= on < wanted else devices

    return Placed(layers=tuple(map(device, range(layers))), output=device(layers), host=devices)


# ---- the three buffers --------------------------------------------------------------------------------------------------------------


def weights_on(tensors: Iterable[Stored], where: Placed, device: int, *, host_experts: int = 0) -> dict[str, Bytes]:
    """Bytes by kind of tensor. A table that is the output matrix too is on both devices that use it."""
    found: dict[str, Bytes] = {}
    tensors = tuple(tensors)
    tied = not any(t.kind == OUTPUT for t in tensors)
    for t in tensors:
        for at in _devices_of(t, where, tied=tied, host_experts=host_experts):
            if at == device:
                path = f"blk.*.{t.kind}" if t.layer >= 0 else t.kind
                low, high = t.ends()
                size = Bytes.exact(t.nbytes) if device == where.host else Bytes(low, t.on_device, high)
                found[path] = found.get(path, NOTHING) + size
    return found


def _devices_of(t: Stored, where: Placed, *, tied: bool, host_experts: int) -> tuple[int, ...]:
    if t.layer >= 0:
        return (where.host if t.expert and t.layer < host_experts else where.layers[t.layer],)
    if t.kind == TOKENS:
        return tuple(dict.fromkeys((where.host, where.output))) if tied else (where.host,)
    return (where.host,) if t.kind == "embd" else (where.output,)


@formula(cites=LLAMA_CPP, at="llama-context.cpp: n_ctx to a multiple of 256 (GGML_PAD)")
def cells_of(plan: Plan, facts: Facts) -> int:
    """Cells of the cache, which all sequences share: ``max_model_len`` is llama.cpp's -c."""
    flash = plan.attention is AttentionKind.FLASH
    return int(round_up(plan.max_model_len or 0, CELLS if flash or not facts.fork else CELLS_PLAIN))


@formula(cites=LLAMA_CPP, at="llama-kv-cache-iswa.cpp: a windowed layer keeps every sequence's window and one batch, padded to 256 cells")
def window_cells(plan: Plan, facts: Facts, window: int, ubatch: int) -> int:
    """Cells of a windowed layer. The fork kept whole contexts then."""
    cells = cells_of(plan, facts)
    return cells if facts.fork else int(min(cells, round_up(min(cells, window * int(plan.max_sequences or 1) + ubatch), CELLS)))


@formula(cites=LLAMA_CPP, at="llama-kv-cache.cpp: keys and values of every cell of a layer, each row in its cache type")
def cache_of(block: Block, plan: Plan, facts: Facts, ubatch: int) -> tuple[int, int]:
    """Bytes of a layer's keys and of its values."""
    keys = values = 0
    for mixer in block.mixers:
        if isinstance(mixer, LatentAttention):
            cells = cells_of(plan, facts)
            keys += cells * int(_key_type(plan).nbytes(mixer.kv_lora_rank + mixer.qk_rope_head_dim))
            values += 0 if facts.recent else cells * int(_value_type(plan).nbytes(mixer.kv_lora_rank))
        elif isinstance(mixer, Attention):
            window = mixer.window or mixer.chunk
            cells = window_cells(plan, facts, window, ubatch) if window else cells_of(plan, facts)
            width = mixer.kv_heads * mixer.head_dim
            keys, values = keys + cells * int(_key_type(plan).nbytes(width)), values + cells * int(_value_type(plan).nbytes(width))
    return keys, values


def _value_type(plan: Plan) -> DType:
    return plan.kv_dtype or FP16


def _key_type(plan: Plan) -> DType:
    return plan.k_dtype or _value_type(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """What llama.cpp prints when it starts, in bytes by device, the host's last."""

    weights: tuple[Mapping[str, Bytes], ...]
    caches: tuple[tuple[int, int], ...]
    compute: tuple[int, ...]
    cells: int


@lru_cache(maxsize=4)
def buffers_of(spec: ModelSpec, plan: Plan) -> Buffers:
    """All buffers of all devices.

    Raises InputError for models whose operations are not listed.
    """
    facts, blocks = Facts.of(plan), _blocks(spec)
    where, ubatch = placed(len(blocks), plan, facts), _ubatch(plan)
    tensors = stored_tensors(spec, plan)
    caches = [cache_of(block, plan, facts, ubatch) for block in blocks]
    held = tuple(
        (sum(k for at, (k, _) in zip(where.layers, caches, strict=True) if at == d), sum(v for at, (_, v) in zip(where.layers, caches, strict=True) if at == d))
        for d in range(where.host + 1)
    )  # fmt: skip
    weights = tuple(weights_on(tensors, where, d, host_experts=plan.host_experts) for d in range(where.host + 1))
    compute = _compute(spec, plan, facts, where, caches, tensors) if plan.phase != "load" else (0,) * (where.host + 1)
    return Buffers(weights=weights, caches=held, compute=compute, cells=cells_of(plan, facts))


def _compute(
    spec: ModelSpec, plan: Plan, facts: Facts, where: Placed, caches: list[tuple[int, int]], tensors: tuple[Stored, ...]
) -> tuple[int, ...]:
    ubatch = _ubatch(plan)
    windows = {m.window or m.chunk or 0 for block in _blocks(spec) for m in block.mixers if isinstance(m, Attention)} - {0}
    windowed = max((window_cells(plan, facts, window, ubatch) for window in windows), default=0)
    how = Reserved(
        ubatch=ubatch, cells=cells_of(plan, facts), window_cells=windowed, flash=plan.attention is AttentionKind.FLASH, layer_devices=where.layers,
        output_device=where.output, host=where.host, fused=facts.fork, half_mask=facts.recent, kv_bytes=tuple(caches), host_experts=plan.host_experts,
    )  # fmt: skip
    parallel = where.host > 1 and where.whole and not plan.host_experts
    return tuple(compute_buffers(reserved_graph(spec, how, _matrices(tensors)), where.host + 1, parallel=parallel))


def _matrices(tensors: tuple[Stored, ...]) -> dict[int, dict[str, int]]:
    """Bytes of each layer's matrices by module, and of the output's, which are copied where the host holds them."""
    found: dict[int, dict[str, int]] = {}
    for t in tensors:
        found.setdefault(t.layer, {})[t.module] = t.on_device
    ends = found.setdefault(-1, {})
    ends.setdefault("head", ends.get(OUTPUT, ends.get("embed", ends.get(TOKENS, 0))))
    return found


def _ubatch(plan: Plan) -> int:
    return int(min(plan.max_batched_tokens or 512, plan.max_model_len or 1))


def _blocks(spec: ModelSpec) -> list[Block]:
    return [block for stack in spec.stacks for run in stack.runs for _ in range(run.count) for block in run.pattern]


# ---- the sheet ----------------------------------------------------------------------------------------------------------------------


def items(spec: ModelSpec, plan: Plan, engine: Engine, cluster: Cluster | None, stage: int) -> list[Item]:
    """Everything on one device."""
    del engine
    made = buffers_of(spec, plan)
    mixed = any(size.low != size.high for size in made.weights[stage].values())
    evidence: Evidence = MIXED if mixed else Cited(LLAMA_CPP, "llama-model.cpp load_tensors: tensors as the file stores them")
    instants = (Instant.LOAD,) if plan.phase == "load" else ALWAYS
    found = [Item(Component.PARAMETERS, path, dict.fromkeys(instants, size), evidence) for path, size in made.weights[stage].items()]
    if plan.phase != "load":
        keys, values = made.caches[stage]
        held = Cited(LLAMA_CPP, "llama-kv-cache.cpp: allocated whole at the start")
        found += [
            Item(Component.KV_CACHE, path, dict.fromkeys(SERVING, Bytes.exact(size)), held)
            for path, size in (("cache.k", keys), ("cache.v", values))
            if size
        ]
        graph = Cited(GGML, "ggml-alloc.c over the graph of the longest batch")
        found.append(Item(Component.TEMPORARIES, "compute_buffer", dict.fromkeys(SERVING, Bytes.exact(made.compute[stage])), graph))
        found.append(Item(Component.WORKSPACES, "cuda_pool", dict.fromkeys(SERVING, _pool(spec, plan)), POOL))
    return [*found, *driver_items(plan, cluster, instants)]


@formula(
    cites=GGML,
    at="ggml-cuda.cu ggml_cuda_op_mul_mat: 144 bytes of 128 quantized activations; high: the widest matrix and both operands in fp16",
)
def _pool(spec: ModelSpec, plan: Plan) -> Bytes:
    """What products allocate while they run and the pool keeps."""
    n, widest, largest = _ubatch(plan), 0, 0
    for block in {id(b): b for b in _blocks(spec)}.values():
        for weight in (w for w in block.weights if len(w.shape) > 1):
            widest, largest = max(widest, weight.shape[-1], weight.shape[-2]), max(largest, weight.shape[-1] * weight.shape[-2])
    value = n * widest * 144 // 128
    return Bytes(0, value, max(value, FP16.nbytes(largest + 2 * n * widest)))


def facts(spec: ModelSpec, plan: Plan, cluster: Cluster | None, sheets: tuple[Sheet, ...]) -> Mapping[str, Any]:
    """Cache bytes a token, cells that fit, and the lines that llama.cpp prints."""
    made, devices = buffers_of(spec, plan), int(plan.mesh.pp)
    where = placed(len(_blocks(spec)), plan, Facts.of(plan))
    rows = [_per_token(block, plan, Facts.of(plan)) for block in _blocks(spec)]
    per_device = [sum(row for row, at in zip(rows, where.layers, strict=True) if at == d) for d in range(devices)]
    found: dict[str, Any] = {
        "kv_bytes_per_token": sum(rows), "kv_bytes_per_token_per_rank": max(per_device), "kv_bytes_per_sequence": sum(map(sum, made.caches)),
        "kv_tokens": made.cells, "pages": 0, "max_sequences": {},
    }  # fmt: skip
    if plan.phase == "load":
        return found
    found["start_up"] = start_up(made)
    if cluster is not None:
        room = _tokens_that_fit(sheets, per_device, cluster)
        found["kv_tokens"] = room
        lengths = sorted({n for n in (1024, 4096, 8192, 32768, 131072) if n <= (spec.max_positions or n)} | {int(plan.max_model_len or 1)})
        found["max_sequences"] = {str(n): room // n for n in lengths}
    return found


def _per_token(block: Block, plan: Plan, facts: Facts) -> int:
    """Bytes that a cell of a layer takes."""
    one = replace(plan, max_model_len=CELLS)
    return sum(cache_of(block, one, facts, CELLS)) // CELLS


def _tokens_that_fit(sheets: tuple[Sheet, ...], per_device: list[int], cluster: Cluster) -> int:
    """Cells for which every device has room."""
    found = []
    for sheet, a_token in zip(sheets, per_device, strict=True):
        used = sheet.at(Instant.DECODE, without=()).value - sheet.of(Component.KV_CACHE, instant=Instant.DECODE).value
        found += [max(0, int(cluster.device.framework_bytes - used)) // a_token] if a_token else []
    return min(found, default=0)


@formula(cites=LLAMA_CPP, at="llama-model.cpp load_tensors: the table of tokens and what no device takes lie on the host")
def host_bytes(spec: ModelSpec, plan: Plan, stage: int) -> int:
    """What the one process holds in host memory, said with its first device: weights, caches and buffers that are not on any."""
    made = buffers_of(spec, plan)
    return sum(int(size.value) for size in made.weights[-1].values()) + sum(made.caches[-1]) + made.compute[-1] if stage == 0 else 0


def start_up(made: Buffers) -> list[str]:
    """The buffers in llama.cpp's own words, to put beside its log."""
    names = [f"CUDA{number}" for number in range(len(made.compute) - 1)]
    lines = [
        f"load_tensors: {name:>12} model buffer size = {sum(size.value for size in sizes.values()) / 2**20:8.2f} MiB"
        for name, sizes in zip(("CPU_Mapped", *names), (made.weights[-1], *made.weights), strict=False)
        if sizes
    ]
    lines += [
        f"llama_kv_cache: {name:>10} KV buffer size = {sum(held) / 2**20:8.2f} MiB"
        for name, held in zip((*names, "CPU"), made.caches, strict=True)
        if sum(held)
    ]
    lines += [
        f"sched_reserve: {name:>11} compute buffer size = {size / 2**20:8.2f} MiB"
        for name, size in zip((*names, "CUDA_Host"), made.compute, strict=True)
    ]
    return lines
