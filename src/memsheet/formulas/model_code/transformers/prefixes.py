"""Prefix tuning: keys and values that every layer's attention is given as those of earlier tokens, learned in
one table (peft 0.21.2 tuners/prefix_tuning/model.py, peft_model.py PeftModel.get_prompt).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.arith import Count
from memsheet.errors import Problem
from memsheet.formulas.model_code.transformers.prompts import ENCODER
from memsheet.formulas.tapes.graph import Grad, Node, Tensor
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.model import Attention, ModelSpec, Role, Weight
from memsheet.plan.plan import AdapterKind, Plan, RecomputeMode
from memsheet.references import PEFT, formula

if TYPE_CHECKING:
    from memsheet.formulas.numerics import RunConfig
    from memsheet.formulas.tapes.recorder import Recorder


INTO, OUT_OF = "transform.0", "transform.2"
KEYS = "p+s"
"""Axis of the tokens that are attended to: the learned ones and those of the text."""
PREFIXED = frozenset({
    "llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "olmo", "olmo2", "ernie4_5", "seed_oss", "ministral3", "arcee",
    "apertus", "hunyuan_v1_dense", "internlm3", "phi", "phi3", "starcoder2", "nemotron", "glm", "glm4", "gemma",
    "mixtral", "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared", "flex_olmo", "phimoe", "glm4_moe",
})  # fmt: skip
"""Families whose steps were compared with their traces under a prefix."""


@formula(cites=PEFT, at="tuners/prefix_tuning/model.py: keys and values of all layers side by side")
def prefix_axes(spec: ModelSpec, plan: Plan) -> dict[str, Count]:
    """Its tokens; a layer's keys of one token; keys and values of one token, of all layers side by side
    (tuners/prefix_tuning/model.py).
    """
    width = _key_width(spec)
    layers = sum(run.count * len(run.pattern) for stack in spec.stacks for run in stack.runs)
    return {"prefix": plan.past_tokens, "token": width, "past": 2 * layers * width}


def _key_width(spec: ModelSpec) -> Count:
    """Keys of a layer, with which all are alike (utils/other.py _prepare_prompt_learning_config)."""
    return next((at.kv_heads * at.head_dim for at in spec.mixers() if isinstance(at, Attention)), 1)


def prefix_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What prefix tuning was not compared with its real code for."""
    if not plan.past_tokens or plan.adapter is None:
        return []
    mixers = list(spec.mixers())
    plain = [at for at in mixers if isinstance(at, Attention) and at.causal and not at.chunk]
    alike = len({(at.kv_heads, at.head_dim, at.window) for at in plain}) == 1 and len(plain) == len(mixers)
    kinds = sorted({block.kind for block in spec.blocks()} - PREFIXED)
    again = plan.recompute.mode
    reasons = [
        ("model", spec.name, "has layers that attend in several ways, of which a prefix is not modelled", not alike, "lora"),
        ("adapter.kind", plan.adapter.kind.value, f"of {', '.join(kinds)} was not compared with its real code", bool(kinds) and alike, "lora"),
        ("recompute.mode", again.value, "is refused by peft beside a prefix", again is not RecomputeMode.NONE, "none"),
        ("offload.activations", True, "is not modelled beside a prefix", plan.offload.activations, "leave it out"),
    ]  # fmt: skip
    return [
        Problem(field=field, value=value, reason=reason, hint=hint)
        for field, value, reason, holds, hint in reasons
        if holds
    ]


def spec_with_prefix(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """The model with what makes its layers' keys and values, where the plan trains that."""
    if not plan.past_tokens:
        return spec
    made = (*spec.embeddings.weights, *_prefix_weights(spec, plan))
    return replace(spec, embeddings=replace(spec.embeddings, weights=made))


def _prefix_weights(spec: ModelSpec, plan: Plan) -> Iterator[Weight]:
    assert plan.adapter is not None
    sizes, projects = prefix_axes(spec, plan), plan.adapter.kind is AdapterKind.PROJECTED_PREFIX
    tokens, width, past = (int(sizes[axis]) for axis in ("prefix", "token", "past"))
    shape = (tokens, width if projects else past)
    yield Weight(path=f"{ENCODER}.embedding.weight", shape=shape, role=Role.EMBEDDING, adapter=True)
    if not projects:
        return
    inner = plan.adapter.encoder_width or width
    for name, of in ((INTO, (inner, width)), (OUT_OF, (past, inner))):
        yield Weight(path=f"{ENCODER}.{name}.weight", shape=of, role=Role.LINEAR, adapter=True)
        yield Weight(path=f"{ENCODER}.{name}.bias", shape=of[:1], role=Role.BIAS, adapter=True)


def with_prefix(r: Recorder, x: Tensor, how: RunConfig) -> Tensor:
    """What is looked up of the ids, beside which the prefix is made for every sequence. Its gradient comes
    last: of all layers side by side, then in its own order.
    """
    projects, kept = how.adapter_kind is AdapterKind.PROJECTED_PREFIX, how.parameters
    wide, width, whole = how.adapter_dtype or FP32, "token" if projects else "past", ("b", "prefix", "past")
    table = r.parameter(f"{ENCODER}.embedding", ("prefix", width), wide)
    rows = r.apply(
        r.tensor(f"{ENCODER}/output", ("b", "prefix", width), wide),
        (table,),
        (),
        lambda _: [r.grad(("prefix", width), wide)],
    )
    rows = r.cast(_project_rows(r, rows, wide) if projects else rows, kept, f"{ENCODER}/cast")

    def prefix_gradient(_: Grad) -> list[Grad | None]:
        joined = r.grad(whole, kept)
        ordered = r.grad(whole, kept)
        del joined
        return [None, ordered]

    _copies = r.tensor(f"{ENCODER}/past", whole, kept)  # one of each layer, of what was made for all
    return r.apply(Tensor(x.storage, x.shape, x.dtype), (x, rows), (), prefix_gradient)


def _project_rows(r: Recorder, rows: Tensor, dtype: DType) -> Tensor:
    """Two linear layers with a hyperbolic tangent between them."""
    for name, out, width in ((INTO, "encoder", "token"), (OUT_OF, "past", "encoder")):
        weight = r.parameter(f"{ENCODER}.{name}", (out, width), dtype)
        bias = r.parameter(f"{ENCODER}.{name}.bias", (out,), dtype)
        rows = r.linear(rows, weight, out, f"{ENCODER}.{name}", bias=bias)
        rows = r.unary(rows, f"{ENCODER}.{name}/tanh", saves="output") if name == INTO else rows
    return rows


def after_past(r: Recorder, x: Tensor, name: str, how: RunConfig) -> Tensor:
    """Keys or values behind the learned ones of the layer (transformers 5.23.0 cache_utils.py
    DynamicLayer.update), which the cache names until the model's forward returns. Their gradient is a view of
    that of both, which waits for the first layer's: the prefix was cut for all layers before any ran.
    """
    kept = how.parameters
    past = r.tensor(f"{name}_past", (x.shape[0], x.shape[1], "prefix", x.shape[3]), kept)
    past.node = Node(0, "", (), [], [], lambda _: [])
    x = r.cast(x, FP32 if FP32 in (kept, x.dtype) else x.dtype, name)
    shapes, needs = (past.shape, x.shape), x.needs_grad

    def split_gradient(g: Grad) -> list[Grad | None]:
        r.keep_gradient(g)
        first, second = (Grad(g.storage, shape, g.dtype) for shape in shapes)
        return [first, second if needs else None]

    joined = r.tensor(name, (*x.shape[:2], KEYS, x.shape[3]), x.dtype)
    return r.name_until_return(r.apply(joined, (past, x), (), split_gradient))
