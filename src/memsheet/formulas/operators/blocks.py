"""The operators of a block, in the order of its code."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from memsheet.arith import Count, ceil_div
from memsheet.formulas.operators.operator import (
    TRAFFIC,
    Cut,
    Kind,
    Operator,
    memory_operator,
    product_operator,
)
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    CrossAttention,
    Dense,
    FeedForward,
    Head,
    LatentAttention,
    LinearAttention,
    Mixer,
    Moe,
    Norm,
    RecordedMixer,
    Recurrent,
    Role,
    StateSpace,
    Weight,
)
from memsheet.references import MAMBA, MEGATRON_TP, PAGED_SERVER_CODE, formula

with late_functions(__name__):
    from memsheet.formulas.operators.attention import head_width


NOTHING_JOINED: frozenset[str] = frozenset()
INPUTS = "inputs"
"""Queries, keys and values; a gate and what it gates: matrices of one input, cut by columns."""
LATENTS = "latents"
"""The down-projections of queries and of keys and values, which every rank has whole."""


@lru_cache(maxsize=1024)
def block_operators(block: Block, joined: frozenset[str] = NOTHING_JOINED) -> tuple[Operator, ...]:
    """``joined``: the matrices that the code keeps as one."""
    parallel = block.arrangement in (Arrangement.PARALLEL, Arrangement.PARALLEL_TWO_NORMS)
    sums = 1 if parallel else branch_count(block)
    found = [
        *(one for mixer in block.mixers for one in _mixer_operators(mixer)),
        *(_feed_forward_operators(block.feed_forward, block.hidden) if block.feed_forward else ()),
        *(product_operator("attention", (weight,)) for weight in block.extras if weight.role is Role.LINEAR),
        *(norm_operator(norm) for norm in block.norms),
        memory_operator(Kind.RESIDUAL, "residual", block.hidden * sums),
    ]
    return tuple(_join_products(found, joined))


@formula(
    cites=MEGATRON_TP, at="section 3: the sum over ranks after attention and after the feed-forward layer"
)
def branch_count(block: Block) -> int:
    """Branches of a block that end in a sum: its mixers (those that run side by side are one), what reads
    another sequence, the feed-forward layer.
    """
    crossing = sum(isinstance(mixer, CrossAttention) for mixer in block.mixers)
    return crossing + (len(block.mixers) > crossing) + (block.feed_forward is not None)


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.11.0 layers/linear.py RowParallelLinear; routed and shared experts are summed at once",
)
def summed_widths(block: Block) -> tuple[Count, ...]:
    """Elements of a row of each result that tensor-parallel ranks sum, each with a part of it."""
    rows = tuple(op.writes for op in block_operators(block) if op.cut is Cut.ROWS and op.part != "moe")
    return (*rows, block.hidden) if isinstance(block.feed_forward, Moe) else rows


def norm_operator(norm: Norm) -> Operator:
    return memory_operator(Kind.NORM, "layernorm", norm.size, module=norm)


@lru_cache(maxsize=64)
def head_operator(head: Head, hidden: int) -> Operator:
    """The output product. A tied head multiplies by the embedding table."""
    return Operator(
        name="head", kind=Kind.PRODUCT, part="head", cut=Cut.COLUMNS,
        flops=2 * hidden * head.width, reads=hidden, writes=head.width, saves=hidden,
    )  # fmt: skip


def _join_products(operators: list[Operator], joined: frozenset[str]) -> list[Operator]:
    """Those that are one product made one, where the first of them stands."""
    found: dict[object, Operator] = {}
    for op in operators:
        key = (op.joins, id(op.module), op.reads) if op.joins in joined else (op.name, len(found))
        one = found.get(key)
        found[key] = (
            op if one is None else product_operator(op.part, (*one.weights, *op.weights), op.joins, op.module)
        )
    return list(found.values())


def _mixer_operators(mixer: Mixer) -> Iterator[Operator]:
    for weight in mixer.weights:
        if weight.role is Role.LINEAR:
            part = "mla_up_proj" if ".kv_b" in weight.path or ".q_b" in weight.path else "attention"
            yield product_operator(part, (weight,), _joined_inputs(mixer, weight), mixer)
    if isinstance(mixer, StateSpace | LinearAttention | Recurrent):
        yield _scan_operator(mixer)
    elif not isinstance(mixer, RecordedMixer):
        yield from _head_operators(mixer)


def _joined_inputs(module: Mixer | FeedForward, weight: Weight) -> str:
    if isinstance(module, Attention | Dense):
        return INPUTS if weight.cut == 0 and len(weight.shape) == 2 else ""
    latent = isinstance(module, LatentAttention) and weight.cut is None
    return LATENTS if latent else ""


def _head_operators(mixer: Attention | LatentAttention | CrossAttention) -> Iterator[Operator]:
    """What runs head by head: norms of queries and keys, rotation, the store into a cache, scores."""
    if isinstance(mixer, LatentAttention):
        turned, latent = mixer.qk_rope_head_dim, mixer.kv_lora_rank + mixer.qk_rope_head_dim
        yield memory_operator(Kind.ROTATION, "attention", (mixer.heads + 1) * turned, Cut.INNER, mixer)
        yield memory_operator(Kind.STORE, "attention", latent, Cut.NONE, mixer)
    else:
        heads = mixer.heads + mixer.kv_heads
        if mixer.qk_norm is not None:
            yield memory_operator(Kind.NORM, "attention", heads * mixer.head_dim, Cut.INNER, mixer.qk_norm)
        if isinstance(mixer, Attention):
            if mixer.rotary_dim:
                yield memory_operator(Kind.ROTATION, "attention", heads * mixer.rotary_dim, Cut.INNER, mixer)
            kept = 2 * mixer.kv_heads * mixer.head_dim
            yield memory_operator(Kind.STORE, "attention", kept, Cut.INNER, mixer)
    yield _scores_operator(mixer)


def _scores_operator(mixer: Attention | LatentAttention | CrossAttention) -> Operator:
    """Queries, keys and values in, as wide an output as the values of all heads."""
    if isinstance(mixer, LatentAttention):
        made = mixer.heads * mixer.v_head_dim
        read = 2 * mixer.heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim) + made
    else:
        made = mixer.heads * mixer.head_dim
        read = made + 2 * mixer.kv_heads * mixer.head_dim
    return Operator(
        name="scores", kind=Kind.SCORES, part="core_attn", cut=Cut.INNER, width=made,
        flops=2 * mixer.heads * head_width(mixer), reads=read, writes=made, saves=read + made, module=mixer,
    )  # fmt: skip


@formula(cites=MAMBA, at="csrc/selective_scan: operands and gate as wide as the result")
def channels(mixer: StateSpace | LinearAttention | Recurrent) -> int:
    """Elements of a row that go through a mixer's states."""
    match mixer:
        case StateSpace():
            return mixer.inner
        case LinearAttention():
            return mixer.value_heads * mixer.value_head_dim
        case _:
            return mixer.width


def goes_by_chunks(mixer: StateSpace | LinearAttention | Recurrent) -> bool:
    """Whether many tokens are scanned as products of chunks of them."""
    return isinstance(mixer, LinearAttention) or bool(getattr(mixer, "chunk", 0))


@formula(cites=MAMBA, at="mamba_ssm/ops/triton/ssd_combined.py: the state-space dual form, chunk by chunk")
def chunk_flops(mixer: StateSpace | LinearAttention | Recurrent) -> int:
    """Of a row, what a scan by chunks multiplies besides: tokens of a chunk with one another."""
    return 2 * mixer.chunk * mixer.inner if isinstance(mixer, StateSpace) else 0


def _scan_operator(mixer: StateSpace | LinearAttention | Recurrent) -> Operator:
    """A multiply-add of each state for in, decay and out; operands and gate are read, the result written."""
    width = channels(mixer)
    return Operator(
        name="scan", kind=Kind.SCAN, part="core_attn", cut=Cut.INNER, width=width,
        flops=6 * mixer.state_elements, reads=3 * width, writes=width, module=mixer,
    )  # fmt: skip


def _feed_forward_operators(layer: FeedForward, hidden: int, part: str = "mlp") -> Iterator[Operator]:
    if isinstance(layer, Moe):
        yield from _routed_operators(layer, hidden)
        return
    for weight in layer.weights:
        if weight.role is Role.LINEAR:
            yield product_operator(part, (weight,), _joined_inputs(layer, weight), layer)
    yield memory_operator(_activation(layer), part, layer.intermediate, Cut.INNER, layer)


def _activation(layer: FeedForward) -> Kind:
    return Kind.GATE if layer.gated else Kind.ACTIVATION


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.11.0 layers/activation.py:71: joined projections and their product are there at once",
)
def activation_elements(layer: FeedForward, tp: Count) -> Count:
    """Elements of a row that a feed-forward layer's activation reads and writes on a rank: a layer's most."""
    reads, writes, _ = TRAFFIC[_activation(layer)]
    return (reads + writes) * ceil_div(layer.intermediate, tp)


def _routed_operators(layer: Moe, hidden: int) -> Iterator[Operator]:
    """The router of a row, and of each copy of it what its expert does."""
    for weight in layer.weights:
        if weight.role is Role.LINEAR:  # the gate of a shared expert
            yield product_operator("moe", (weight,), module=layer)
        if weight.role is Role.ROUTER and len(weight.shape) > 1:
            yield replace(product_operator("moe", (weight,), module=layer), kind=Kind.ROUTER)
        if weight.role is Role.EXPERT:
            _, out, inner = weight.shape
            yield Operator(
                name=weight.path, kind=Kind.EXPERTS, part="moe", cut=Cut.EXPERTS,
                flops=2 * out * inner, reads=inner, writes=out, saves=inner, weights=(weight,), module=layer,
            )  # fmt: skip
    yield memory_operator(Kind.DISPATCH, "moe", hidden, Cut.EXPERTS, layer)
    yield memory_operator(_activation(layer), "moe_act", layer.intermediate, Cut.EXPERTS, layer)
    if layer.shared is not None:
        yield from _feed_forward_operators(layer.shared, hidden, part="moe")
