"""Routed experts as the transformers library runs them in training, written over shape-only tensors.

By its default implementation (5.23, integrations/moe.py:424-539, ``grouped_mm``): every token is copied once
for each expert it goes to, in order of expert, and the copies go through all experts' matrices in one grouped
product. Their number is tokens times experts a token whatever the routing, so nothing here depends on it.
Axes: ``e`` experts, ``t`` experts of a token, ``i`` an expert's width.
"""

from __future__ import annotations

from memsheet.errors import Problem
from memsheet.formulas.model_code.transformers.families import LLAMA4
from memsheet.formulas.model_code.transformers.feed_forward import ACTIVATIONS, dense_feed_forward
from memsheet.formulas.model_code.transformers.routers import PAIRS, ROUTERS, SHARED_BESIDE, SHARED_LAST
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.late import late_functions
from memsheet.plan.dtypes import BOOL, FP4_BNB, FP4_BNB_DOUBLE, INT32, INT64, NF4, NF4_SINGLE
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import ModelSpec, Moe, Weight
from memsheet.plan.plan import Plan

with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.llama4 import every_expert


COPIES: Shape = ("b", "s", "t", "h")
STREAM: Shape = ("b", "s", "h")


ROUTED = frozenset({*ROUTERS, LLAMA4})
"""Families whose experts are recorded here."""


def is_routed(kind: str) -> bool:
    """Whether a family's experts are recorded here."""
    return kind in ROUTED


def moe_feed_forward(r: Recorder, x: Tensor, ff: Moe, how: RunConfig, kind: str) -> Tensor:
    """The router, the experts, a shared expert before or after them, and the sum of what they say. What the
    router hands over besides stays to the end: names hold it.
    """
    if kind == LLAMA4:
        return every_expert(r, x, ff, how)
    first = ff.shared is not None and kind not in SHARED_LAST
    shared = dense_feed_forward(r, x, ff.shared, how) if ff.shared and first else None
    scores, named = ROUTERS[kind](r, x, ff, how)
    result = _routed_experts_output(r, x, ff, how, scores)
    if kind in SHARED_BESIDE:
        named = ()
        del scores
    if ff.shared:
        result = r.add(
            result,
            _gated_shared_expert(r, x, shared or dense_feed_forward(r, x, ff.shared, how), ff, how),
            ff.path + "/sum",
        )
    del named
    return result


def _gated_shared_expert(r: Recorder, x: Tensor, shared: Tensor, ff: Moe, how: RunConfig) -> Tensor:
    """The shared expert's say, times a number for each token (modeling_qwen2_moe.py:346)."""
    gate = next((w for w in ff.weights if w.path.endswith("shared_expert_gate.weight")), None)
    if gate is None:
        return shared
    path = gate.path.removesuffix(".weight")
    share = r.linear(x, r.parameter(path, tuple(gate.shape), how.parameters, trains=how.trains), 1, path)
    return r.mul(shared, r.unary(share, path + "/sigmoid", saves="output"), ff.path + "/weighted")


def _routed_experts_output(r: Recorder, x: Tensor, ff: Moe, how: RunConfig, scores: Tensor) -> Tensor:
    """All experts at once (integrations/moe.py:424-539). Names stand for those of the library's function."""
    module = ff.path + ".experts"
    weights = {w.path.rpartition(".")[2]: w for w in ff.routed}
    sorted_, order = r.tensor(module + "/sort", PAIRS, INT64), r.tensor(module + "/order", PAIRS, INT64)
    tokens = r.tensor(module + "/tokens", PAIRS, INT64)
    copies = _index_select_rows(r, x, COPIES, tokens, module + "/copies")
    shares = _index_select_rows(r, scores, PAIRS, order, module + "/shares")
    counts = r.tensor(module + "/counts", PAIRS, INT32)
    offsets = r.tensor(module + "/offsets", ("e",), INT32)
    del counts, tokens
    biases = _expert_row_biases(r, weights, "gate_up_proj", (*PAIRS, "2·i"), sorted_, how, module)
    up = _expert_matrices(r, weights["gate_up_proj"], how, module)
    made = _grouped_expert_mm(
        r, copies, (weights["gate_up_proj"], up), offsets, (*PAIRS, "2·i"), biases, how, module
    )
    made = (_gate_clamped if biases else _gated_activation)(r, made, ff.activation, module)
    biases = _expert_row_biases(r, weights, "down_proj", COPIES, sorted_, how, module)
    down = _expert_matrices(r, weights["down_proj"], how, module)
    made = _grouped_expert_mm(r, made, (weights["down_proj"], down), offsets, COPIES, biases, how, module)
    weighted = r.mul(made, shares, module + "/weighted")
    inverse = r.tensor(module + "/inverse", PAIRS, INT64)
    ordered = _index_select_rows(r, weighted, COPIES, inverse, module + "/ordered")
    del weighted
    result = _sum_over_experts(r, ordered, module)
    del sorted_, order, inverse, copies, made, ordered, shares, biases
    result = r.cast(result, x.dtype, module + "/output")
    del up, down  # which a cache names until the module is done
    return result


DEQUANTIZED = "dequantized experts"
"""In ``RunConfig.options``: their matrices are stored in fewer bits and made whole for a module's forward
(bitsandbytes 0.50.2 nn/parametrize.py: a parametrization, and a cache of its results while the module runs).
"""


def expert_options(plan: Plan) -> frozenset[str]:
    """What of ``RunConfig.options`` a plan's quantization makes."""
    return frozenset({DEQUANTIZED} if plan.quantization is not None and plan.quantization.experts else ())


def expert_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What of experts in fewer bits is not modelled: kinds of layers that are not recorded here, formats of
    another library, and states that ranks divide.
    """
    if plan.quantization is None or not plan.quantization.experts:
        return []
    kinds = {block.kind for block in spec.blocks() if isinstance(block.feed_forward, Moe)}
    others = sorted(kinds - (ROUTED - {LLAMA4}))
    reasons = [
        (f"is not modelled of {', '.join(others)}", bool(others), "leave it out"),
        (f"is not modelled of {plan.quantization.weights.name}", plan.quantization.weights not in FOUR_BITS, "nf4"),
        (f"is not modelled where {plan.engine} divides them", engine_of(plan).sharding.gathers or plan.zero == 3, "zero 2"),
    ]  # fmt: skip
    return [
        Problem(field="quantization.experts", value=True, reason=why, hint=hint)
        for why, holds, hint in reasons
        if holds
    ]


FOUR_BITS = (NF4, NF4_SINGLE, FP4_BNB, FP4_BNB_DOUBLE)


def _expert_matrices(r: Recorder, weight: Weight, how: RunConfig, module: str) -> Tensor:
    """All experts' matrices: the parameter, or what is made of it."""
    if DEQUANTIZED in how.options:
        return r.tensor(f"{module}/dequantized", tuple(weight.shape), how.parameters)
    return r.parameter(module, tuple(weight.shape), how.parameters, trains=how.trains)


def _gated_activation(r: Recorder, both: Tensor, activation: str, module: str) -> Tensor:
    gate, up = r.split(both, ((*PAIRS, "i"), (*PAIRS, "i")))
    return r.mul(ACTIVATIONS[activation](r, gate, module + "/activation"), up, module + "/product")


def _gate_clamped(r: Recorder, both: Tensor, _: str, module: str) -> Tensor:
    """Even and odd elements clamped, (up + 1) · gate · sigmoid(α · gate) (modeling_gpt_oss.py:81-87)."""
    half: Shape = (*PAIRS, "i")
    gate, up = r.slice(both, half), r.slice(both, half)
    gate = _clamp_activation(r, gate, module + "/gate", bounds=1)
    up = _clamp_activation(r, up, module + "/up", bounds=2)
    made = r.mul(
        gate,
        r.unary(r.scale(gate, module + "/sigmoid"), module + "/sigmoid", saves="output"),
        module + "/activation",
    )
    return r.mul(r.shift(up, module + "/one_plus"), made, module + "/product")


def _clamp_activation(r: Recorder, x: Tensor, path: str, *, bounds: int) -> Tensor:
    """Saves its input, which backward compares with each bound."""
    shape, dtype = x.shape, x.dtype

    def backward(_: Grad) -> list[Grad | None]:
        within = [r.grad(shape, BOOL) for _ in range(bounds)]
        grad = r.grad(shape, dtype)
        del within
        return [grad]

    return r.apply(r.tensor(path, shape, dtype), (x,), (x,), backward)


def _expert_row_biases(
    r: Recorder, weights: dict[str, Weight], name: str, shape: Shape, by: Tensor, how: RunConfig, module: str
) -> Tensor | None:
    """The bias of every row's expert."""
    weight = weights.get(name + "_bias")
    if weight is None:
        return None
    return _index_select_rows(
        r,
        r.parameter(module, tuple(weight.shape), how.parameters, trains=how.trains),
        shape,
        by,
        f"{module}/{name}_bias",
    )


def _sum_over_experts(r: Recorder, x: Tensor, module: str) -> Tensor:
    """The sum over a token's experts. Its gradient is spread over them, and copied out to be a list of rows
    again.
    """
    dtype = x.dtype
    return r.apply(r.tensor(module + "/output", STREAM, dtype), (x,), (), lambda _: [r.grad(COPIES, dtype)])


def _index_select_rows(r: Recorder, x: Tensor, shape: Shape, by: Tensor, path: str) -> Tensor:
    """Rows of ``x`` in another order or number; backward adds them up in a tensor like ``x``."""
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, shape, dtype), (x,), (by,), lambda _: [r.grad(back, dtype)])


def _grouped_expert_mm(
    r: Recorder,
    x: Tensor,
    of: tuple[Weight, Tensor],
    offsets: Tensor,
    out: Shape,
    biases: Tensor | None,
    how: RunConfig,
    module: str,
) -> Tensor:
    """Each row times its expert's matrix and, in place, its bias, in the matrices' dtype, which autocast
    leaves alone (integrations/moe.py:374-381).
    """
    weight, matrices = of
    name = f"{module}/{weight.path.rpartition('.')[2]}"
    x = r.cast(x, how.parameters, name + "_input")
    shape, dtype, trains, needs = x.shape, x.dtype, matrices.needs_grad, x.needs_grad

    def backward(_: Grad) -> list[Grad | None]:
        of_weight = r.grad(tuple(weight.shape), dtype) if trains else None
        return [r.grad(shape, dtype) if needs else None, of_weight]

    saved = ([x] if trains else []) + ([matrices] if needs else [])
    made = r.apply(r.tensor(name, out, dtype), (x, matrices), (*saved, offsets), backward)
    if biases is None:
        return made
    return r.apply(
        Tensor(made.storage, out, dtype),
        (made, biases),
        (),
        lambda g: [Grad(g.storage, g.shape, g.dtype)] * 2,
    )
