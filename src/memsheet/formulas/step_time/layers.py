"""Seconds of a layer's operators, in the order of its code, and of those of the model's end."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.formulas.operators.blocks import INPUTS, NOTHING_JOINED, block_operators, head_operator
from memsheet.formulas.operators.operator import Cut, Kind, Operator
from memsheet.formulas.step_time.kernels import operator_passes
from memsheet.formulas.step_time.numbers import Real, larger
from memsheet.formulas.step_time.operators import (
    BF16_BYTES,
    OperatorTime,
    TrainTiming,
    attention_of,
    matmul_operator,
    memory_pass,
    scan_of,
)
from memsheet.frozen import replace
from memsheet.plan.model import Block, Head, Moe, Role, Weight
from memsheet.plan.plan import Plan

JOINED = frozenset({INPUTS})


def layer_operators(shop: TrainTiming, block: Block) -> tuple[OperatorTime, ...]:
    operators = block_operators(block, JOINED if shop.kernels.fuses_inputs else NOTHING_JOINED)
    found = [time for op in operators for time in operator_times(shop, op)]
    products = [n for n, op in enumerate(found) if op.product]
    if products:
        found[products[-1]] = replace(found[products[-1]], ends=True)
    return tuple(found)


def operator_times(shop: TrainTiming, op: Operator) -> Iterator[OperatorTime]:
    """What a training step makes of one operator; nothing of what only a server does."""
    match op.kind:
        case Kind.PRODUCT:
            yield from (one for weight in op.weights for one in _adapter_operators(shop, op.part, weight))
            yield _linear_operator(shop, op)
        case Kind.ROUTER:
            rows = shop.tokens / shop.between
            yield matmul_operator(shop, op.part, rows, op.writes, op.reads, eight=False)
        case Kind.EXPERTS:
            yield _expert_operator(shop, op)
        case Kind.SCORES:
            yield from attention_of(shop, op)
        case Kind.SCAN:
            yield scan_of(shop, op)
        case Kind.STORE:
            return
        case Kind.NORM | Kind.ROTATION | Kind.GATE | Kind.ACTIVATION | Kind.DISPATCH | Kind.RESIDUAL:
            elements = _rows_on_rank(shop, op) * op.width
            kernels = shop.kernels
            passes = operator_passes(op, fused=kernels.fused, layers=kernels.layers, trains=shop.trains)
            yield memory_pass(shop, op.part, elements, *passes)
            if op.kind is Kind.RESIDUAL and shop.plan.dropout:
                yield memory_pass(shop, op.part, elements, 5, 5)


def _rows_on_rank(shop: TrainTiming, op: Operator) -> Real:
    """Rows that a rank has of an operator over memory, or as many as make its share of their elements."""
    match op.cut:
        case Cut.NONE:
            return shop.tokens / shop.between
        case Cut.EXPERTS:
            return _token_copies(shop, op)
        case _:
            return shop.tokens / shop.tp


def has_adapter(plan: Plan, weight: Weight) -> bool:
    """Whether an adapter stands beside a matrix: by the last name of its module."""
    module = weight.path.removesuffix(".weight").rsplit(".", 1)[-1]
    return (
        plan.adapter is not None
        and weight.role is Role.LINEAR
        and (module in plan.adapter.targets or "all-linear" in plan.adapter.targets)
    )


def _adapter_operators(shop: TrainTiming, part: str, weight: Weight) -> Iterator[OperatorTime]:
    """What an adapter and a quantized matrix add to a product: the adapter's two thin ones, which read the
    input and write and add the output, and the matrix unpacked to 16 bits, forward and backward.
    """
    out, inner = weight.shape[0], weight.elements / weight.shape[0]
    if has_adapter(shop.plan, weight):
        elements = shop.tokens * (BF16_BYTES * inner + 4.0 * BF16_BYTES * out) / shop.tp
        yield memory_pass(shop, part, elements, 1, 2)
    packed = shop.plan.quantization
    if packed is not None and packed.weights.bits < 16:
        nbytes = packed.weights.bits / 8 + BF16_BYTES
        yield memory_pass(shop, part, weight.elements / shop.tp, nbytes, nbytes)


def _linear_operator(shop: TrainTiming, op: Operator) -> OperatorTime:
    match op.cut:
        case Cut.COLUMNS:
            made = matmul_operator(shop, op.part, shop.tokens, op.writes / shop.tp, op.reads)
            return replace(made, gathers=True)
        case Cut.ROWS:
            made = matmul_operator(shop, op.part, shop.tokens, op.writes, op.reads / shop.tp)
            return replace(made, scatters=True)
        case _:
            return matmul_operator(shop, op.part, shop.tokens / shop.between, op.writes, op.reads)


def _token_copies(shop: TrainTiming, op: Operator) -> Real:
    """Copies of a rank's tokens, one for each expert that a token goes to, under an even routing: each rank
    computes as many as it sends. Before expert tensor parallelism, which gathers them.
    """
    moe, routing = op.module, shop.plan.routing
    assert isinstance(moe, Moe)
    share = (
        routing.capacity_factor if routing is not None and routing.padded and routing.capacity_factor else 1.0
    )
    return shop.tokens / shop.between * moe.experts_per_token * share


def _expert_operator(shop: TrainTiming, op: Operator) -> OperatorTime:
    mesh, moe = shop.plan.mesh, op.module
    assert isinstance(moe, Moe)
    mine = larger(moe.experts / mesh.ep, 1)
    rows = _token_copies(shop, op) * mesh.etp / mine
    one = matmul_operator(shop, op.part, rows, op.writes / mesh.etp, op.reads, groups=mine)
    return replace(
        one, forward_s=one.forward_s * mine, backward_s=one.backward_s * mine, flops=one.flops * mine
    )


def head_operators(shop: TrainTiming, head: Head, hidden: int) -> tuple[OperatorTime, ...]:
    """The output product and the loss."""
    op = head_operator(head, hidden)
    made = matmul_operator(shop, op.part, shop.tokens, op.writes / shop.tp, op.reads, eight=False)
    logits = shop.tokens / shop.tp * op.writes
    return made, memory_pass(shop, "loss", logits, *shop.kernels.losses[shop.plan.loss])
