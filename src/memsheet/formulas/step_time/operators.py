"""The operators of a layer with the seconds of their forward and backward: products, attention, scans, passes over memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from memsheet.formulas.step_time.kernels import Kernels
from memsheet.formulas.step_time.numbers import Real, larger, smaller
from memsheet.formulas.step_time.rates import Rates
from memsheet.references import FLASH, MAMBA, TRANSFORMER, formula
from memsheet.spec.engine import Code
from memsheet.spec.model import (
    Arrangement,
    Attention,
    Block,
    CrossAttention,
    Dense,
    Head,
    LatentAttention,
    LinearAttention,
    Mixer,
    Moe,
    Norm,
    Recurrent,
    Role,
    StateSpace,
    Weight,
)  # fmt: skip
from memsheet.spec.plan import AttentionKind, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """``part``: the module it belongs to, as recompute names it. ``flops``: of forward, what the model asks for (not what a kernel wastes)."""

    part: str
    forward_s: Real
    backward_s: Real
    flops: Real = 0.0
    attention: bool = False
    product: bool = False
    ends: bool = False  # the product whose result leaves the layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """What an operator's time depends on besides its own shape. ``tokens``: a rank's of one micro-batch, before tensor parallelism."""

    plan: Plan
    rates: Rates
    kernels: Kernels
    tokens: Real
    trains: bool  # the model's own matrices, adapters aside
    hides: bool = False  # exchanges beside products, wherever an engine could start them so
    call_s: float = 0.0  # of the host's, before an operation's kernel starts
    uneven: bool = False  # ranks that share a sequence have unequal parts of a causal mask

    @property
    def tp(self) -> Real:
        return self.plan.mesh.tp

    @property
    def between(self) -> Real:
        """Ranks that share the regions between the products."""
        return self.tp if self.plan.sequence_parallel else 1


ROWS_OF_TABLE = 11_300
"""The other side of the measured products, the geometric middle of 4k to 32k: equal outputs make equally many tiles."""
BF16_BYTES = 2
SCAN_ROWS = 128
"""Of the small products of a chunked scan, whose sides are states and heads."""


@formula(cites=TRANSFORMER, at="a product of m rows with an n by k matrix: 2 m n k; each gradient as much")
def product(shop: Shop, part: str, rows: Real, out: Real, inner: Real, *, eight: bool = True) -> Operator:
    """``eight``: whether it is among those that an 8-bit recipe runs in 8 bits."""
    rates, kind = shop.rates, shop.kernels.arithmetic if eight else shop.kernels.plain
    element = 1 if eight and shop.kernels.low else shop.kernels.element_bytes
    flops = 2.0 * rows * out * inner
    start = rates.start_s(kind)
    quantised = shop.kernels.quantised_bytes * rows / rates.memory_bytes if eight else 0.0

    def time(m: Real, n: Real, k: Real, extra: Real = 0.0) -> Real:
        speed = rates.product_flops(kind, smaller(m * 1.0 * n / ROWS_OF_TABLE, m), k)
        moved = element * (m * 1.0 * k + n * 1.0 * k) + BF16_BYTES * m * 1.0 * n + extra
        return start + larger(flops / speed, moved / rates.memory_bytes)

    back = time(rows, inner, out)
    if shop.trains:
        back = back + time(out, inner, rows, shop.kernels.accumulated_bytes * out * 1.0 * inner)
    return Operator(
        part=part, forward_s=time(rows, out, inner) + quantised * inner, backward_s=back + quantised * out, flops=flops, product=True
    )


def memory_pass(shop: Shop, part: str, elements: Real, forward: float, backward: float) -> Operator:
    """Bytes an element through the device's memory, and the start of a kernel each way."""
    start = shop.rates.start_s("bf16")
    at = shop.rates.memory_bytes
    return Operator(part=part, forward_s=start + elements * forward / at, backward_s=start + elements * backward / at)


@formula(cites=FLASH, at="section 3: 4 s² d a head forward, half of it under a causal mask; backward 2.5 times (five products for two)")
def attention_of(shop: Shop, mixer: Attention | LatentAttention | CrossAttention) -> Iterator[Operator]:
    plan, kernels = shop.plan, shop.kernels
    length, cp = plan.seq_len * 1.0, plan.mesh.cp
    wide = mixer.head_dim * 2 if not isinstance(mixer, LatentAttention) else (
        mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)  # fmt: skip
    causal = getattr(mixer, "causal", not isinstance(mixer, CrossAttention))
    span = _span(mixer, length) if causal else length  # keys a query sees, on average
    sequences = plan.microbatch / cp / shop.tp
    flops = 2.0 * sequences * length * span * mixer.heads * wide
    if plan.attention is AttentionKind.EAGER:
        yield from _unfused(shop, sequences * length * length * mixer.heads, wide, flops)
        return
    forward, backward = shop.rates.attention[kernels.attention]
    rate = shop.rates.attention_dense * shop.rates.efficiency.attention
    start = shop.rates.start_s("bf16")
    worst = flops * (2 - 1 / cp) if shop.uneven and causal and kernels.code not in BALANCES else flops
    yield Operator(
        part="core_attn", forward_s=start + worst / (rate * forward.at(span)), backward_s=start + 2.5 * worst / (rate * backward.at(span)),
        flops=flops, attention=True,
    )  # fmt: skip


BALANCES = (Code.MEGATRON,)
"""Whose ranks take a chunk from each end of a sequence; torch's do so by an option (distributed/tensor/experimental, enable_load_balance),
without which the last rank's part is 2 - 1/c times the mean.
"""


def _span(mixer: Attention | LatentAttention | CrossAttention, length: Real) -> Real:
    window = getattr(mixer, "window", None) or getattr(mixer, "chunk", None)
    if window is None:
        return length / 2
    seen = smaller(window, length)
    return seen - seen * seen / (2 * length) if getattr(mixer, "window", None) else seen / 2


def _unfused(shop: Shop, scores: Real, wide: Real, flops: Real) -> Iterator[Operator]:
    """Two products over all scores, masked ones too, and the passes of a softmax between them."""
    speed = shop.rates.product_flops(shop.kernels.plain, shop.plan.seq_len, wide / 2)
    whole = 2.0 * scores * wide
    yield Operator(part="core_attn", forward_s=whole / speed, backward_s=2 * whole / speed, flops=flops, attention=True)
    passes = shop.kernels.scores
    dropped = 5 if shop.plan.dropout else 0  # reads two bytes, writes two and the mask's
    yield memory_pass(shop, "core_attn", scores, passes[0] + dropped, passes[1] + dropped)


@formula(
    cites=MAMBA, at="csrc/selective_scan: a multiply-add of the state for each of in, decay and out; the state-space dual form by chunks"
)
def scan_of(shop: Shop, mixer: StateSpace | LinearAttention | Recurrent) -> Operator:
    """The state's update: on the vector units where it is elementwise, on the matrix units where it goes by chunks."""
    chunk = getattr(mixer, "chunk", 0)
    flops = shop.tokens / shop.tp * (6.0 * mixer.state_elements + 2.0 * chunk * getattr(mixer, "inner", 0))
    by_matrix = bool(chunk) or isinstance(mixer, LinearAttention)
    speed = (
        shop.rates.product_flops("bf16", SCAN_ROWS, SCAN_ROWS) if by_matrix else shop.rates.flops("fp32") * shop.rates.efficiency.compute
    )
    moved = shop.tokens / shop.tp * 8.0 * getattr(mixer, "inner", getattr(mixer, "width", 0)) / shop.rates.memory_bytes
    one = shop.rates.start_s("bf16") + larger(flops / speed, moved)
    return Operator(part="core_attn", forward_s=one, backward_s=2.5 * one, flops=flops)


# layers -----------------------------------------------------------------------------------------------------------------


def layer(shop: Shop, block: Block) -> tuple[Operator, ...]:
    found: list[Operator] = []
    for mixer in block.mixers:
        found += _mixer(shop, mixer)
    if block.feed_forward is not None:
        found += _feed_forward(shop, block.feed_forward, block.hidden)
    products = [n for n, op in enumerate(found) if op.product]
    if products:
        found[products[-1]] = replace(found[products[-1]], ends=True)
    found += [norm(shop, one) for one in block.norms]
    branches = len(block.mixers[:1]) + (block.feed_forward is not None)
    joins = 1 if block.arrangement in (Arrangement.PARALLEL, Arrangement.PARALLEL_TWO_NORMS) else branches
    rows = shop.tokens / shop.between * block.hidden
    found += [memory_pass(shop, "residual", rows * joins, 6, 6)]
    if shop.plan.dropout:
        found += [memory_pass(shop, "residual", rows * joins, 5, 5)]
    return tuple(found)


def norm(shop: Shop, one: Norm) -> Operator:
    forward, backward = shop.kernels.norm
    return memory_pass(shop, "layernorm", shop.tokens / shop.between * one.size, forward, backward)


def _mixer(shop: Shop, mixer: Mixer) -> Iterator[Operator]:
    for weight in mixer.weights:
        yield from _besides(shop, weight)
    for weight in _fused(shop, mixer.weights):
        yield _linear(shop, weight, "mla_up_proj" if ".kv_b" in weight.path or ".q_b" in weight.path else "attention")
    if isinstance(mixer, StateSpace | LinearAttention | Recurrent):
        yield scan_of(shop, mixer)
        return
    yield from attention_of(shop, mixer)
    rotary = getattr(mixer, "rotary_dim", 0) or getattr(mixer, "qk_rope_head_dim", 0)
    if rotary:
        heads = mixer.heads + getattr(mixer, "kv_heads", 1)
        yield memory_pass(shop, "attention", shop.tokens / shop.tp * heads * rotary, *shop.kernels.rope)


def adapted(plan: Plan, weight: Weight) -> bool:
    """Whether an adapter stands beside a matrix: by the last name of its module."""
    module = weight.path.removesuffix(".weight").rsplit(".", 1)[-1]
    return (
        plan.adapter is not None and weight.role is Role.LINEAR and (module in plan.adapter.targets or "all-linear" in plan.adapter.targets)
    )


def _besides(shop: Shop, weight: Weight) -> Iterator[Operator]:
    """What an adapter and a quantized matrix add to a product: the adapter's two thin ones, which read the input and write and add the
    output, and the matrix unpacked to 16 bits, forward and backward.
    """
    if weight.role is not Role.LINEAR:
        return
    out, inner = weight.shape[0], weight.elements / weight.shape[0]
    if adapted(shop.plan, weight):
        elements = shop.tokens * (BF16_BYTES * inner + 4.0 * BF16_BYTES * out) / shop.tp
        yield memory_pass(shop, "adapter", elements, 1, 2)
    packed = shop.plan.quantization
    if packed is not None and packed.weights.bits < 16:
        yield memory_pass(
            shop, "unpacked", weight.elements / shop.tp, packed.weights.bits / 8 + BF16_BYTES, packed.weights.bits / 8 + BF16_BYTES
        )


def _fused(shop: Shop, weights: tuple[Weight, ...]) -> list[Weight]:
    """The matrices; those of one input that are cut by rows are one product where the code keeps them in one matrix."""
    linear = [w for w in weights if w.role is Role.LINEAR]
    if not shop.kernels.fuses_inputs:
        return linear
    found: dict[object, Weight] = {}
    for weight in linear:
        wide = weight.cut == 0 and len(weight.shape) == 2
        key = weight.shape[1] if wide else weight.path
        one = found.get(key)
        found[key] = weight if one is None else replace(one, shape=(one.shape[0] + weight.shape[0], weight.shape[1]))
    return list(found.values())


def _linear(shop: Shop, weight: Weight, part: str) -> Operator:
    out, inner = weight.shape[0], weight.elements // weight.shape[0]
    divided = shop.tp if weight.cut is not None else 1
    rows = shop.tokens if weight.cut is not None else shop.tokens / shop.between
    return product(shop, part, rows, *((out / divided, inner) if weight.cut == 0 else (out, inner / divided)))


def _feed_forward(shop: Shop, ff: Dense | Moe, hidden: int) -> Iterator[Operator]:
    if isinstance(ff, Moe):
        yield from _experts(shop, ff, hidden)
        return
    yield from (one for weight in ff.weights for one in _besides(shop, weight))
    yield from (_linear(shop, weight, "mlp") for weight in _fused(shop, ff.weights))
    passes = shop.kernels.gated if ff.gated else shop.kernels.activation
    yield memory_pass(shop, "mlp", shop.tokens / shop.tp * ff.intermediate, *passes)


def _experts(shop: Shop, moe: Moe, hidden: int) -> Iterator[Operator]:
    """Routed experts under an even routing: each rank computes as many copies as it has tokens to send."""
    mesh, routing = shop.plan.mesh, shop.plan.routing
    share = routing.capacity_factor if routing is not None and routing.padded and routing.capacity_factor else 1.0
    copies = shop.tokens / shop.between * moe.experts_per_token * share  # before expert tensor parallelism, which gathers them
    mine = larger(moe.experts / mesh.ep, 1)
    for weight in moe.weights:
        if weight.role is Role.ROUTER:
            yield replace(product(shop, "moe", shop.tokens / shop.between, moe.experts, hidden, eight=False))
        if weight.role is Role.EXPERT:
            one = product(shop, "moe", copies * mesh.etp / mine, weight.shape[1] / mesh.etp, weight.shape[2])
            yield replace(one, forward_s=one.forward_s * mine, backward_s=one.backward_s * mine, flops=one.flops * mine)
    yield memory_pass(shop, "moe", copies * hidden, *shop.kernels.permute)
    yield memory_pass(shop, "moe_act", copies * moe.intermediate, *(shop.kernels.gated if moe.gated else shop.kernels.activation))
    if moe.shared is not None:
        yield from (replace(one, part="moe") for one in _feed_forward(shop, moe.shared, hidden))


def ends(shop: Shop, head: Head, hidden: int, vocab: int) -> tuple[Operator, ...]:
    """The output product and the loss. A tied head multiplies by the embedding table."""
    width = head.width or vocab
    kept = shop.tokens / shop.tp * width
    made = product(shop, "head", shop.tokens, width / shop.tp, hidden, eight=False)
    return made, memory_pass(shop, "loss", kept, *shop.kernels.losses[shop.plan.loss])
