"""Seconds of an operator's forward and backward: products, attention, scans, passes over memory."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.formulas.numerics import writes_scores
from memsheet.formulas.operators.attention import mean_attended_keys
from memsheet.formulas.operators.blocks import chunk_flops, goes_by_chunks
from memsheet.formulas.operators.operator import Operator
from memsheet.formulas.step_time.kernels import Kernels
from memsheet.formulas.step_time.numbers import Real, larger, smaller
from memsheet.formulas.step_time.rates import Rates
from memsheet.frozen import dataclass
from memsheet.plan.model import CrossAttention, LinearAttention, Recurrent, StateSpace
from memsheet.plan.plan import ContextParallel, Plan
from memsheet.references import FLASH, MAMBA, TRANSFORMER, formula


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """``part``: the module it belongs to, as recompute names it. ``flops``: of forward, what the model asks
    for (not what a kernel wastes).
    """

    part: str
    forward_s: Real
    backward_s: Real
    flops: Real = 0.0
    attention: bool = False
    product: bool = False
    ends: bool = False  # the product whose result leaves the layer
    gathers: bool = False  # a product cut by columns, whose input tensor-parallel ranks gather
    scatters: bool = False  # a product cut by rows, whose output they sum


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTiming:
    """What an operator's time depends on besides its own shape. ``tokens``: a rank's of one micro-batch,
    before tensor parallelism.
    """

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
"""The other side of the measured products, the geometric middle of 4k to 32k: equal outputs make equally many
tiles.
"""
GROUPED = 0.88
"""Of a lone product's rate, what products of experts reach that run together, tiles of all of them counted:
SimuMax 4dcaae5, configs/system/b200_bf16_ceperm.json, operators of TransformerEngine on B200: 36 forward
reach 0.69 of this table and 36 of inputs' gradients 0.63, lone ones of the same machine 0.755 (medians): 0.91
and 0.84 of them.
"""
STREAMS = 4
"""That such products are started on (TransformerEngine d0067d0, common/util/multi_stream.cpp:52,
get_num_compute_streams).
"""
BF16_BYTES = 2
SCAN_ROWS = 128
"""Of the small products of a chunked scan, whose sides are states and heads."""


@formula(cites=TRANSFORMER, at="a product of m rows with an n by k matrix: 2 m n k; each gradient as much")
def matmul_operator(
    shop: TrainTiming,
    part: str,
    rows: Real,
    out: Real,
    inner: Real,
    *,
    eight: bool = True,
    groups: Real | None = None,
) -> OperatorTime:
    """``eight``: whether it is among those that an 8-bit recipe runs in 8 bits. ``groups``: of so many that
    run together, one.
    """
    rates, kind = shop.rates, shop.kernels.arithmetic if eight else shop.kernels.plain
    element = 1 if eight and shop.kernels.low else shop.kernels.element_bytes
    flops = 2.0 * rows * out * inner
    start = rates.start_s(kind) * (1 if groups is None else larger(1.0 / STREAMS, 1.0 / groups))
    reached, together = (1.0, 1.0) if groups is None else (GROUPED, groups)
    quantised = shop.kernels.quantised_bytes * rows / rates.memory_bytes if eight else 0.0

    def time(m: Real, n: Real, k: Real, extra: Real = 0.0) -> Real:
        speed = reached * rates.product_flops(kind, smaller(m * 1.0 * n * together / ROWS_OF_TABLE, m), k)
        moved = element * (m * 1.0 * k + n * 1.0 * k) + BF16_BYTES * m * 1.0 * n + extra
        return start + larger(flops / speed, moved / rates.memory_bytes)

    back = time(rows, inner, out)
    if shop.trains:
        back = back + time(out, inner, rows, shop.kernels.accumulated_bytes * out * 1.0 * inner)
    return OperatorTime(
        part=part,
        forward_s=time(rows, out, inner) + quantised * inner,
        backward_s=back + quantised * out,
        flops=flops,
        product=True,
    )


def memory_pass(
    shop: TrainTiming, part: str, elements: Real, forward: float, backward: float
) -> OperatorTime:
    """Bytes an element through the device's memory, and the start of a kernel each way."""
    start = shop.rates.start_s("bf16")
    at = shop.rates.memory_bytes
    return OperatorTime(
        part=part, forward_s=start + elements * forward / at, backward_s=start + elements * backward / at
    )


@formula(
    cites=FLASH,
    at=(
        "section 3: 4 s² d a head forward, half of it under a causal mask; backward 2.5 times (five "
        "products for two)"
    ),
)
def attention_of(shop: TrainTiming, op: Operator) -> Iterator[OperatorTime]:
    plan, kernels, mixer = shop.plan, shop.kernels, op.module
    length, cp = plan.training.length, plan.mesh.cp
    causal = getattr(mixer, "causal", not isinstance(mixer, CrossAttention))
    span = mean_attended_keys(mixer, 0, length) if causal else length * 1.0  # type: ignore[arg-type]
    sequences = plan.training.microbatch / cp / shop.tp
    flops = sequences * length * span * op.flops
    if writes_scores(plan, mixer):  # type: ignore[arg-type]
        yield from _eager_attention_operators(shop, op, flops)
        return
    forward, backward = shop.rates.attention[kernels.attention]
    rate = shop.rates.attention_dense * shop.rates.efficiency.attention
    rings = cp if _in_blocks(plan, kernels) else 1
    start, block = rings * shop.rates.start_s("bf16"), span / rings
    worst = flops * (2 - 1 / cp) if shop.uneven and causal and not kernels.own.balances_ranks else flops
    there, back = worst / (rate * forward.at(block)), 2.5 * worst / (rate * backward.at(block))
    yield OperatorTime(
        part=op.part, forward_s=start + there, backward_s=start + back, flops=flops, attention=True
    )
    if _in_blocks(plan, kernels):
        yield _ring_merge_operator(shop, sequences * length * op.writes)


def _in_blocks(plan: Plan, kernels: Kernels) -> bool:
    """Whether a rank attends to every rank's keys in turn. torch does so of gathered ones too (_attention.py,
    _templated_ring_attention, over either rotater).
    """
    gathers = plan.context_parallel is ContextParallel.ALL_GATHER
    return plan.context_parallel is ContextParallel.RING or (gathers and not kernels.own.attends_to_gathered)


def _ring_merge_operator(shop: TrainTiming, elements: Real) -> OperatorTime:
    """What each step of a ring but the first adds to the sums of the ones before, forward outputs and
    backward gradients of queries.
    """
    forward, backward = shop.kernels.merged
    each, at = shop.plan.mesh.cp - 1, shop.rates.memory_bytes
    start = each * shop.rates.start_s("bf16")
    return OperatorTime(
        part="core_attn",
        forward_s=start + each * elements * forward / at,
        backward_s=start + each * elements * backward / at,
    )


def _eager_attention_operators(shop: TrainTiming, op: Operator, flops: Real) -> Iterator[OperatorTime]:
    """Two products over all scores, masked ones too, and the passes of a softmax between them."""
    length, heads = shop.plan.training.length, op.module.heads  # type: ignore[union-attr]
    pairs = shop.plan.training.microbatch / shop.plan.mesh.cp / shop.tp * length * length
    speed = shop.rates.product_flops(shop.kernels.plain, length, op.flops / heads / 4)
    whole = pairs * op.flops
    yield OperatorTime(
        part=op.part, forward_s=whole / speed, backward_s=2 * whole / speed, flops=flops, attention=True
    )
    passes = shop.kernels.scores
    dropped = 5 if shop.plan.dropout else 0  # reads two bytes, writes two and the mask's
    yield memory_pass(shop, op.part, pairs * heads, passes[0] + dropped, passes[1] + dropped)


@formula(
    cites=MAMBA,
    at=(
        "csrc/selective_scan: a multiply-add of the state for each of in, decay and out; the state-space "
        "dual form by chunks"
    ),
)
def scan_of(shop: TrainTiming, op: Operator) -> OperatorTime:
    """The state's update: on the vector units where it is elementwise, on the matrix units where it goes by
    chunks.
    """
    mixer, rows = op.module, shop.tokens / shop.tp
    assert isinstance(mixer, StateSpace | LinearAttention | Recurrent)
    flops = rows * (1.0 * op.flops + chunk_flops(mixer))
    moved = rows * BF16_BYTES * (op.reads + op.writes) / shop.rates.memory_bytes
    one = shop.rates.start_s("bf16") + larger(
        flops / scan_flops_per_s(shop.rates, by_chunks=goes_by_chunks(mixer)), moved
    )
    return OperatorTime(part=op.part, forward_s=one, backward_s=2.5 * one, flops=flops)


def scan_flops_per_s(rates: Rates, *, by_chunks: bool) -> Real:
    """On the matrix units where it goes by chunks, on the vector units where one token follows another."""
    if by_chunks:
        return rates.product_flops("bf16", SCAN_ROWS, SCAN_ROWS)
    return rates.flops("fp32") * rates.efficiency.compute
