"""Routed experts as the transformers library runs them in training, written over shape-only tensors.

By its default implementation (5.23, integrations/moe.py:424-539, ``grouped_mm``): every token is copied once for each expert it goes to,
in order of expert, and the copies go through all experts' matrices in one grouped product. Their number is tokens times experts a token
whatever the routing, so nothing here depends on it. Axes: ``e`` experts, ``t`` experts of a token, ``i`` an expert's width.
"""

from __future__ import annotations

from memsheet.formulas.feed_forward import ACTIVATIONS, dense
from memsheet.formulas.graph import Grad, Tensor
from memsheet.formulas.numerics import Numerics
from memsheet.formulas.recorder import Recorder
from memsheet.formulas.routers import PAIRS, ROUTERS, SHARED_LAST
from memsheet.formulas.tape import Shape
from memsheet.spec.dtypes import FP32, INT32, INT64
from memsheet.spec.model import Moe, Weight

COPIES: Shape = ("b", "s", "t", "h")
STREAM: Shape = ("b", "s", "h")


def moe(r: Recorder, x: Tensor, ff: Moe, how: Numerics, kind: str) -> Tensor:
    """The router, the experts, a shared expert before or after them, and the sum of what they say. What the router hands over besides
    stays to the end: names hold it.
    """
    first = ff.shared is not None and kind not in SHARED_LAST
    shared = dense(r, x, ff.shared, how) if ff.shared and first else None
    scores, named = ROUTERS[kind](r, x, ff, how)
    result = _experts(r, x, ff, how, scores)
    if ff.shared:
        result = r.add(result, _gated(r, x, shared or dense(r, x, ff.shared, how), ff, how), ff.path + "/sum")
    del named
    return result


def _gated(r: Recorder, x: Tensor, shared: Tensor, ff: Moe, how: Numerics) -> Tensor:
    """The shared expert's say, times a number for each token (modeling_qwen2_moe.py:346)."""
    gate = next((w for w in ff.weights if w.path.endswith("shared_expert_gate.weight")), None)
    if gate is None:
        return shared
    path = gate.path.removesuffix(".weight")
    share = r.linear(x, r.parameter(path, tuple(gate.shape), how.parameters, trains=how.trains), 1, path)
    return r.mul(shared, r.unary(share, path + "/sigmoid", saves="output"), ff.path + "/weighted")


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
    weighted = r.mul(made, shares, module + "/weighted")
    inverse = r.tensor(module + "/inverse", PAIRS, INT64)
    ordered = _indexed(r, weighted, COPIES, inverse, module + "/ordered")
    del weighted
    result = _summed(r, ordered, module)
    del sorted_, order, inverse, copies, made, ordered, shares
    return r.cast(result, x.dtype, module + "/output")


def _summed(r: Recorder, x: Tensor, module: str) -> Tensor:
    """The sum over a token's experts. Its gradient is spread over them, and copied out to be a list of rows again."""
    dtype = x.dtype
    return r.apply(r.tensor(module + "/output", STREAM, dtype), (x,), (), lambda _: [r.grad(COPIES, dtype)])


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
        of_weight = r.grad(tuple(weight.shape), dtype) if trains else None
        return [r.grad(shape, dtype) if needs else None, of_weight]

    saved = ([x] if trains else []) + ([matrices] if needs else [])
    return r.apply(r.tensor(name, out, dtype), (x, matrices), (*saved, offsets), backward)
