"""Seconds of the operators of one forward pass of a server: products, attention over a cache, experts, the
rest.
"""

from __future__ import annotations

from memsheet.arith import ceil_div, maximum
from memsheet.formulas.operators.attention import decoding_head_width, head_width, mean_attended_keys
from memsheet.formulas.operators.blocks import chunk_flops, goes_by_chunks
from memsheet.formulas.operators.operator import Kind, Operator
from memsheet.formulas.serving.dp_attention import groups_sharing_experts as sharing_groups
from memsheet.formulas.serving.kv_cache import (
    kept_tokens,
    kv_elements_per_token,
    recurrent_elements,
    state_elements,
)
from memsheet.formulas.serving_time.layers import Experts, Layer, Product, ShortKernels
from memsheet.formulas.serving_time.speeds import End, Speeds
from memsheet.formulas.step_time.numbers import Real, larger, logarithm, root, smaller
from memsheet.formulas.step_time.operators import GROUPED, scan_flops_per_s
from memsheet.frozen import dataclass
from memsheet.plan.dtypes import FP32
from memsheet.plan.engine import Engine
from memsheet.plan.model import Attention, LatentAttention, LinearAttention, Recurrent, StateSpace
from memsheet.plan.plan import Plan
from memsheet.references import AICONFIGURATOR, FLASH_MLA, MOE_TOUCHED, TRANSFORMER, formula

FEW_ROWS = 128
"""Rows of one tile, up to which a product takes no longer for its arithmetic."""
DECODE_FLOPS = {End.FAST: 1.0, End.VALUE: 0.667, End.SLOW: 0.37}
"""Of the dense rate, for attention of one query over a shared latent: 660 of 989 TFLOPS on H800 (FlashMLA
README); slow: in the ratio of one generation of attention kernels on Hopper, 0.35 to 0.63 (rates.toml,
attention_training).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward pass: ``sequences`` with ``fresh`` tokens each, after ``cached`` earlier ones."""

    sequences: int
    fresh: int = 1
    cached: int

    @property
    def rows(self) -> int:
        return self.sequences * self.fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeTiming:
    """What an operator's seconds depend on besides its own shape."""

    plan: Plan
    engine: Engine
    speeds: Speeds
    work: Pass


def seconds_of(layers: tuple[Layer, ...], shop: ServeTiming) -> dict[str, float]:
    """Seconds of all layers, by kind of operator."""
    found = dict.fromkeys(("products", "experts", "attention", "small"), 0.0)
    for layer in layers:
        found["products"] += layer.count * sum(product_s(shop, one) for one in layer.products)
        found["attention"] += layer.count * sum(_mixing_s(shop, op) for op in layer.mixing)
        found["small"] += layer.count * _short_s(shop, layer.short)
        if layer.experts is not None:
            found["experts"] += layer.count * experts_s(shop, layer.experts)
    return found


@formula(
    cites=AICONFIGURATOR,
    at="gemm_perf: a product of few rows takes a start and what reading its matrix takes",
)
def product_s(shop: ServeTiming, one: Product) -> Real:
    """Seconds of a product: reading the matrix, the rows in and out, or its arithmetic."""
    line, rows = shop.speeds.product[one.form], shop.work.rows * one.groups
    through = rows * shop.plan.precision.compute.nbytes(1) * one.through / shop.speeds.memory
    return line.start_s + larger(
        one.nbytes / line.bytes_per_s + through,
        2.0 * rows * one.elements / flops_per_s(shop, one.form, rows, one.depth),
    )


MULTIPLIED = ("fp8", "fp8_block", "nvfp4")
"""Formats that tensor cores multiply."""


@formula(
    cites=TRANSFORMER,
    at=(
        "2 m n k of a product; the rate by rows and depth from rates.toml, of a tile where there "
        "are fewer rows"
    ),
)
def flops_per_s(shop: ServeTiming, form: str, rows: Real, depth: Real) -> Real:
    """Weights of 4 and 8 bits that no unit multiplies are unpacked to 16 on their way."""
    arithmetic = form if form in MULTIPLIED else shop.plan.precision.compute.name
    return shop.speeds.rates.product_flops(arithmetic, larger(rows, FEW_ROWS), depth)


@formula(
    cites=MOE_TOUCHED, at="a token goes to K of E experts: n tokens leave one untouched with (1 - K/E)^n"
)
def experts_activated(experts: Real, mine: Real, each: Real, tokens: Real) -> Real:
    """Of ``mine`` of ``experts`` on a rank, those that evenly routed ``tokens`` reach."""
    return mine * (1.0 - larger(0.0, 1.0 - each / experts) ** tokens)


@formula(
    cites=MOE_TOUCHED,
    at=(
        "of evenly and independently routed tokens: the largest of n counts is about sqrt(2 ln n) "
        "deviations above their mean"
    ),
)
def max_rank_load(mean: Real, ranks: Real) -> Real:
    """What the rank has that has most, where each of ``ranks`` has ``mean`` on average; all wait for it."""
    return mean + root(2.0 * logarithm(ranks) * mean)


def experts_s(shop: ServeTiming, one: Experts) -> Real:
    """Routed experts of a layer: tokens of all replicas that share them."""
    mesh, rows, moe = shop.plan.mesh, float(shop.work.rows), one.moe
    alone = shop.work.fresh > 1 and shop.speeds.end is End.FAST  # no other replica reads a prompt meanwhile
    sharing = 1.0 if alone else float(sharing_groups(shop.plan))
    reached = experts_activated(moe.experts, one.mine, moe.experts_per_token, rows * sharing)
    copies = rows * sharing * moe.experts_per_token * one.mine / moe.experts
    if shop.speeds.end is End.SLOW and mesh.ep > 1:
        copies, reached = (
            max_rank_load(copies, float(mesh.ep)),
            min(one.mine, max_rank_load(reached, float(mesh.ep))),
        )
    line, speed = (
        shop.speeds.experts[one.form],
        GROUPED * flops_per_s(shop, one.form, copies / max(reached, 1.0), one.depth),
    )
    return line.start_s + max(
        one.nbytes * reached / one.mine / line.bytes_per_s, 2.0 * copies * one.elements / one.mine / speed
    )


def _mixing_s(shop: ServeTiming, op: Operator) -> Real:
    mixer = op.module
    if isinstance(mixer, Attention | LatentAttention):
        return attention_s(shop, mixer)
    return _state_s(shop, op) if op.kind is Kind.SCAN else 0.0


@formula(
    cites=AICONFIGURATOR,
    at="generation_attention_perf: a call takes a start and what reading the cache of its sequences takes",
)
def attention_s(shop: ServeTiming, mixer: Attention | LatentAttention) -> Real:
    """Seconds of one layer's attention: the cache is read once, whatever the heads that share it; every head
    multiplies.
    """
    work, plan, speeds = shop.work, shop.plan, shop.speeds
    assert plan.cache.kv_dtype is not None
    low = plan.cache.kv_dtype.bits < 16
    seen = kept_tokens(mixer, maximum(1, work.cached + (work.fresh if work.fresh > 1 else 0)))
    nbytes = work.sequences * plan.cache.kv_dtype.nbytes(kv_elements_per_token(mixer, plan.mesh.tp)) * seen
    line = speeds.attention[low]
    prompt = work.fresh > 1
    span = mean_attended_keys(mixer, work.cached, work.fresh) if prompt else smaller(work.cached, seen)
    width = head_width(mixer) if prompt else decoding_head_width(mixer)
    flops = 2.0 * work.rows * span * ceil_div(mixer.heads, plan.mesh.tp) * width
    return line.start_s + larger(nbytes / line.bytes_per_s, flops / _attention_flops(shop, span))


@formula(
    cites=FLASH_MLA,
    at=(
        "README: what attention of one query over a shared latent reaches; of prompts, rates.toml "
        "attention_training"
    ),
)
def _attention_flops(shop: ServeTiming, span: Real) -> Real:
    rates = shop.speeds.rates
    if shop.work.fresh == 1:
        return rates.attention_dense * DECODE_FLOPS[shop.speeds.end]
    generation = "fa2" if shop.speeds.end is End.SLOW else "fa3"
    return rates.attention_dense * rates.efficiency.attention * rates.attention[generation][0].at(span)


def _state_s(shop: ServeTiming, op: Operator) -> Real:
    """A recurrent state is read and written once a pass; a prompt's tokens go through it, chunk by chunk
    where it can be (``READ_IN``).
    """
    mixer, work, rates = op.module, shop.work, shop.speeds.rates
    assert isinstance(mixer, StateSpace | LinearAttention | Recurrent)
    tp, size = float(shop.plan.mesh.tp), float(shop.plan.precision.compute.nbytes(1))
    by_chunks = work.fresh > 1 and goes_by_chunks(mixer)
    state = float(FP32.nbytes(recurrent_elements(mixer))) + size * float(state_elements(mixer))
    moved = 2 * work.sequences * state + work.rows * size * (op.reads + op.writes)
    flops = work.rows * (1.0 * op.flops + (chunk_flops(mixer) if by_chunks else 0))
    scan = flops / scan_flops_per_s(rates, by_chunks=by_chunks)
    return 2 * shop.speeds.least_s + max(moved / shop.speeds.memory, scan) / tp


def _short_s(shop: ServeTiming, one: ShortKernels) -> float:
    """Norms, rotation, activation: short kernels, and what they read and write."""
    nbytes = shop.work.rows * float(shop.plan.precision.compute.nbytes(1)) * one.elements
    return one.kernels[shop.speeds.end] * shop.speeds.least_s + nbytes / shop.speeds.memory
