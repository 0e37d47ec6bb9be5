"""Feed-forward in llama.cpp's graph: dense, and routed experts with what stands beside them
(src/llama-graph.cpp, build_ffn and build_moe_ffn).
"""

from __future__ import annotations

from memsheet.engines.llama_cpp.build import GraphBuilder
from memsheet.engines.llama_cpp.ggml import Tensor
from memsheet.plan.model import Dense, Moe


def build_dense_ffn(b: GraphBuilder, ff: Dense, x: Tensor, sizes: dict[str, int]) -> Tensor:
    hidden, n, inner = int(x.layout[1]), int(x.layout[2]), ff.intermediate
    if ff.gated and ff.fused:
        made = b.make("glu", [b.times(sizes.get("gate_up_proj", 0), x, 2 * inner, n)], inner, n)
    elif ff.gated:
        up, gate = (
            b.times(sizes.get("up_proj", 0), x, inner, n),
            b.times(sizes.get("gate_proj", 0), x, inner, n),
        )
        made = b.make("glu", [gate, up], inner, n)
    else:
        made = b.make("unary", [b.times(sizes.get("up_proj", 0), x, inner, n)], inner, n)
    return b.times(sizes.get("down_proj", 0), made, hidden, n)


def build_moe_ffn(b: GraphBuilder, ff: Moe, x: Tensor, sizes: dict[str, int]) -> Tensor:
    """Routed experts, and those that every token takes beside them."""
    hidden, n = int(x.layout[1]), int(x.layout[2])
    found = build_experts(b, ff, x, sizes)
    if ff.shared is None:
        return found
    shared = shared_sizes(sizes)
    beside = build_dense_ffn(b, ff.shared, x, shared)
    if any(w.path.endswith("shared_expert_gate.weight") for w in ff.weights):
        share = b.make("unary", [b.times(shared.get("shared_expert_gate", 0), x, 1, n)], 1, n)
        beside = b.make("mul", [beside, share], hidden, n)
    return b.make("add", [found, beside], hidden, n)


def shared_sizes(sizes: dict[str, int]) -> dict[str, int]:
    """Bytes of the matrices that every token takes beside the experts, by their names in a dense layer."""
    return {name.removeprefix("shared."): size for name, size in sizes.items() if name.startswith("shared.")}


def build_experts(
    b: GraphBuilder,
    ff: Moe,
    x: Tensor,
    sizes: dict[str, int],
    *,
    routed: Tensor | None = None,
    joined: bool = False,
    biased: bool = False,
) -> Tensor:
    """Experts chosen and weighted, all choices of all tokens at once, then their sum. ``routed``: logits of
    the router where they are not of the input; ``joined``: both input matrices are one, and every expert has
    a scale; ``biased``: the choice has a bias. Elsewhere biases of the choice are left out, and its groups
    everywhere: their tensors have a number for each expert and token, which is below a mebibyte.
    """
    hidden, n, used, inner = int(x.layout[1]), int(x.layout[2]), ff.experts_per_token, ff.intermediate
    shares = b.make("soft_max", [routed or b.times(0, x, ff.experts, n)], ff.experts, n)
    ranked = b.make("add", [shares, b.weight()], ff.experts, n) if biased else shares
    order = b.make("argsort", [ranked], ff.experts, n, of="i32")
    chosen = b.view(order, "chosen", used, n)
    picked = b.make("pick", [b.view(shares, "f32", 1, ff.experts, n), chosen], 1, used, n)
    weights = _build_router_weight_norm(b, picked, used, n)
    if not b.how.fused:
        b.graph.expand(weights)
    wide = b.view(x, "f32", hidden, 1, n)
    half = _expert_up_matrix_bytes(sizes)
    if b.how.fused:
        made = b.make(
            "moe_up_gate",
            [b.expert(half, "up_proj"), b.expert(half, "gate_proj"), wide, chosen],
            inner,
            used,
            n,
        )
    elif joined:
        both = b.make("mul_mat_id", [b.expert(2 * half, "gate_up_proj"), wide, chosen], 2 * inner, used, n)
        made = b.make("glu", [b.view(both, "strided", inner, used, n) for _ in range(2)], inner, used, n)
    elif not ff.gated:
        up = b.make("mul_mat_id", [b.expert(half, "up_proj"), wide, chosen], inner, used, n)
        made = b.make("unary", [up], inner, used, n)
    else:
        up = b.make("mul_mat_id", [b.expert(half, "up_proj"), wide, chosen], inner, used, n)
        gate = b.make("mul_mat_id", [b.expert(half, "gate_proj"), wide, chosen], inner, used, n)
        made = b.make("glu", [gate, up], inner, used, n)
    experts = b.make(
        "mul_mat_id", [b.expert(sizes.get("down_proj", 0), "down_proj"), made, chosen], hidden, used, n
    )
    if joined:
        scales = b.make("repeat", [b.weight()], 1, ff.experts, n)
        experts = b.make("mul", [experts, b.make("pick", [scales, chosen], 1, used, n)], hidden, used, n)
    experts = b.make("mul", [experts, weights], hidden, used, n)
    return _build_expert_sum(b, experts, hidden, used, n)


def _expert_up_matrix_bytes(sizes: dict[str, int]) -> int:
    """Bytes of one of the two input matrices of the experts, which a file keeps apart."""
    return sizes.get("up_proj", sizes.get("gate_up_proj", 0) // 2)


def _build_router_weight_norm(b: GraphBuilder, picked: Tensor, used: int, n: int) -> Tensor:
    flat = b.view(picked, "f32", used, n)
    total = b.make("sum_rows", [flat], 1, n)
    if not b.how.fused:
        total = b.make("clamp", [total], 1, n)
    return b.view(b.make("div", [flat, total], used, n), "f32", 1, used, n)


def _build_expert_sum(b: GraphBuilder, experts: Tensor, hidden: int, used: int, n: int) -> Tensor:
    if b.how.fused:
        return b.make("multi_add", [b.view(experts, "strided", hidden, n)], hidden, n)
    b.graph.expand(experts)
    parts = [b.view(experts, "strided", hidden, n) for _ in range(used)]
    for part in parts:
        b.graph.expand(part)
    found = parts[0]
    for part in parts[1:]:
        found = b.make("add", [found, part], hidden, n)
        b.graph.expand(found)
    return found if used > 1 else b.make("cont", [found], hidden, n)
