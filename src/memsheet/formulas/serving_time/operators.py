"""The operators of one forward pass of a server, layer by layer, with their seconds: products, attention over
a cache, experts, the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from memsheet.arith import ceil_div, maximum
from memsheet.formulas.serving.dp_attention import forward_paths, gathers_all, group_plan
from memsheet.formulas.serving.dp_attention import groups_sharing_experts as sharing_groups
from memsheet.formulas.serving.kv_cache import (
    kept_tokens,
    kv_elements_per_token,
    recurrent_elements,
    state_elements,
)
from memsheet.formulas.serving_time.speeds import End, Speeds, format_of
from memsheet.formulas.states.held import Held, tensors_on_rank
from memsheet.formulas.states.params import fold_path_indices, stack_prefix
from memsheet.formulas.step_time.numbers import Real, larger, logarithm, root, smaller
from memsheet.formulas.step_time.operators import GROUPED
from memsheet.plan.dtypes import FP32
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import (
    Attention,
    Block,
    Dense,
    LatentAttention,
    LinearAttention,
    Mixer,
    ModelSpec,
    Moe,
    Recurrent,
    Role,
    StateSpace,
)
from memsheet.plan.plan import Plan
from memsheet.references import AICONFIGURATOR, FLASH_MLA, MOE_TOUCHED, TRANSFORMER, formula

FUSED = (
    {"q_proj", "k_proj", "v_proj"},
    {"gate_proj", "up_proj"},
    {"q_a_proj", "kv_a_proj_with_mqa"},
    {"w1", "w3"},
)
"""Matrices of one input that a server keeps as one (vLLM v0.11.0 model_executor/models/llama.py,
QKVParallelLinear and MergedColumnParallelLinear; deepseek_v2.py fused_qkv_a_proj).
"""
SMALL = {End.FAST: 3, End.VALUE: 5, End.SLOW: 8}
"""Kernels of a layer besides products and attention: two norms, rotation, what writes the cache and the
activation (vLLM v0.11.0 models/llama.py); fewer where a compiler joins them, more where a cast or a residual
is one of its own.
"""
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

    @property
    def span(self) -> float:
        """Keys a query sees, on average."""
        return self.cached + self.fresh / 2 if self.fresh > 1 else self.cached


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeTiming:
    """What an operator's seconds depend on besides its own shape."""

    plan: Plan
    engine: Engine
    speeds: Speeds
    work: Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Matrices of one input that are multiplied at once, as a rank stores them. ``through``: elements of a
    row of input and outputs; ``groups``: of ranks whose rows they multiply (data-parallel attention of SGLang
    cuts a feed-forward layer over all).
    """

    form: str
    nbytes: float
    elements: float
    depth: float
    through: float
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts of a layer on a rank: ``mine`` of them, bytes and elements of all of those."""

    moe: Moe
    mine: float
    form: str
    nbytes: float
    elements: float
    depth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What a layer's seconds depend on besides the pass; ``count`` layers are alike."""

    count: int
    block: Block
    products: tuple[Product, ...]
    experts: Experts | None


def decoder_layers(spec: ModelSpec, plan: Plan) -> tuple[Layer, ...]:
    """The decoder's layers on a rank."""
    return tuple(
        _decoder_layer(block, stack_prefix(stack), run.count, plan)
        for stack in spec.stacks
        if stack.role != "encoder"
        for run in stack.runs
        for block in run.pattern
    )


def _decoder_layer(block: Block, prefix: str, count: int, plan: Plan) -> Layer:
    group, forward = group_plan(plan), forward_paths(block) if gathers_all(plan) else frozenset()
    tensors = [
        one
        for weight in block.weights
        for one in tensors_on_rank(
            fold_path_indices(f"{prefix}.{weight.path}"), weight, 1, plan if weight.path in forward else group
        )
    ]
    of_all = {fold_path_indices(f"{prefix}.{path}") for path in forward}
    linear = [one for one in tensors if one.role is Role.LINEAR and len(one.shape) > 1]
    routed = [one for one in tensors if one.role is Role.EXPERT]
    experts = None
    if isinstance(block.feed_forward, Moe) and routed:
        first = routed[0]
        experts = Experts(
            moe=block.feed_forward,
            mine=float(first.shape[0]),
            form=format_of(first.dtype),
            depth=float(first.shape[-1]),
            nbytes=_tensor_bytes(routed),
            elements=_tensor_elements(routed),
        )
    products = (
        _joined_product(one, int(plan.mesh.attn_dp) if one[0].path in of_all else 1)
        for one in _fused_linear_groups(plan, linear)
    )
    return Layer(count=count, block=block, products=tuple(products), experts=experts)


def _tensor_bytes(tensors: list[Held]) -> float:
    return sum(float(one.dtype.nbytes(one.elements)) for one in tensors)


def _tensor_elements(tensors: list[Held]) -> float:
    return sum(float(one.elements) for one in tensors)


def _joined_product(matrices: list[Held], groups: int) -> Product:
    first = matrices[0]
    through = sum(float(one.shape[0] + one.shape[-1]) for one in matrices)
    return Product(
        form=format_of(first.dtype),
        nbytes=_tensor_bytes(matrices),
        elements=_tensor_elements(matrices),
        depth=float(first.shape[-1]),
        through=through,
        groups=groups,
    )


def _fused_linear_groups(plan: Plan, linear: list[Held]) -> list[list[Held]]:
    """Matrices that are multiplied at once."""
    if not engine_of(plan).serving.joins_projections:
        return [[one] for one in linear]
    found: dict[tuple[str, int], list[Held]] = {}
    for one in linear:
        module, name = one.path.removesuffix(".weight").rsplit(".", 1)
        place = next((number for number, names in enumerate(FUSED) if name in names), None)
        found.setdefault((one.path if place is None else module, -1 if place is None else place), []).append(
            one
        )
    return list(found.values())


def seconds_of(layers: tuple[Layer, ...], shop: ServeTiming) -> dict[str, float]:
    """Seconds of all layers, by kind of operator."""
    found = dict.fromkeys(("products", "experts", "attention", "small"), 0.0)
    for layer in layers:
        found["products"] += layer.count * sum(product_s(shop, one) for one in layer.products)
        found["attention"] += layer.count * sum(_mixer_s(shop, mixer) for mixer in layer.block.mixers)
        found["small"] += layer.count * _small_s(shop, layer.block)
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


def _mixer_s(shop: ServeTiming, mixer: Mixer) -> float:
    if isinstance(mixer, StateSpace | LinearAttention | Recurrent):
        return _state_s(shop, mixer)
    return attention_s(shop, mixer) if isinstance(mixer, Attention | LatentAttention) else 0.0


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
    span = smaller(work.span, seen)
    flops = (
        2.0
        * work.rows
        * span
        * ceil_div(mixer.heads, plan.mesh.tp)
        * _head_kv_elements(mixer, decoding=work.fresh == 1)
    )
    return line.start_s + larger(nbytes / line.bytes_per_s, flops / _attention_flops(shop, span))


def _head_kv_elements(mixer: Attention | LatentAttention, *, decoding: bool) -> int:
    """Elements of keys and values that a head multiplies for a token: while decoding those of the latent
    itself.
    """
    if isinstance(mixer, Attention):
        return 2 * mixer.head_dim
    if decoding:
        return 2 * mixer.kv_lora_rank + mixer.qk_rope_head_dim
    return mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim


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


def _state_s(shop: ServeTiming, mixer: StateSpace | LinearAttention | Recurrent) -> float:
    """A recurrent state is read and written once a pass; a prompt's tokens go through it."""
    tp, size = float(shop.plan.mesh.tp), float(shop.plan.precision.compute.nbytes(1))
    state = (float(FP32.nbytes(recurrent_elements(mixer))) + size * float(state_elements(mixer))) / tp
    tokens = shop.work.rows * 8.0 * (getattr(mixer, "inner", 0) or getattr(mixer, "width", 0)) / tp
    scan = shop.work.rows * 6.0 * float(mixer.state_elements) / tp / shop.speeds.rates.flops("fp32")
    return 2 * shop.speeds.least_s + max(
        (2 * shop.work.sequences * state + tokens) / shop.speeds.memory, scan
    )


def _small_s(shop: ServeTiming, block: Block) -> float:
    """Norms, rotation, activation: short kernels, and what they read and write."""
    size, tp = float(shop.plan.precision.compute.nbytes(1)), float(shop.plan.mesh.tp)
    feed = block.feed_forward
    inner = feed.intermediate / tp if isinstance(feed, Dense) else 0.0
    heads = (
        sum(
            (m.heads + 2 * getattr(m, "kv_heads", 1)) * getattr(m, "head_dim", 0)
            for m in block.mixers
            if isinstance(m, Attention)
        )
        / tp
    )
    elements = shop.work.rows * (NORMS * 4.0 * block.hidden + 2.0 * heads + 3.0 * inner)
    return SMALL[shop.speeds.end] * shop.speeds.least_s + elements * size / shop.speeds.memory


NORMS = 2
"""Of a layer, each of which reads the input and the residual and writes both (vLLM v0.11.0
csrc/layernorm_kernels.cu fused_add_rms_norm).
"""
