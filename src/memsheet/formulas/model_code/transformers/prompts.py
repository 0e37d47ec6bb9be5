"""What peft adds to a whole model and not to a layer: learned tokens before every sequence of a causal model,
and the matrices that VeRA's layers share (peft 0.21.2 peft_model.py
PeftModelForCausalLM.forward, PeftModel.get_prompt).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.arith import Count
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.formulas.tapes.graph import Tensor
from memsheet.frozen import replace
from memsheet.plan.dtypes import INT64, DType
from memsheet.plan.model import ModelSpec, Norm, Role, Weight
from memsheet.plan.plan import AdapterKind, Plan
from memsheet.plan.workload import PassShape
from memsheet.references import PEFT, formula
from memsheet.sheet import Component

if TYPE_CHECKING:
    from memsheet.formulas.numerics import RunConfig
    from memsheet.formulas.tapes.recorder import Recorder


ENCODER = "prompt_encoder"
NETWORK = ("mlp_head.0", "mlp_head.2", "mlp_head.4")


@formula(cites=PEFT, at="peft_model.py PeftModelForCausalLM.forward: prompts before what ids look up")
def prompt_axes(plan: Plan, shape: PassShape) -> dict[str, Count]:
    """The prompt's tokens, and those of a sequence that are looked up by their ids."""
    width = plan.adapter.encoder_width if plan.adapter else 0
    return {"prompt": plan.virtual_tokens, "ids": shape.tokens - plan.virtual_tokens, "encoder": width}


def spec_with_prompts(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """The model with a table of prompts, where the plan trains one."""
    if not plan.virtual_tokens:
        return spec
    shape = (plan.virtual_tokens, spec.hidden)
    table = Weight(path=f"{ENCODER}.embedding.weight", shape=shape, role=Role.EMBEDDING, adapter=True)
    made = (*spec.embeddings.weights, table, *_encoder_weights(spec.hidden, plan))
    return replace(spec, embeddings=replace(spec.embeddings, weights=made))


def _encoder_weights(hidden: int, plan: Plan) -> Iterator[Weight]:
    """The three linear layers that make p-tuning's tokens of its table (tuners/p_tuning/model.py:106-113)."""
    if plan.adapter is None or plan.adapter.kind is not AdapterKind.P_TUNING:
        return
    width = plan.adapter.encoder_width
    for name, shape in zip(NETWORK, ((width, hidden), (width, width), (hidden, width)), strict=True):
        yield Weight(path=f"{ENCODER}.{name}.weight", shape=shape, role=Role.LINEAR, adapter=True)
        yield Weight(path=f"{ENCODER}.{name}.bias", shape=shape[:1], role=Role.BIAS, adapter=True)


def spec_with_shared_matrices(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """The model with the two matrices that VeRA's layers share, as wide as the widest of them (tuners/vera
    model.py _find_dim).
    """
    adapter = plan.adapter
    if adapter is None or adapter.kind is not AdapterKind.VERA:
        return spec
    linears = [
        weight.shape[::-1] if weight.transposed else weight.shape
        for block in spec.blocks()
        for weight in block.weights
        if weight.role is Role.LINEAR
        and weight.path.endswith(".weight")
        and weight.path.split(".")[-2] in adapter.targets
    ]
    rank, (out, width) = int(adapter.rank), map(max, zip(*linears, strict=True))
    made = (("vera_A", (rank, width)), ("vera_B", (out, rank)))
    extras = (
        Weight(path=path, shape=shape, role=Role.BUFFER, dtype=adapter.dtype.name) for path, shape in made
    )
    return replace(spec, extras=(*spec.extras, *extras))


def spec_with_norms(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """The model whose norms train as copies (tuners/ln_tuning/layer.py LNTuningLayer), where the plan trains
    them.
    """
    adapter = plan.adapter
    if adapter is None or adapter.kind is not AdapterKind.LN_TUNING:
        return spec

    def trained(norms: tuple[Norm, ...]) -> tuple[Norm, ...]:
        return tuple(
            replace(norm, weights=tuple(replace(w, adapter=True) for w in norm.weights))
            if norm.path.rpartition(".")[2] in adapter.targets
            else norm
            for norm in norms
        )

    stacks = tuple(
        replace(
            stack,
            final_norms=trained(stack.final_norms),
            runs=tuple(
                replace(
                    run, pattern=tuple(replace(block, norms=trained(block.norms)) for block in run.pattern)
                )
                for run in stack.runs
            ),
        )
        for stack in spec.stacks
    )
    return replace(spec, stacks=stacks)


def is_prompt(weight: Weight) -> bool:
    """Whether a table of embeddings is the prompt's."""
    return weight.path.startswith(ENCODER)


def with_prompt(r: Recorder, x: Tensor, how: RunConfig) -> Tensor:
    """The prompt, looked up once and repeated for every sequence in its own dtype, before what was looked up
    of the ids.
    """
    assert how.adapter_kind.before_text
    assert how.adapter_dtype is not None
    dtype, one = how.adapter_dtype, (1, "prompt", "h")
    table = r.parameter(f"{ENCODER}.embedding", ("prompt", "h"), dtype)
    rows = r.apply(
        r.tensor(f"{ENCODER}/output", one, dtype), (table,), (), lambda _: [r.grad(("prompt", "h"), dtype)]
    )
    if how.adapter_kind is AdapterKind.P_TUNING:
        rows = _through_network(r, rows, dtype)
    made = rows.dtype
    each = r.tensor(f"{ENCODER}/repeated", ("b", "prompt", "h"), made)
    each = r.apply(each, (rows,), (), lambda _: [r.grad(one, made)])
    low = r.cast(each, x.dtype, f"{ENCODER}/cast")
    return r.cat((low, x), ("b", "s", "h"), f"{ENCODER}/joined")


def _through_network(r: Recorder, rows: Tensor, dtype: DType) -> Tensor:
    """Three linear layers with ReLU between them (tuners/p_tuning/model.py:106-113)."""
    for name, out, width in zip(
        NETWORK, ("encoder", "encoder", "h"), ("h", "encoder", "encoder"), strict=True
    ):
        weight = r.parameter(f"{ENCODER}.{name}", (out, width), dtype)
        bias = r.parameter(f"{ENCODER}.{name}.bias", (out,), dtype)
        rows = r.linear(rows, weight, out, f"{ENCODER}.{name}", bias=bias)
        if name != NETWORK[-1]:
            rows = r.unary(rows, f"{ENCODER}.{name}/relu", saves="output")
    return rows


def named_by_wrapper(spec: ModelSpec, plan: Plan, shape: PassShape, how: RunConfig) -> BytesByPath:
    """What peft's forward names until the model's returns with the loss: the prompt as it was joined, and the
    labels with those of the prompt before them, which no loss counts.
    """
    if not plan.virtual_tokens:
        return EMPTY
    prompt = how.parameters.nbytes(shape.sequences * plan.virtual_tokens * spec.hidden)
    joined = how.parameters.nbytes(shape.sequences * shape.tokens * spec.hidden)
    held = [
        ((Component.TEMPORARIES, f"{ENCODER}/cast"), prompt),
        ((Component.INPUTS, "labels"), INT64.nbytes(shape.sequences * shape.tokens)),
    ]
    goes_on = len([table for table in spec.embeddings.weights if not is_prompt(table)]) == 1
    return BytesByPath.of(
        held if goes_on else [*held, ((Component.TEMPORARIES, f"{ENCODER}/joined"), joined)]
    )
