"""Routers of the transformers library's mixtures of experts (5.23), written over shape-only tensors: from a
token to its experts' shares.

Axes: ``e`` experts, ``t`` experts of a token. What a router's own function names goes when it returns; its
logits stay as long as its caller's function runs, which names them.
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import BOOL, FP32, INT64, DType
from memsheet.plan.model import Moe, Role, Weight

PAIRS: Shape = ("b", "s", "t")
ALL: Shape = ("b", "s", "e")

Routed = tuple[Tensor, tuple[Tensor, ...]]
"""The shares of each token's experts, and what the caller names besides."""
Route = Callable[[Recorder, Tensor, Moe, RunConfig], Routed]


def _router_weight(ff: Moe) -> tuple[Weight, str]:
    weight = next(w for w in ff.weights if w.role is Role.ROUTER)
    return weight, weight.path.removesuffix(".weight")


def _router_logits(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> tuple[Tensor, str]:
    weight, path = _router_weight(ff)
    bias = next((w for w in ff.weights if w.path == f"{path}.bias"), None)
    added = (
        r.parameter(f"{path}.bias", tuple(bias.shape), how.parameters, trains=how.trains) if bias else None
    )
    return r.linear(
        x, r.parameter(path, tuple(weight.shape), how.parameters, trains=how.trains), "e", path, bias=added
    ), path


def _top_k_scores(r: Recorder, x: Tensor, chosen: Tensor, path: str) -> Tensor:
    """The largest few of ``x``."""
    back, dtype = x.shape, x.dtype
    return r.apply(
        r.tensor(path + "/largest", PAIRS, dtype), (x,), (chosen,), lambda _: [r.grad(back, dtype)]
    )


def _softmax_router(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """Of all experts in fp32, the largest few, in the logits' dtype (modeling_qwen3_moe.py:257-266)."""
    logits, path = _router_logits(r, x, ff, how)
    return _softmax_of(r, logits, path, logits.dtype)


def _softmax_of(r: Recorder, logits: Tensor, path: str, dtype: DType) -> Routed:
    chosen = r.tensor(path + "/experts", PAIRS, INT64)
    scores = _top_k_scores(r, r.unary(logits, path + "/softmax", saves="output", dtype=FP32), chosen, path)
    return r.cast(scores, dtype, path + "/scores"), (logits, chosen)


def _softmax_as_tokens(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """The same, in the tokens' dtype (modeling_jamba.py:691-695)."""
    logits, path = _router_logits(r, x, ff, how)
    return _softmax_of(r, logits, path, x.dtype)


def _wide_softmax(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """The same, handed on in fp32, which widens what is multiplied with them
    (modeling_mixtral.py:109-117).
    """
    logits, path = _router_logits(r, x, ff, how)
    return _softmax_of(r, r.cast(logits, FP32, path + "/fp32"), path, FP32)


def _chosen_first(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """The largest few logits in fp32, their softmax (modeling_granitemoe.py:128-132)."""
    logits, path = _router_logits(r, x, ff, how)
    logits = r.cast(logits, FP32, path + "/fp32")
    chosen = r.tensor(path + "/experts", PAIRS, INT64)
    scores = r.unary(_top_k_scores(r, logits, chosen, path), path + "/softmax", saves="output")
    return r.cast(scores, x.dtype, path + "/scores"), (logits, chosen)


def _asked_in_fp32(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> tuple[Tensor, str]:
    """Logits of tokens and matrix raised to fp32; autocast lowers both again."""
    weight, path = _router_weight(ff)
    x = r.cast(x, FP32, path + "/fp32")
    matrix = r.cast(
        r.parameter(path, tuple(weight.shape), how.parameters, trains=how.trains), FP32, path + "/weight_fp32"
    )
    return r.linear(x, matrix, "e", path), path


def _grouped_sigmoid_router(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """A sigmoid of every expert; which ones, by groups and with a bias that rules and no gradient move; their
    shares add up to a constant (modeling_deepseek_v3.py:133-159, modeling_glm4_moe.py the same).
    """
    logits, path = _asked_in_fp32(r, x, ff, how)
    scores = r.unary(logits, path + "/sigmoid", saves="output")
    chosen, named = _by_groups(r, path)
    picked = _chosen_expert_scores(r, scores, chosen, path)
    shares = _normed_shares(r, picked, path)
    del named, scores, picked
    return r.scale(shares, path + "/scores"), (logits, chosen)


def _by_groups(r: Recorder, path: str) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Which experts, of the best groups alone; and what its caller names of the way there."""
    biased = r.tensor(path + "/biased", ALL, FP32)
    spread = r.tensor(path + "/groups", ALL, FP32)
    lower = r.tensor(path + "/groups", ALL, BOOL)
    others = r.tensor(path + "/groups", ALL, BOOL)
    masked = r.tensor(path + "/masked", ALL, FP32)
    del biased, lower
    return r.tensor(path + "/experts", PAIRS, INT64), (spread, others, masked)


def _chosen_expert_scores(r: Recorder, scores: Tensor, chosen: Tensor, path: str) -> Tensor:
    return _top_k_scores(r, scores, chosen, path)


def _normed_shares(r: Recorder, shares: Tensor, path: str) -> Tensor:
    """Divided by their sum in place, which keeps a copy of them."""
    shape, dtype = shares.shape, shares.dtype
    total = r.tensor(path + "/total", (*shape[:-1], 1), FP32 if r.widens else dtype)
    before = r.tensor(path + "/before", shape, dtype)

    def backward(_: Grad) -> list[Grad | None]:
        own = r.grad(shape, dtype)
        scratch = [r.grad(shape, dtype) for _ in range(3)]
        del scratch
        return [own]

    return r.apply(Tensor(shares.storage, shape, dtype), (shares,), (before, total), backward)


def _limited_softmax(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """The largest few of a softmax in fp32, of the best groups alone (modeling_deepseek_v2.py:96-116)."""
    logits, path = _asked_in_fp32(r, x, ff, how)
    scores = r.unary(logits, path + "/softmax", saves="output", dtype=FP32)
    if ff.groups > 1:
        spread, lower = r.tensor(path + "/groups", ALL, FP32), r.tensor(path + "/groups", ALL, BOOL)
        others = r.tensor(path + "/others", ALL, BOOL)
        del lower
        scores = r.apply(
            r.tensor(path + "/masked", ALL, FP32), (scores,), (others,), lambda _: [r.grad(ALL, FP32)]
        )
        del spread
    chosen = r.tensor(path + "/experts", PAIRS, INT64)
    return r.scale(_top_k_scores(r, scores, chosen, path), path + "/scores"), (logits, chosen)


def _few_softmax(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """The largest few logits, their softmax in their own dtype (modeling_gpt_oss.py:125-129); the shares
    leave the layer too.
    """
    logits, path = _router_logits(r, x, ff, how)
    chosen = r.tensor(path + "/experts", PAIRS, INT64)
    top = _top_k_scores(r, logits, chosen, path)
    scores = r.unary(top, path + "/softmax", saves="output")
    return scores, (logits, chosen, scores)


def _sparsemixer_router(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """Two experts drawn one after the other, each from a softmax over the logits that are near the largest
    (modeling_phimoe.py:237-298, 339-459).
    """
    logits, path = _router_logits(r, x, ff, how)
    wide = FP32 if r.widens else logits.dtype
    kept = [
        (r.tensor(path + "/far", ALL, BOOL), r.tensor(path + "/softmax", ALL, wide))
        for _ in range(ff.experts_per_token)
    ]
    chosen = r.tensor(path + "/experts", PAIRS, INT64)
    saved = [tensor for pair in kept for tensor in pair]
    scores = r.apply(
        r.tensor(path + "/scores", PAIRS, wide), (logits,), (*saved, chosen), lambda _: [r.grad(ALL, wide)]
    )
    return scores, (logits, chosen)


def _corrected_softmax(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """A softmax in fp32 that autocast leaves alone; which experts, by it and a bias; shares divided by their
    sum, in the tokens' dtype (modeling_ernie4_5_moe.py:344-356).
    """
    weight, path = _router_weight(ff)
    with r.without_autocast():
        logits = r.linear(
            r.cast(x, FP32, path + "/fp32"),
            r.parameter(path, tuple(weight.shape), FP32, trains=how.trains),
            "e",
            path,
        )
        scores = r.unary(logits, path + "/softmax", saves="output")
        biased = r.tensor(path + "/biased", ALL, FP32)
        chosen = r.tensor(path + "/experts", PAIRS, INT64)
        del biased
        picked = _top_k_scores(r, scores, chosen, path)
        total = r.tensor(path + "/total", (*PAIRS[:2], 1), FP32)
        shares = r.apply(
            r.tensor(path + "/shares", PAIRS, FP32),
            (picked,),
            (picked, total),
            lambda _: [r.grad(PAIRS, FP32)],
        )
    return r.cast(shares, x.dtype, path + "/scores"), (logits, chosen)


def _biased_sigmoid(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """A sigmoid of every expert in fp32; which ones, by it and a bias; their shares divided by their sum in
    place, in fp32 (modeling_minimax_m2.py, MiniMaxM2TopKRouter).
    """
    logits, path = _router_logits(r, x, ff, how)
    scores = r.unary(r.cast(logits, FP32, path + "/fp32"), path + "/sigmoid", saves="output")
    biased = r.tensor(path + "/biased", ALL, FP32)
    chosen = r.tensor(path + "/experts", PAIRS, INT64)
    shares = _normed_shares(r, _chosen_expert_scores(r, scores, chosen, path), path)
    del biased, scores
    return shares, (logits, chosen)


def _scaled_sigmoid(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """The same of logits that stay in fp32, divided and scaled in tensors of their own (modeling_afmoe.py,
    AfmoeTokenChoiceRouter).
    """
    logits, path = _router_logits(r, x, ff, how)
    path = path.rpartition(".")[0]
    logits = r.cast(logits, FP32, path + "/fp32")
    scores = r.unary(logits, path + "/sigmoid", saves="output")
    biased = r.tensor(path + "/biased", ALL, FP32)
    chosen = r.tensor(path + "/experts", PAIRS, INT64)
    del biased
    shares = _divided_shares(r, _chosen_expert_scores(r, scores, chosen, path), path)
    del scores
    return r.scale(shares, path + "/scores"), (logits, chosen)


def _divided_shares(r: Recorder, picked: Tensor, path: str) -> Tensor:
    """Shares over their sum, which are kept."""
    total = r.tensor(path + "/total", (*PAIRS[:2], 1), FP32)
    return r.apply(
        r.tensor(path + "/shares", PAIRS, FP32), (picked,), (picked, total), lambda _: [r.grad(PAIRS, FP32)]
    )


def _wide_matrix_softmax(r: Recorder, x: Tensor, ff: Moe, how: RunConfig) -> Routed:
    """A softmax of what a matrix that is fp32 makes of tokens raised to it, the largest few divided by their
    sum in place (modeling_hunyuan_v1_moe.py, HunYuanMoEV1Gate); as it is where its layer is handed a lower
    one.
    """
    weight, matrix = _router_weight(ff)
    path, dtype = matrix.rpartition(".")[0], how.parameters if how.handed_low else FP32
    made = r.parameter(matrix, tuple(weight.shape), dtype, trains=how.trains)
    logits = r.linear(r.cast(x, dtype, path + "/fp32"), made, "e", matrix)
    chosen = r.tensor(path + "/experts", PAIRS, INT64)
    scores = _top_k_scores(r, r.unary(logits, path + "/softmax", saves="output", dtype=FP32), chosen, path)
    return r.cast(_normed_shares(r, scores, path), logits.dtype, path + "/scores"), (logits, chosen)


ROUTERS: dict[str, Route] = {
    "mixtral": _wide_softmax, "qwen3_moe": _softmax_router, "qwen3_vl_moe": _softmax_router, "qwen3_next": _softmax_router, "qwen3_5_moe_text": _softmax_router, "olmoe": _softmax_router, "qwen2_moe": _softmax_router, "granitemoe": _chosen_first,
    "deepseek_v3": _grouped_sigmoid_router, "glm4_moe": _grouped_sigmoid_router, "deepseek_v2": _limited_softmax, "jamba": _softmax_as_tokens, "gpt_oss": _few_softmax,
    "minimax_m2": _biased_sigmoid, "dots1": _grouped_sigmoid_router, "exaone_moe": _grouped_sigmoid_router, "glm4_moe_lite": _grouped_sigmoid_router, "hunyuan_v1_moe": _wide_matrix_softmax,
    "afmoe": _scaled_sigmoid, "granitemoeshared": _chosen_first, "flex_olmo": _softmax_router,
    "phimoe": _sparsemixer_router, "ernie4_5_moe": _corrected_softmax,
}  # fmt: skip
"""Families whose experts are run by the library's grouped product, with nothing beside them but a shared
expert.
"""

SHARED_LAST = frozenset(
    {"deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "dots1", "exaone_moe", "granitemoeshared"}
)
"""Those whose shared expert runs after the routed ones."""

SHARED_BESIDE = frozenset({"granitemoeshared"})
"""Those whose layer adds the shared expert itself, when the experts' module has returned."""
