"""Routed experts as the transformers library runs them in training, written over shape-only tensors.

By its default implementation (5.23, integrations/moe.py:424-539, ``grouped_mm``): every token is copied once for each expert it goes to,
in order of expert, and the copies go through all experts' matrices in one grouped product. Their number is tokens times experts a token
whatever the routing, so nothing here depends on it. Axes: ``e`` experts, ``t`` experts of a token, ``i`` an expert's width.
"""

from __future__ import annotations

from enum import Enum

from memsheet.formulas.feed_forward import ACTIVATIONS, dense
from memsheet.formulas.graph import Grad, Tensor
from memsheet.formulas.numerics import Numerics
from memsheet.formulas.recorder import Recorder
from memsheet.formulas.tape import Shape
from memsheet.spec.dtypes import FP32, INT32, INT64
from memsheet.spec.model import Moe, Role, Weight

COPIES: Shape = ("b", "s", "t", "h")
PAIRS: Shape = ("b", "s", "t")
STREAM: Shape = ("b", "s", "h")


class Router(Enum):
    """How a family's router comes from logits to the shares of a token's experts."""

    SOFTMAX = "softmax"  # of all experts in fp32, the largest few, in the logits' dtype (modeling_qwen3_moe.py:257-266)
    WIDE = "wide"  # the same, handed on in fp32, which widens what is multiplied with them (modeling_mixtral.py:109-117)
    CHOSEN_FIRST = "chosen_first"  # the largest few logits in fp32, their softmax (modeling_granitemoe.py:128-132)


ROUTERS = {
    "mixtral": Router.WIDE, "qwen3_moe": Router.SOFTMAX, "olmoe": Router.SOFTMAX, "qwen2_moe": Router.SOFTMAX,
    "granitemoe": Router.CHOSEN_FIRST,
}  # fmt: skip
"""Families whose experts are run by the library's grouped product, with nothing beside them but a shared expert."""


def moe(r: Recorder, x: Tensor, ff: Moe, how: Numerics, kind: str) -> Tensor:
    """A shared expert, the router, the experts, and the sum of what they say. The router's logits stay to the end: a name holds them."""
    shared = dense(r, x, ff.shared, how) if ff.shared else None
    router = next(w for w in ff.weights if w.role is Role.ROUTER)
    path = router.path.removesuffix(".weight")
    logits = r.linear(x, r.parameter(path, tuple(router.shape), how.parameters, trains=how.trains), "e", path)
    if ROUTERS[kind] is not Router.SOFTMAX:
        logits = r.cast(logits, FP32, path + "/fp32")
    scores, chosen = _routed(r, logits, path, ROUTERS[kind], x)
    result = _experts(r, x, ff, how, scores)
    if shared is not None:
        result = r.add(result, _gated(r, x, shared, ff, how), ff.path + "/sum")
    del logits, chosen
    return result


def _gated(r: Recorder, x: Tensor, shared: Tensor, ff: Moe, how: Numerics) -> Tensor:
    """The shared expert's say, times a number for each token (modeling_qwen2_moe.py:346)."""
    gate = next((w for w in ff.weights if w.path.endswith("shared_expert_gate.weight")), None)
    if gate is None:
        return shared
    path = gate.path.removesuffix(".weight")
    share = r.linear(x, r.parameter(path, tuple(gate.shape), how.parameters, trains=how.trains), 1, path)
    return _weighted(r, shared, r.unary(share, path + "/sigmoid", saves="output"), ff.path)


def _routed(r: Recorder, logits: Tensor, path: str, router: Router, x: Tensor) -> tuple[Tensor, Tensor]:
    """The shares of each token's experts, and which they are."""
    chosen = r.tensor(path + "/experts", PAIRS, INT64)
    if router is Router.CHOSEN_FIRST:
        scores = r.unary(_largest(r, logits, chosen, path), path + "/softmax", saves="output")
        return r.cast(scores, x.dtype, path + "/scores"), chosen
    scores = _largest(r, r.unary(logits, path + "/softmax", saves="output", dtype=FP32), chosen, path)
    return r.cast(scores, logits.dtype, path + "/scores"), chosen


def _largest(r: Recorder, x: Tensor, chosen: Tensor, path: str) -> Tensor:
    back = x.shape
    return r.apply(r.tensor(path + "/largest", PAIRS, FP32), (x,), (chosen,), lambda _: [r.grad(back, FP32)])


def _experts(r: Recorder, x: Tensor, ff: Moe, how: Numerics, scores: Tensor) -> Tensor:
    module = ff.path + ".experts"
    weights = {w.path.rpartition(".")[2]: w for w in ff.routed}
    sorted_, order = r.tensor(module + "/sort", PAIRS, INT64), r.tensor(module + "/order", PAIRS, INT64)
    tokens = r.tensor(module + "/tokens", PAIRS, INT64)
    copies = _indexed(r, x, COPIES, tokens, module + "/copies")
    shares = _indexed(r, scores, PAIRS, order, module + "/shares")
    counts = r.tensor(module + "/counts", PAIRS, INT32)
    offsets = r.tensor(module + "/offsets", ("e",), INT32)
    del counts, tokens
    both = _grouped(r, copies, weights["gate_up_proj"], offsets, (*PAIRS, "2·i"), how, module)
    gate, up = r.split(both, ((*PAIRS, "i"), (*PAIRS, "i")))
    made = r.mul(ACTIVATIONS[ff.activation](r, gate, module + "/activation"), up, module + "/product")
    del gate, up, both
    made = _grouped(r, made, weights["down_proj"], offsets, COPIES, how, module)
    weighted = _weighted(r, made, shares, module)
    inverse = r.tensor(module + "/inverse", PAIRS, INT64)
    ordered = _indexed(r, weighted, COPIES, inverse, module + "/ordered")
    del weighted
    result = r.apply(r.tensor(module + "/output", STREAM, ordered.dtype), (ordered,), (), lambda g: [Grad(g.storage, COPIES, g.dtype)])
    del sorted_, order, inverse, copies, made, ordered, shares
    return r.cast(result, x.dtype, module + "/output")


def _indexed(r: Recorder, x: Tensor, shape: Shape, by: Tensor, path: str) -> Tensor:
    """Rows of ``x`` in another order or number; backward adds them up in a tensor like ``x``."""
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, shape, dtype), (x,), (by,), lambda _: [r.grad(back, dtype)])


def _grouped(r: Recorder, x: Tensor, weight: Weight, offsets: Tensor, out: Shape, how: Numerics, module: str) -> Tensor:
    """Each row times its expert's matrix, in the matrices' dtype, which autocast leaves alone (integrations/moe.py:374-381)."""
    name = f"{module}/{weight.path.rpartition('.')[2]}"
    matrices = r.parameter(module, tuple(weight.shape), how.parameters, trains=how.trains)
    x = r.cast(x, how.parameters, name + "_input")
    shape, dtype, trains, needs = x.shape, x.dtype, matrices.needs_grad, x.needs_grad

    def backward(_: Grad) -> list[Grad | None]:
        of_x = r.grad(shape, dtype) if needs else None
        return [of_x, r.grad(tuple(weight.shape), dtype) if trains else None]

    saved = ([x] if trains else []) + ([matrices] if needs else [])
    return r.apply(r.tensor(name, out, dtype), (x, matrices), (*saved, offsets), backward)


def _weighted(r: Recorder, x: Tensor, shares: Tensor, module: str) -> Tensor:
    """Rows times one number each, whose gradient is a product as large as the rows before it is summed."""
    shape, dtype, back = x.shape, FP32 if shares.dtype is FP32 else x.dtype, shares.shape

    def backward(_: Grad) -> list[Grad | None]:
        of_x = r.grad(shape, dtype)
        wide = r.grad(shape, dtype)
        of_shares = r.grad(back, shares.dtype)
        del wide
        return [of_x, of_shares]

    return r.apply(r.tensor(module + "/weighted", shape, dtype), (x, shares), (x, shares), backward)
