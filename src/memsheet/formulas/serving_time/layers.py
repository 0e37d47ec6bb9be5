"""A decoder's layers as a rank of a server runs them: its share of each operator, its matrices as stored."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.formulas.operators.blocks import INPUTS, LATENTS, NOTHING_JOINED, block_operators, summed_widths
from memsheet.formulas.operators.operator import Cut, Kind, Operator
from memsheet.formulas.serving.dp_attention import forward_paths, gathers_all, group_plan
from memsheet.formulas.serving_time.speeds import End, format_of
from memsheet.formulas.states.held import HeldTensor, tensors_on_rank
from memsheet.formulas.states.params import fold_path_indices, stack_prefix
from memsheet.formulas.step_time.kernels import operator_passes
from memsheet.formulas.step_time.operators import BF16_BYTES
from memsheet.frozen import dataclass
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Block, ModelSpec, Moe
from memsheet.plan.plan import Plan

JOINED = frozenset({INPUTS, LATENTS})
"""Matrices that a server keeps as one (``READ_IN``)."""
SHORT = (Kind.NORM, Kind.ROTATION, Kind.STORE, Kind.GATE, Kind.ACTIVATION)
"""Kernels of a layer besides products and attention, where sums of a residual are part of the norm after
(``READ_IN``). Those of routed experts lie in the experts' own time.
"""


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
class ShortKernels:
    """Passes over memory of a layer: elements of a row that a rank reads and writes, and how many kernels."""

    elements: float
    kernels: Mapping[End, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What a layer's seconds depend on besides the pass; ``count`` layers are alike. ``mixing``: what mixes
    tokens. ``sums``: elements of a row of each result that ranks sum.
    """

    count: int
    products: tuple[Product, ...]
    mixing: tuple[Operator, ...]
    short: ShortKernels
    experts: Experts | None
    sums: tuple[int, ...]


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
    joins = engine_of(plan).serving.joins_projections
    operators = block_operators(block, JOINED if joins else NOTHING_JOINED)

    def held(op: Operator) -> list[list[HeldTensor]]:
        """Its matrices on a rank, and one by one those of adapters beside them."""
        rank = plan if op.weights[0].path in forward else group
        paths = [fold_path_indices(f"{prefix}.{weight.path}") for weight in op.weights]
        found = [[*tensors_on_rank(path, one, 1, rank)] for path, one in zip(paths, op.weights, strict=True)]
        beside = [[one] for _, *others in found for one in others if len(one.shape) > 1]
        return [[first for first, *_ in found], *beside]

    products = [
        _joined_product(matrices, int(plan.mesh.attn_dp) if op.weights[0].path in forward else 1)
        for op in operators
        if op.kind is Kind.PRODUCT
        for matrices in held(op)
    ]
    routed = [op for op in operators if op.kind is Kind.EXPERTS]
    return Layer(
        count=count,
        products=tuple(products),
        mixing=tuple(op for op in operators if op.kind in (Kind.SCORES, Kind.SCAN)),
        short=short_kernels(block, operators, group),
        experts=_experts_on_rank(routed[0].module, [held(op)[0][0] for op in routed]) if routed else None,
        sums=summed_widths(block),
    )


def _joined_product(matrices: list[HeldTensor], groups: int) -> Product:
    first = matrices[0]
    return Product(
        form=format_of(first.dtype),
        nbytes=_tensor_bytes(matrices),
        elements=_tensor_elements(matrices),
        depth=float(first.shape[-1]),
        through=float(first.shape[-1]) + sum(float(one.shape[0]) for one in matrices),
        groups=groups,
    )


def _experts_on_rank(moe: object, routed: list[HeldTensor]) -> Experts:
    assert isinstance(moe, Moe)
    first = routed[0]
    return Experts(
        moe=moe,
        mine=float(first.shape[0]),
        form=format_of(first.dtype),
        depth=float(first.shape[-1]),
        nbytes=_tensor_bytes(routed),
        elements=_tensor_elements(routed),
    )


def _tensor_bytes(tensors: list[HeldTensor]) -> float:
    return sum(float(one.dtype.nbytes(one.elements)) for one in tensors)


def _tensor_elements(tensors: list[HeldTensor]) -> float:
    return sum(float(one.elements) for one in tensors)


def short_kernels(block: Block, operators: tuple[Operator, ...], plan: Plan) -> ShortKernels:
    """Fast: a compiler leaves the norms, and one kernel that turns queries and keys and writes the cache.
    Slow: sums of the residual, and a cast, are kernels of their own.

    A norm that sums the residual writes both and need not read the sum again (``READ_IN``). Code that is
    written out operation by operation passes over memory as a training step's does.
    """
    own = [op for op in operators if op.kind in (*SHORT, Kind.RESIDUAL) and op.cut is not Cut.EXPERTS]
    kinds = [op.kind for op in own if op.kind is not Kind.RESIDUAL]
    fused = plan.compile or engine_of(plan).serving.joins_projections
    layers, tp = engine_of(plan).layers, float(plan.mesh.tp)
    elements = sum(
        op.width
        * operator_passes(op, fused=fused, layers=layers)[0]
        / BF16_BYTES
        / (tp if op.cut is Cut.INNER else 1.0)
        for op in own
    )
    sums = sum(op.width for op in own if op.kind is Kind.RESIDUAL) // block.hidden
    summing = min(sums, sum(op.kind is Kind.NORM and op.cut is Cut.NONE for op in own)) if fused else 0
    turned = Kind.ROTATION in kinds or Kind.STORE in kinds
    kernels = {
        End.FAST: kinds.count(Kind.NORM) + turned,
        End.VALUE: len(kinds),
        End.SLOW: len(kinds) + sums + 1,
    }
    return ShortKernels(elements=elements - summing * block.hidden, kernels=kernels)
