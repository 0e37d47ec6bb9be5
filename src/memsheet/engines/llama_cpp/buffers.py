"""llama.cpp's buffers on every device: weights, the cache, and what it computes in.

Read at ggml-org/llama.cpp 00395eb2 (2026) and at b7342's time (December 2025); the fork ik_llama.cpp at
8db70379 (May 2025).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from memsheet.arith import Count, given_or, minimum, round_up
from memsheet.engines.llama_cpp.build import Reserved
from memsheet.engines.llama_cpp.delta_net import written_out_bytes
from memsheet.engines.llama_cpp.facts import is_fork
from memsheet.engines.llama_cpp.ggml_devices import compute_buffers
from memsheet.engines.llama_cpp.graph import reserved_graph
from memsheet.engines.llama_cpp.options import llama_cpp_options
from memsheet.engines.llama_cpp.placement import LayerDevices, placed_tensors
from memsheet.engines.llama_cpp.splits import device_at, split_points
from memsheet.engines.llama_cpp.states import state_bytes
from memsheet.engines.llama_cpp.weights import LAYER_TOKENS, OUTPUT, TOKENS, Stored, stored_tensors
from memsheet.errors import input_error
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import FP16, FP32, DType
from memsheet.plan.engine_registry import pool_servers
from memsheet.plan.model import Attention, Block, LatentAttention, LinearAttention, ModelSpec, Run
from memsheet.plan.plan import AttentionKind, Plan
from memsheet.references import LLAMA_CPP, formula
from memsheet.sheet import NOTHING, Bytes

CELLS, CELLS_PLAIN = 256, 32
"""Cells that a context is padded to; the fork's without flash attention (llama_kv_cache_get_padding)."""
LAST_OF_2025 = 7342
"""The newest numbered build whose masks are fp32 inputs cast on the device and whose output layer is
offloaded last.
"""

SPARING, NOW = 9993, 11549
"""A build that surely has the server ask for one position's logits a sequence (pull request 23861, June
2026), and the one whose graphs were printed and compared.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a version does. ``fork``: ik_llama.cpp."""

    fork: bool
    recent: bool
    sparing: bool  # logits have room for one position a sequence

    def streams(self, plan: Plan) -> Count:
        """Parts of the cache that sequences do not share: one each (-np), or one for all (--kv-unified)."""
        shared = not self.recent or llama_cpp_options(plan).kv_unified
        return 1 if shared else given_or(plan.serving.max_sequences, 1)

    @staticmethod
    def of(plan: Plan) -> Facts:
        version = (plan.engine_version or "").lower()
        build = re.search(r"\bb(\d{3,6})\b", version)
        fork = is_fork(version)
        number = int(build[1]) if build else 0 if fork else NOW
        return Facts(fork=fork, recent=number > LAST_OF_2025, sparing=number >= SPARING)


@formula(
    cites=LLAMA_CPP,
    at=(
        "llama-model.cpp load_tensors: the last layers go to devices, in even shares that count the output "
        "as a layer"
    ),
    counts="int",
)
def layer_placement(layers: int, plan: Plan, facts: Facts) -> LayerDevices:
    """Devices of a model's layers; of an explicit ``layers_per_stage`` as it says."""
    devices, own = int(plan.mesh.pp), llama_cpp_options(plan)
    asked = own.gpu_layers
    wanted = layers + 1 if asked is None else min(asked, layers + 1)
    ends = split_points(own.tensor_split, devices)
    dealt = ends is not None or own.split_mode == "none"
    if plan.layers_per_stage is not None and wanted == layers + 1 and not dealt:
        each = tuple(device for device, count in enumerate(plan.layers_per_stage) for _ in range(count))
        return LayerDevices(layers=each, output=devices - 1, host=devices)
    first = max(layers + (1 if facts.recent else 0) - wanted, 0)

    def device(layer: int) -> int:
        on = layer - first
        if dealt and 0 <= on < wanted:
            return device_at(ends, on, wanted) if ends is not None else own.main_gpu
        return on * devices // wanted if 0 <= on < wanted else devices

    return LayerDevices(layers=tuple(map(device, range(layers))), output=device(layers), host=devices)


@formula(
    cites=LLAMA_CPP,
    at="llama-kv-cache.cpp, llama-memory-recurrent.cpp: a layer's device, or the host without offload",
    counts="int",
)
def cache_devices(where: LayerDevices, plan: Plan) -> tuple[int, ...]:
    """Device of every layer's cache and states (-nkvo: the host)."""
    return (where.host,) * len(where.layers) if llama_cpp_options(plan).host_cache else where.layers


# ---- the three buffers -------------------------------------------------------------------------------------


def weights_on(tensors: Iterable[Stored], where: LayerDevices, device: int) -> dict[str, Bytes]:
    """Bytes by kind of tensor. A table that is the output matrix too is on both devices that use it."""
    found: dict[str, Bytes] = {}
    tensors = tuple(tensors)
    tied = not any(t.kind == OUTPUT for t in tensors)
    for t in tensors:
        for at in _devices_of(t, where, tied=tied):
            if at == device:
                path = f"blk.*.{t.kind}" if t.layer >= 0 else t.kind
                low, high = t.ends()
                size = Bytes.exact(t.nbytes) if device == where.host else Bytes(low, t.on_device, high)
                found[path] = found.get(path, NOTHING) + size
    return found


def _devices_of(t: Stored, where: LayerDevices, *, tied: bool) -> tuple[int, ...]:
    if t.device is not None:
        return (t.device,)
    if t.layer >= 0:
        return (where.layers[t.layer],)
    if t.kind == TOKENS:
        return tuple(dict.fromkeys((where.host, where.output))) if tied else (where.host,)
    return (where.host,) if t.kind in ("embd", LAYER_TOKENS) else (where.output,)


@formula(cites=LLAMA_CPP, at="llama-context.cpp: n_ctx to a multiple of 256 (GGML_PAD)")
def cells_of(plan: Plan, facts: Facts) -> Count:
    """Cells of a stream of the cache: ``max_model_len`` is llama.cpp's -c, which all sequences share or
    divide.
    """
    flash = plan.attention is AttentionKind.FLASH
    return round_up(
        given_or(plan.serving.max_model_len, 0) // facts.streams(plan),
        CELLS if flash or not facts.fork else CELLS_PLAIN,
    )


@formula(
    cites=LLAMA_CPP,
    at=(
        "llama-kv-cache-iswa.cpp: a windowed layer keeps every sequence's window and one batch, padded to "
        "256 cells"
    ),
)
def window_cells(plan: Plan, facts: Facts, window: Count, ubatch: Count) -> Count:
    """Cells of a windowed layer; those of any other with --swa-full. The fork kept whole contexts then."""
    cells, sharing = cells_of(plan, facts), given_or(plan.serving.max_sequences, 1) // facts.streams(plan)
    needed = round_up(minimum(cells, window * sharing + ubatch), CELLS)
    return cells if facts.fork or llama_cpp_options(plan).swa_full else minimum(cells, needed)


@formula(
    cites=LLAMA_CPP,
    at="llama-kv-cache.cpp: keys and values of every cell of a layer, each row in its cache type",
)
def cache_of(block: Block, plan: Plan, facts: Facts, ubatch: Count) -> tuple[Count, Count]:
    """Bytes of a layer's keys and of its values."""
    keys = values = 0
    for mixer in block.mixers:
        if isinstance(mixer, LatentAttention):
            if mixer.index_dim:
                why = f"is not modelled for {block.kind}, whose layers pick the tokens that they attend to"
                raise input_error("engine", "llama.cpp", why, f"--engine {' or '.join(pool_servers())}")
            cells = cells_of(plan, facts)
            keys += cells * _key_type(plan).nbytes(mixer.kv_lora_rank + mixer.qk_rope_head_dim)
            mla_mode = llama_cpp_options(plan).mla_mode
            alone = facts.recent or (mla_mode and (mla_mode > 1 or plan.attention is AttentionKind.FLASH))
            values += 0 if alone else cells * _value_type(plan).nbytes(mixer.kv_lora_rank)
        elif isinstance(mixer, Attention) and not mixer.shares_kv:
            window = mixer.window or mixer.chunk
            cells = window_cells(plan, facts, window, ubatch) if window else cells_of(plan, facts)
            width = mixer.kv_heads * mixer.head_dim
            keys, values = (
                keys + cells * _key_type(plan).nbytes(width),
                values + cells * _value_type(plan).nbytes(width),
            )
    return facts.streams(plan) * keys, facts.streams(plan) * values


def _value_type(plan: Plan) -> DType:
    return plan.cache.kv_dtype or FP16


def _key_type(plan: Plan) -> DType:
    return llama_cpp_options(plan).k_dtype or _value_type(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """What llama.cpp prints when it starts, in bytes by device, the host's last."""

    weights: tuple[Mapping[str, Bytes], ...]
    caches: tuple[tuple[int, int], ...]
    states: tuple[tuple[int, int], ...]  # of recurrent layers: their convolutions' and their own
    compute: tuple[Bytes, ...]
    cells: int


@lru_cache(maxsize=4)
def buffers_of(spec: ModelSpec, plan: Plan) -> Buffers:
    """All buffers of all devices.

    Raises InputError for models whose operations are not listed.
    """
    facts, blocks = Facts.of(plan), blocks_of(spec)
    where, ubatch = layer_placement(len(blocks), plan, facts), ubatch_of(plan)
    tensors = placed_tensors(spec, plan, stored_tensors(spec, plan), where)
    caches = [cache_of(block, plan, facts, ubatch) for block in blocks]
    states = [state_bytes(block, plan) for block in blocks]
    weights = tuple(weights_on(tensors, where, d) for d in range(where.host + 1))
    nothing = (NOTHING,) * (where.host + 1)
    compute = (
        _compute_buffer_bytes(spec, plan, facts, where, (_joined_pairs(caches, states), tensors))
        if plan.serving.phase != "load"
        else nothing
    )
    apart = _written_out_delta_nets(blocks, plan, where)
    if plan.serving.phase != "load" and (not facts.sparing or where.host in where.layers):
        compute = tuple(
            Bytes(size.low, size.value, size.high + more) for size, more in zip(compute, apart, strict=True)
        )
    return Buffers(
        weights=weights,
        caches=_pairs_by_device(caches, cache_devices(where, plan), where.host),
        states=_pairs_by_device(states, cache_devices(where, plan), where.host),
        compute=compute,
        cells=facts.streams(plan) * cells_of(plan, facts),
    )


def _written_out_delta_nets(blocks: list[Block], plan: Plan, where: LayerDevices) -> list[int]:
    """Bytes that every device's buffer may have besides in builds of which nobody knows whether they compute
    a delta net in one operation, and where layers lie on the host: it is written out for all where the first
    device would compute one of theirs (llama-context.cpp, resolve_fused_ops).
    """
    found, ubatch, sequences = (
        [0] * (where.host + 1),
        ubatch_of(plan),
        given_or(plan.serving.max_sequences, 1),
    )
    for block, device in zip(blocks, where.layers, strict=True):
        for mixer in block.mixers:
            if isinstance(mixer, LinearAttention):
                size = written_out_bytes(mixer, ubatch, sequences)
                for at in {device} if device != where.host else {0, device}:
                    found[at] = max(found[at], size)
    return found


Pairs = list[tuple[Count, Count]]


def _pairs_by_device(of_layers: Pairs, devices: tuple[int, ...], host: int) -> tuple[tuple[int, int], ...]:
    """Sums of both numbers of layers on every device, the host's last."""
    found = [(0, 0)] * (host + 1)
    for device, (one, other) in zip(devices, of_layers, strict=True):
        found[device] = (found[device][0] + int(one), found[device][1] + int(other))
    return tuple(found)


def _joined_pairs(caches: Pairs, states: Pairs) -> Pairs:
    """What every layer keeps: keys and values, or states."""
    return [(k + r, v + s) for (k, v), (r, s) in zip(caches, states, strict=True)]


def _compute_buffer_bytes(
    spec: ModelSpec,
    plan: Plan,
    facts: Facts,
    where: LayerDevices,
    held: tuple[list[tuple[int, int]], tuple[Stored, ...]],
) -> tuple[Bytes, ...]:
    """Bytes of each device's buffer. Whether a device computes with experts of the host depends on their type
    and on switches that no plan has: they are copied in the main project, and in the fork where it
    interleaves rows to types that cards compute with.
    """
    caches, tensors = held
    experts = {(t.layer, t.module): t.device for t in tensors if t.expert and t.device is not None}
    read_spec = without_unread_windows(spec)
    ubatch, own = ubatch_of(plan), llama_cpp_options(plan)
    windows = {
        m.window or m.chunk or 0
        for block in blocks_of(spec)
        for m in block.mixers
        if isinstance(m, Attention)
    } - {0}
    windowed = max((window_cells(plan, facts, window, ubatch) for window in windows), default=0)
    how = Reserved(
        ubatch=ubatch,
        cells=cells_of(plan, facts),
        window_cells=windowed,
        flash=plan.attention is AttentionKind.FLASH,
        layer_devices=where.layers,
        output_device=where.output,
        host=where.host,
        fused=facts.fork,
        half_mask=facts.recent,
        kv_bytes=tuple(caches),
        expert_devices=experts,
        host_cache=own.host_cache,
        outputs=min(ubatch, given_or(plan.serving.max_sequences, 1)) if facts.sparing else None,
        mla_mode=own.mla_mode,
        attn_max_batch=own.attn_max_batch,
        quantized_cache=_key_type(plan).block > 1,
        sequences=int(facts.streams(plan)),
        kept_states=int(given_or(plan.serving.max_sequences, 1)),
    )
    several = where.host > 1 and own.split_mode != "none"
    moved = any(t.device is not None for t in tensors)
    parallel, matrices = several and where.whole and not moved, _matrix_bytes_by_layer(tensors)
    copied = compute_buffers(reserved_graph(read_spec, how, matrices), where.host + 1, parallel=parallel)
    beside = _moved_matrix_bytes(tensors, spec, int(ubatch))
    if where.host not in experts.values():
        return tuple(Bytes(max(0, size - beside), size, size + beside) for size in copied)
    stay = compute_buffers(
        reserved_graph(read_spec, replace(how, experts_stay=True), matrices), where.host + 1
    )
    most = compute_buffers(
        reserved_graph(read_spec, how, _matrix_bytes_by_layer(tensors, most=True)), where.host + 1
    )
    taken = not facts.fork or all(
        t.type_name in COPIED for t in tensors if t.expert and t.device == where.host
    )
    return tuple(
        Bytes(max(0, min(ends) - beside), ends[taken], max(ends) + beside)
        for ends in zip(stay, copied, most, strict=True)
    )


def _moved_matrix_bytes(tensors: Iterable[Stored], spec: ModelSpec, ubatch: int) -> int:
    """What a device's buffer may hold more, or less, for tensors beside experts that rules move: a copy of a
    layer's matrices, and of the widest activation, where another device computes.
    """
    of_layers: dict[int, int] = {}
    for t in tensors:
        if t.device is not None and not t.expert:
            of_layers[t.layer] = of_layers.get(t.layer, 0) + t.ends()[1]
    if not of_layers:
        return 0
    widest = max((side for b in blocks_of(spec) for w in b.weights for side in w.shape[-2:]), default=0)
    return max(of_layers.values()) + int(FP32.nbytes(ubatch * max(widest, spec.hidden)))


COPIED = frozenset(f"gguf:IQ{bits}_K" for bits in (2, 3, 4, 5))
"""Types of the fork that its cards compute with as they are, and since 26 May 2025 with rows interleaved too,
which -rtr makes of all that stays on the host (ik_llama.cpp 89728ab0, ggml-cuda.cu supports_op). Types that a
file has interleaved are the host's alone at the version read, and those that -rtr makes of others still are.
"""


def _matrix_bytes_by_layer(tensors: tuple[Stored, ...], *, most: bool = False) -> dict[int, dict[str, int]]:
    """Bytes of each layer's matrices by module, and of the output's, which are copied where the host holds
    them. ``most``: in the largest types that a mix may have.
    """
    found: dict[int, dict[str, int]] = {}
    for t in sorted(tensors, key=lambda t: not t.expert):
        of_layer = found.setdefault(t.layer, {})
        beside = t.module in of_layer and not t.expert  # a dense layer's, where experts have the name
        of_layer[f"shared.{t.module}" if beside else t.module] = t.ends()[1] if most else t.on_device
    ends = found.setdefault(-1, {})
    ends.setdefault("head", ends.get(OUTPUT, ends.get("embed", ends.get(TOKENS, 0))))
    return found


@formula(
    cites=LLAMA_CPP,
    at="llama-context.cpp sched_reserve: the smaller of n_ubatch, 512 unless said, and the context",
)
def ubatch_of(plan: Plan) -> Count:
    return minimum(given_or(plan.serving.max_batched_tokens, 512), given_or(plan.serving.max_model_len, 1))


WINDOWED = frozenset({
    "gemma2", "gemma3", "gemma3_text", "gemma4_text", "gemma4_unified_text", "cohere2", "olmo2", "olmo3", "exaone4", "exaone_moe", "gpt_oss", "llama4", "llama4_text",
    "afmoe",
})  # fmt: skip
"""Families whose windows are read from a file (ggml-org/llama.cpp src/models/*.cpp, where swa_type is
set). All others keep every token, whatever their config says: phi3's window is switched off with a
warning (models/phi3.cpp load_arch_hparams, pull request 13676), and mistral, mixtral, starcoder2, smollm3
and qwen2 have none there.
"""


def blocks_of(spec: ModelSpec) -> list[Block]:
    """Every layer in order, as llama.cpp runs it; equal ones are one object."""
    return [
        block
        for stack in without_unread_windows(spec).stacks
        for run in stack.runs
        for _ in range(run.count)
        for block in run.pattern
    ]


def without_unread_windows(spec: ModelSpec) -> ModelSpec:
    """The model with the windows that llama.cpp reads of it alone."""

    def run(old: Run) -> Run:
        return replace(old, pattern=tuple(_without_unread_window(block) for block in old.pattern))

    return replace(
        spec,
        stacks=tuple(replace(stack, runs=tuple(run(old) for old in stack.runs)) for stack in spec.stacks),
    )


def _without_unread_window(block: Block) -> Block:
    """A layer that keeps every token where its family's window is not read."""
    windowed = any(isinstance(m, Attention) and m.window for m in block.mixers)
    if block.kind in WINDOWED or not windowed:
        return block
    mixers = (replace(m, window=None) if isinstance(m, Attention) else m for m in block.mixers)
    return replace(block, mixers=tuple(mixers))
