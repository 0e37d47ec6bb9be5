"""Megatron-Core's mixture of experts: router, dispatch, grouped products, combine (Megatron-LM 23e00ed,
megatron/core/transformer/moe).

Axes besides those of ``megatron.py``: ``e`` experts, ``t`` experts of a token, ``p`` copies of this rank's
tokens, ``x`` copies that this rank's experts are given, ``i`` an expert's width on this rank.
"""

from __future__ import annotations

from math import log, sqrt

from memsheet.arith import Count, ceil_div, each, maximum, minimum, where
from memsheet.engines.megatron.layers.modules import (
    STREAM,
    column_parallel_linear,
    rearranged_copy,
    rms_norm_output,
    row_parallel_linear,
    saved_gemm_operand,
    swiglu,
)
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Storage, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.frozen import replace
from memsheet.plan.dtypes import BOOL, FP32, INT32, INT64
from memsheet.plan.model import Moe, Role
from memsheet.plan.plan import ENDS_OF_ROUTING, MAX_VIOLATION, Plan, Routing, Spread
from memsheet.plan.workload import PassShape
from memsheet.references import MEGATRON, formula

COPIES: Shape = ("p", "h")
GIVEN: Shape = ("x", "h")
SCORES: Shape = ("b", "n", "e")


def experts_layer(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Tensor:
    """A norm of its own, then the layer; all of it under a checkpoint with recompute of ``moe``
    (moe_layer.py:230-330).
    """
    normed = rms_norm_output(r, x, "pre_mlp_layernorm")
    if "moe" in how.again:
        return r.again(lambda y: _unnormed_moe_layer(r, y, ff, how), normed)
    return _unnormed_moe_layer(r, normed, ff, how)


def _unnormed_moe_layer(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Tensor:
    """What one function names lives until it returns: the copies as they were sent and as they came."""
    shares, rows = _route_tokens(r, x, ff, how)
    permuted = _permute_tokens(r, x, rows, f"{ff.path}/permuted")
    came = rearranged_copy(r, permuted, GIVEN, f"{ff.path}/received") if how.shares_experts else permuted
    shared = _shared_experts_mlp(r, x, ff, how) if ff.shared else None
    if how.splits_experts:  # all tensor-parallel ranks of an expert work on the same tokens
        came = rearranged_copy(r, came, GIVEN, f"{ff.path}/gathered")
    given = rearranged_copy(r, came, GIVEN, f"{ff.path}/sorted") if how.several_experts else came
    out = _grouped_mlp(r, given, _permute_shares(r, shares, ff), ff, how)
    del given
    out = rearranged_copy(r, out, GIVEN, f"{ff.path}/unsorted") if how.several_experts else out
    out = rearranged_copy(r, out, COPIES, f"{ff.path}/returned") if how.shares_experts else out
    back, dtype = out.shape, out.dtype
    out = r.apply(
        r.tensor(f"{ff.path}/output", STREAM, dtype), (out,), (rows,), lambda _: [r.grad(back, dtype)]
    )
    result = out if shared is None else r.add(out, shared, f"{ff.path}/sum")
    del permuted, came, shares
    return result


def _route_tokens(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> tuple[Tensor, Tensor]:
    """Scores of all experts, the chosen ones as a mask, auxiliary loss, dropping (router.py:380-480,
    moe_utils.py:560-760); and the table that the fused permutation finds rows by (TransformerEngine
    pytorch/triton/permutation.py:52).
    """
    path, dtype = f"{ff.path}.router", x.dtype
    logits = r.apply(r.tensor(f"{path}/logits", SCORES, dtype), (x,), (x,), lambda _: [r.grad(STREAM, dtype)])
    scores = r.unary(logits, f"{path}/scores", saves="output", dtype=FP32)
    chosen = r.tensor(f"{path}/chosen", ("b", "n", "t"), INT64)
    auxiliary = r.tensor(f"{path}/auxiliary_scores", SCORES, FP32)
    mask = r.tensor(f"{path}/routing_map", SCORES, BOOL)
    kept = (chosen, auxiliary, mask)
    shares = r.apply(
        r.tensor(f"{path}/shares", SCORES, dtype), (scores,), kept, lambda _: [r.grad(SCORES, FP32)]
    )
    if how.capacity:
        shares = r.apply(
            r.tensor(f"{path}/dropped", SCORES, dtype), (shares,), (mask,), lambda _: [r.grad(SCORES, dtype)]
        )
    return shares, r.tensor(f"{ff.path}/row_id_map", ("b", "n", "2e+1"), INT32)


def _permute_tokens(r: Recorder, x: Tensor, rows: Tensor, path: str) -> Tensor:
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, COPIES, dtype), (x,), (rows,), lambda _: [r.grad(back, dtype)])


def _shared_experts_mlp(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Tensor:
    """Experts of every token: a feed-forward layer without a norm (shared_experts.py)."""
    assert ff.shared is not None

    def run(y: Tensor) -> Tensor:
        path = f"{ff.path}.shared_experts"
        inner = column_parallel_linear(r, y, "2·f", f"{path}.linear_fc1", how)
        return row_parallel_linear(
            r, swiglu(r, inner, (*inner.shape[:-1], "f"), f"{path}/activation"), f"{path}.linear_fc2", how
        )

    return r.again(run, x) if "shared_experts" in how.again else run(x)


def _permute_shares(r: Recorder, shares: Tensor, ff: Moe) -> Tensor:
    """A share of each copy, which goes the way of the copies: what the router saved waits for its gradient
    (moe_utils.py, RouterGatingLinearFunction).
    """
    dtype = shares.dtype
    return r.apply(
        r.tensor(f"{ff.path}.experts/shares", ("x",), dtype), (shares,), (), lambda _: [r.grad(SCORES, dtype)]
    )


def _grouped_mlp(r: Recorder, x: Tensor, weights: Tensor, ff: Moe, how: RunConfig) -> Tensor:
    """TEGroupedMLP (experts.py:740-900): the products save what they are given, the activation both halves
    and the tokens' shares.

    Under recompute of moe_act its result goes when the second product has read it and is made again before
    that one's backward.
    """
    path, dtype = f"{ff.path}.experts", x.dtype
    inner = _grouped_gemm(r, x, ("x", "2·i"), f"{path}.linear_fc1", how)
    made: list[Storage] = []

    def back(_: Grad) -> list[Grad | None]:
        result: list[Grad | None] = [r.grad(("x", "2·i"), dtype), r.grad(("x",), dtype)]
        made.clear()
        return result

    inner = _clamp_halves(r, inner, path) if has_expert_biases(ff) else inner
    act = r.apply(r.tensor(f"{path}/activation", ("x", "i"), dtype), (inner, weights), (inner, weights), back)
    if "moe_act" not in how.again:
        done = _grouped_gemm(r, act, GIVEN, f"{path}.linear_fc2", how)
        return _add_weighted_biases(r, done, weights, path) if has_expert_biases(ff) else done
    out = r.tensor(f"{path}.linear_fc2/output", GIVEN, dtype)

    def again(_: Grad) -> list[Grad | None]:
        made.append(r.storage(f"{path}/activation", ("x", "i"), dtype))
        return [r.grad(("x", "i"), dtype)]

    return r.apply(out, (act,), (), again)


def has_expert_biases(ff: Moe) -> bool:
    """Whether experts have biases, as gpt-oss's have; their activation is then clamped, too."""
    return any(weight.role is Role.EXPERT_BIAS for weight in ff.weights)


def _clamp_halves(r: Recorder, x: Tensor, path: str) -> Tensor:
    """Both halves clamped and joined anew before the fused activation, each clamp saving what it was given
    (v0.16.0 core/fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl with clamp_value).
    """
    half, dtype = ("x", "i"), x.dtype
    halves = [r.tensor(f"{path}/clamped_half", half, dtype) for _ in range(2)]
    joined = r.tensor(f"{path}/clamped", ("x", "2·i"), dtype)
    del halves

    def back(_: Grad) -> list[Grad | None]:
        parts = [r.grad(half, dtype) for _ in range(2)]
        result: list[Grad | None] = [r.grad(("x", "2·i"), dtype)]
        del parts
        return result

    return r.apply(joined, (x,), (x,), back)


def _add_weighted_biases(r: Recorder, x: Tensor, weights: Tensor, path: str) -> Tensor:
    """An expert's bias times the tokens' shares, which are fp32: the sums part by part, joined, and cast
    (v0.16.0 moe/experts.py, TEGroupedMLP._apply_bias).
    """
    dtype, share = x.dtype, weights.dtype
    parts = r.tensor(f"{path}/biased_parts", GIVEN, FP32)
    joined = r.tensor(f"{path}/biased_joined", GIVEN, FP32)
    del parts
    result = r.tensor(f"{path}/biased", GIVEN, dtype)
    del joined

    def back(_: Grad) -> list[Grad | None]:
        wide = r.grad(GIVEN, FP32)
        parts = r.grad(GIVEN, dtype)
        grads: list[Grad | None] = [r.grad(GIVEN, dtype), r.grad(("x",), share)]
        del wide, parts
        return grads

    return r.apply(result, (x, weights), (weights,), back)


def _grouped_gemm(r: Recorder, x: Tensor, shape: Shape, path: str, how: RunConfig) -> Tensor:
    back, dtype, kept = x.shape, x.dtype, saved_gemm_operand(r, x, path, how)
    return r.apply(r.tensor(f"{path}/output", shape, dtype), (x,), (kept,), lambda _: [r.grad(back, dtype)])


@formula(cites=MEGATRON, at="moe/experts.py: num_local_experts = experts / ep")
def local_experts(ff: Moe, plan: Plan) -> Count:
    """Experts of one rank."""
    return ceil_div(ff.experts, plan.mesh.ep)


@formula(
    cites=MEGATRON, at="moe/token_dispatcher.py, experts.py: shapes of an expert layer's tensors on a rank"
)
def expert_axes(ff: Moe, plan: Plan, shape: PassShape) -> dict[str, Count]:
    """Values of the axes of an expert layer."""
    positions = ceil_div(shape.tokens, plan.mesh.cp)
    tokens = shape.sequences * (ceil_div(positions, plan.mesh.tp) if plan.sequence_parallel else positions)
    routing = plan.routing or Routing()
    sent = sent_copies(ff, tokens, routing)
    width = ceil_div(ff.intermediate, plan.mesh.etp)
    return {
        "e": ff.experts, "t": ff.experts_per_token, "p": sent, "x": given_copies(ff, tokens, sent, plan, routing), "i": width,
        "2·i": 2 * width, "2e+1": 2 * ff.experts + 1,
    }  # fmt: skip


@formula(
    cites=MEGATRON,
    at="moe/token_dispatcher.py:380-410 preprocess: tokens · topk, or the capacity of every expert",
)
def sent_copies(ff: Moe, tokens: Count, routing: Routing) -> Count:
    """Copies of a rank's ``tokens`` that go to experts."""
    copies = tokens * ff.experts_per_token
    if routing.capacity_factor is None:
        return copies
    capacity = capacity_of(ff, copies, routing.capacity_factor)
    return capacity * ff.experts if routing.padded else minimum(copies, capacity * ff.experts)


@formula(cites=MEGATRON, at="moe/moe_utils.py get_capacity: ceil(copies / experts · factor)")
def capacity_of(ff: Moe, copies: Count, factor: float) -> Count:
    """Copies that one expert takes from one rank."""
    thousandths = round(factor * 1000)
    return ceil_div(copies * thousandths, ff.experts * 1000)


@formula(
    cites=MEGATRON,
    at="moe/token_dispatcher.py: all-to-all over ep ranks; balanced: as many as were sent; worst: every "
    "rank's tokens come here; expected: "
    "the largest of ep ranks when tokens choose evenly and independently, mean + sigma · sqrt(2 ln ep)",
)
def given_copies(ff: Moe, tokens: Count, sent: Count, plan: Plan, routing: Routing) -> Count:
    """Copies that the experts of one rank are given by all ranks that share them."""
    spread = routing.spread
    if not isinstance(spread, Spread):  # all ends of a stratum's
        ends = (replace(routing, spread=one) for one in ENDS_OF_ROUTING)
        found, *others = (given_copies(ff, tokens, sent, plan, end) for end in ends)
        for place, other in enumerate(others, 1):
            found = where(spread == place, other, found)
        return found
    ranks, split = plan.mesh.ep, plan.mesh.etp
    if (
        spread is Spread.BALANCED
        or routing.balanced
        or (routing.capacity_factor is not None and routing.padded)
    ):
        return sent * split
    most = tokens * ranks * split * minimum(ff.experts_per_token, local_experts(ff, plan))
    if routing.capacity_factor is not None:
        most = minimum(
            most,
            ranks
            * split
            * local_experts(ff, plan)
            * capacity_of(ff, tokens * ff.experts_per_token, routing.capacity_factor),
        )
    if spread is Spread.WORST:
        return maximum(most, sent * split)
    if spread is Spread.UNEVEN:
        return minimum(maximum(most, sent * split), sent * split * round(100 * (1 + MAX_VIOLATION)) // 100)
    return minimum(
        maximum(most, sent * split), sent * split + expected_imbalance_copies(sent * ranks, ranks) * split
    )


@formula(
    cites=MEGATRON,
    at=(
        "moe/token_dispatcher.py: the largest of n normal shares of evenly chosen copies, about sigma · "
        "sqrt(2 ln n) above their mean"
    ),
)
def expected_imbalance_copies(copies: Count, ranks: Count) -> Count:
    """How far above the mean the fullest of some ranks is expected to be."""
    return each(_normal_excess, copies, ranks)


def _normal_excess(copies: int, ranks: int) -> int:
    """Sigma · sqrt(2 ln n) of a binomial share."""
    if ranks == 1:
        return 0
    return int(sqrt(2 * log(ranks)) * sqrt(copies / ranks * (1 - 1 / ranks)))
