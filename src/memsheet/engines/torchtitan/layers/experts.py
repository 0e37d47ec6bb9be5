"""Routed experts as torchtitan runs them where every rank has all of them (b5bcd76, models/common/moe.py,
token_dispatcher.py:47-169): tokens are put in order of their expert, all experts are one grouped product, and
what they say is weighted in fp32 and added where the tokens were.

Axes besides those of the layers: ``e`` experts, ``t`` experts of a token, ``i`` an expert's width.
"""

from __future__ import annotations

from memsheet.engines.torchtitan.layers.switches import NORMED_SHARES
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Chosen, Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.frozen import replace
from memsheet.plan.dtypes import BOOL, FP32, INT32, INT64
from memsheet.plan.model import Dense, Moe, Role, Weight

STATES: Shape = ("b", "s", "h")
SCORES: Shape = ("b", "s", "e")
PAIRS: Shape = ("b", "s", "t")
ROWS: Shape = (*PAIRS, "h")
INNER: Shape = (*PAIRS, "i")
PATH, ROUTER, EXPERTS = "moe", "moe.router.gate", "moe.routed_experts.inner_experts"


SHARED = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def torchtitan_moe(ff: Moe) -> Moe:
    """The router, three matrices of each expert (moe.py:45-53), a shared expert as one that is wider, and the
    bias by which the router balances.
    """
    router = next(w for w in ff.weights if w.role is Role.ROUTER)
    both, down = ff.routed
    half = (both.shape[0], both.shape[1] // 2, both.shape[2])
    made = {"w1_EFD": (both, half), "w2_EDF": (down, down.shape), "w3_EFD": (both, half)}
    matrices = (
        replace(like, path=f"{EXPERTS}.{name}", shape=shape, cut=None) for name, (like, shape) in made.items()
    )
    bias = (replace(w, path=f"{PATH}.expert_bias_E") for w in ff.weights if w.role is Role.BUFFER)
    weights = (*matrices, replace(router, path=f"{ROUTER}.weight"), *bias)
    return replace(
        ff, path=PATH, weights=weights, shared=_torchtitan_shared(ff.shared) if ff.shared else None
    )


def _torchtitan_shared(ff: Dense) -> Dense:
    path = f"{PATH}.shared_experts"
    weights = (replace(w, path=f"{path}.{SHARED[w.path.split('.')[-2]]}.weight") for w in ff.weights)
    return replace(ff, path=path, weights=tuple(weights))


def routed_feed_forward(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Tensor:
    """What the experts of each token say, weighted and added. What the router made keeps its names until
    then.
    """
    shares, picked, scores = _router_shares(r, x, ff, how)
    chosen = r.tensor(f"{PATH}/routing_map", SCORES, BOOL)
    counts = r.tensor(f"{PATH}/counts", ("e",), INT64)
    rows, tokens, weights = _in_order_of_experts(r, x, shares)
    offsets = r.tensor(f"{EXPERTS}/offsets", ("e",), INT32)
    first, last, up = ff.routed
    inner = r.unary(
        _grouped_product(r, rows, first, offsets, INNER, how), f"{EXPERTS}/activation", saves="input"
    )
    inner = r.mul(inner, _grouped_product(r, rows, up, offsets, INNER, how), f"{EXPERTS}/product")
    said = _grouped_product(r, inner, last, offsets, ROWS, how)
    del inner, offsets
    out = _combined_rows(r, said, weights, tokens)
    del shares, picked, scores, chosen, counts, rows, said
    return out


def _router_shares(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Shares and numbers of each token's experts, and all scores (moe.py:277-335): the product is in fp32 by
    autocast, which casts the states and the matrix, and no policy keeps it (activation_checkpoint.py:196).
    """
    shape = (ff.experts, x.shape[-1])
    weight = r.cast(r.parameter(ROUTER, shape, how.parameters), FP32, f"{ROUTER}/weight_fp32")
    wide = r.cast(x, FP32, f"{ROUTER}/input_fp32")
    states = wide.shape

    def backward(_: Grad) -> list[Grad | None]:
        of_weight = r.grad(shape, FP32)
        return [r.grad(states, FP32), of_weight]

    logits = r.apply(r.tensor(f"{ROUTER}/output", SCORES, FP32), (wide, weight), (wide, weight), backward)
    del wide, weight
    scores = r.unary(logits, f"{ROUTER}/softmax", saves="output")
    del logits
    biased = r.tensor(f"{ROUTER}/biased", SCORES, FP32)
    best = r.result(f"{ROUTER}/topk_values", PAIRS, FP32, Chosen.ROUTING)
    picked = r.result(f"{ROUTER}/topk", PAIRS, INT64, Chosen.ROUTING)
    shares = r.apply(
        r.tensor(f"{ROUTER}/scores", PAIRS, FP32), (scores,), (picked,), lambda _: [r.grad(SCORES, FP32)]
    )
    if NORMED_SHARES in how.options:
        one: Shape = (*PAIRS[:-1], 1)
        total = r.apply(r.tensor(f"{ROUTER}/sum", one, FP32), (shares,), (), lambda _: [r.grad(PAIRS, FP32)])
        shares = r.mul(shares, total, f"{ROUTER}/normed")
        del total
    shares = r.scale(shares, f"{ROUTER}/scaled")
    del biased, best
    return shares, picked, scores


def _in_order_of_experts(r: Recorder, x: Tensor, shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each token once for each of its experts, which token it is, and its share
    (token_dispatcher.py:93-100).
    """
    order = r.tensor(f"{PATH}/order", PAIRS, INT64)
    weights = r.apply(
        r.tensor(f"{PATH}/shares", PAIRS, FP32), (shares,), (order,), lambda _: [r.grad(PAIRS, FP32)]
    )
    tokens = r.tensor(f"{PATH}/tokens", PAIRS, INT64)
    del order
    back, dtype = x.shape, x.dtype
    rows = r.apply(r.tensor(f"{PATH}/rows", ROWS, dtype), (x,), (tokens,), lambda _: [r.grad(back, dtype)])
    return rows, tokens, weights


def _grouped_product(
    r: Recorder, x: Tensor, weight: Weight, offsets: Tensor, out: Shape, how: RunConfig
) -> Tensor:
    """Rows times their expert's matrix; the matrices' gradient is made before the rows'."""
    matrices = r.parameter(EXPERTS, tuple(weight.shape), how.parameters)
    shape, dtype, whole = x.shape, x.dtype, tuple(weight.shape)

    def backward(_: Grad) -> list[Grad | None]:
        of_weight = r.grad(whole, dtype)
        return [r.grad(shape, dtype), of_weight]

    return r.apply(
        r.tensor(f"{weight.path}/output", out, dtype), (x, matrices), (x, matrices, offsets), backward
    )


def _combined_rows(r: Recorder, said: Tensor, weights: Tensor, tokens: Tensor) -> Tensor:
    """Rows raised to fp32, times their shares, lowered, and added to zeros in a result of its own
    (token_dispatcher.py:156-168, ops/scatter_add.py).
    """
    dtype = said.dtype
    zeros = r.tensor(f"{PATH}/zeros", STATES, dtype)
    wide = r.cast(said, FP32, f"{PATH}/rows_fp32")
    weighted = r.mul(wide, weights, f"{PATH}/weighted_fp32")
    del wide
    low = r.cast(weighted, dtype, f"{PATH}/weighted")
    del weighted
    out = r.apply(
        r.tensor(f"{PATH}/output", STATES, dtype), (low,), (tokens,), lambda _: [r.grad(ROWS, dtype)]
    )
    del zeros, low
    return out
