"""The operators of a layer, in the order of its code, and those of the model's end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memsheet.formulas.step_time.numbers import larger
from memsheet.formulas.step_time.operators import (
    BF16_BYTES,
    Operator,
    TrainTiming,
    attention_of,
    matmul_operator,
    memory_pass,
    scan_of,
)
from memsheet.plan.model import (
    Arrangement,
    Block,
    Dense,
    Head,
    LinearAttention,
    Mixer,
    Moe,
    Norm,
    Recurrent,
    Role,
    StateSpace,
    Weight,
)
from memsheet.plan.plan import Plan


def layer_operators(shop: TrainTiming, block: Block) -> tuple[Operator, ...]:
    found: list[Operator] = []
    for mixer in block.mixers:
        found += _mixer_operators(shop, mixer)
    if block.feed_forward is not None:
        found += _feed_forward(shop, block.feed_forward, block.hidden)
    products = [n for n, op in enumerate(found) if op.product]
    if products:
        found[products[-1]] = replace(found[products[-1]], ends=True)
    found += [norm_operator(shop, one) for one in block.norms]
    branches = len(block.mixers[:1]) + (block.feed_forward is not None)
    joins = 1 if block.arrangement in (Arrangement.PARALLEL, Arrangement.PARALLEL_TWO_NORMS) else branches
    rows = shop.tokens / shop.between * block.hidden
    found += [memory_pass(shop, "residual", rows * joins, 6, 6)]
    if shop.plan.dropout:
        found += [memory_pass(shop, "residual", rows * joins, 5, 5)]
    return tuple(found)


def norm_operator(shop: TrainTiming, one: Norm) -> Operator:
    forward, backward = shop.kernels.norm
    return memory_pass(shop, "layernorm", shop.tokens / shop.between * one.size, forward, backward)


def _mixer_operators(shop: TrainTiming, mixer: Mixer) -> Iterator[Operator]:
    for weight in mixer.weights:
        yield from _adapter_operators(shop, weight)
    for weight in _fused_input_projections(shop, mixer.weights):
        yield _linear_operator(
            shop, weight, "mla_up_proj" if ".kv_b" in weight.path or ".q_b" in weight.path else "attention"
        )
    if isinstance(mixer, StateSpace | LinearAttention | Recurrent):
        yield scan_of(shop, mixer)
        return
    yield from attention_of(shop, mixer)
    rotary = getattr(mixer, "rotary_dim", 0) or getattr(mixer, "qk_rope_head_dim", 0)
    if rotary:
        heads = mixer.heads + getattr(mixer, "kv_heads", 1)
        yield memory_pass(shop, "attention", shop.tokens / shop.tp * heads * rotary, *shop.kernels.rope)


def has_adapter(plan: Plan, weight: Weight) -> bool:
    """Whether an adapter stands beside a matrix: by the last name of its module."""
    module = weight.path.removesuffix(".weight").rsplit(".", 1)[-1]
    return (
        plan.adapter is not None
        and weight.role is Role.LINEAR
        and (module in plan.adapter.targets or "all-linear" in plan.adapter.targets)
    )


def _adapter_operators(shop: TrainTiming, weight: Weight) -> Iterator[Operator]:
    """What an adapter and a quantized matrix add to a product: the adapter's two thin ones, which read the
    input and write and add the output, and the matrix unpacked to 16 bits, forward and backward.
    """
    if weight.role is not Role.LINEAR:
        return
    out, inner = weight.shape[0], weight.elements / weight.shape[0]
    if has_adapter(shop.plan, weight):
        elements = shop.tokens * (BF16_BYTES * inner + 4.0 * BF16_BYTES * out) / shop.tp
        yield memory_pass(shop, "adapter", elements, 1, 2)
    packed = shop.plan.quantization
    if packed is not None and packed.weights.bits < 16:
        yield memory_pass(
            shop,
            "unpacked",
            weight.elements / shop.tp,
            packed.weights.bits / 8 + BF16_BYTES,
            packed.weights.bits / 8 + BF16_BYTES,
        )


def _fused_input_projections(shop: TrainTiming, weights: tuple[Weight, ...]) -> list[Weight]:
    """The matrices; those of one input that are cut by rows are one product where the code keeps them in one
    matrix.
    """
    linear = [w for w in weights if w.role is Role.LINEAR]
    if not shop.kernels.fuses_inputs:
        return linear
    found: dict[object, Weight] = {}
    for weight in linear:
        wide = weight.cut == 0 and len(weight.shape) == 2
        key = weight.shape[1] if wide else weight.path
        one = found.get(key)
        found[key] = (
            weight if one is None else replace(one, shape=(one.shape[0] + weight.shape[0], weight.shape[1]))
        )
    return list(found.values())


def _linear_operator(shop: TrainTiming, weight: Weight, part: str) -> Operator:
    out, inner = weight.shape[0], weight.elements // weight.shape[0]
    divided = shop.tp if weight.cut is not None else 1
    rows = shop.tokens if weight.cut is not None else shop.tokens / shop.between
    made = matmul_operator(
        shop, part, rows, *((out / divided, inner) if weight.cut == 0 else (out, inner / divided))
    )
    return replace(made, gathers=weight.cut == 0, scatters=weight.cut not in (None, 0))


def _feed_forward(shop: TrainTiming, ff: Dense | Moe, hidden: int) -> Iterator[Operator]:
    if isinstance(ff, Moe):
        yield from _expert_operators(shop, ff, hidden)
        return
    yield from (one for weight in ff.weights for one in _adapter_operators(shop, weight))
    yield from (
        _linear_operator(shop, weight, "mlp") for weight in _fused_input_projections(shop, ff.weights)
    )
    passes = shop.kernels.gated if ff.gated else shop.kernels.activation
    yield memory_pass(shop, "mlp", shop.tokens / shop.tp * ff.intermediate, *passes)


def _expert_operators(shop: TrainTiming, moe: Moe, hidden: int) -> Iterator[Operator]:
    """Routed experts under an even routing: each rank computes as many copies as it has tokens to send."""
    mesh, routing = shop.plan.mesh, shop.plan.routing
    share = (
        routing.capacity_factor if routing is not None and routing.padded and routing.capacity_factor else 1.0
    )
    copies = (
        shop.tokens / shop.between * moe.experts_per_token * share
    )  # before expert tensor parallelism, which gathers them
    mine = larger(moe.experts / mesh.ep, 1)
    for weight in moe.weights:
        if weight.role is Role.ROUTER:
            yield replace(
                matmul_operator(shop, "moe", shop.tokens / shop.between, moe.experts, hidden, eight=False)
            )
        if weight.role is Role.EXPERT:
            one = matmul_operator(
                shop,
                "moe",
                copies * mesh.etp / mine,
                weight.shape[1] / mesh.etp,
                weight.shape[2],
                groups=mine,
            )
            yield replace(
                one, forward_s=one.forward_s * mine, backward_s=one.backward_s * mine, flops=one.flops * mine
            )
    yield memory_pass(shop, "moe", copies * hidden, *shop.kernels.permute)
    yield memory_pass(
        shop,
        "moe_act",
        copies * moe.intermediate,
        *(shop.kernels.gated if moe.gated else shop.kernels.activation),
    )
    if moe.shared is not None:
        yield from (replace(one, part="moe") for one in _feed_forward(shop, moe.shared, hidden))


def head_operators(shop: TrainTiming, head: Head, hidden: int, vocab: int) -> tuple[Operator, ...]:
    """The output product and the loss. A tied head multiplies by the embedding table."""
    width = head.width or vocab
    kept = shop.tokens / shop.tp * width
    made = matmul_operator(shop, "head", shop.tokens, width / shop.tp, hidden, eight=False)
    return made, memory_pass(shop, "loss", kept, *shop.kernels.losses[shop.plan.loss])
