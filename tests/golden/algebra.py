"""Every formula evaluated once on symbols: the lines of formulas.txt."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from memsheet import catalog
from memsheet.arith import Term
from memsheet.formulas.groups import Group, StageLayers, walk_stage_layers
from memsheet.formulas.states.held import Held
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.plan.defaults import NAMED_PRECISIONS
from memsheet.plan.dtypes import BF16, FP32
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import (
    Attention,
    CrossAttention,
    LatentAttention,
    ModelSpec,
    Role,
    StateSpace,
    Weight,
)
from memsheet.plan.plan import Implementation, Mesh, Optimizer, OptimizerName, Plan, Schedule
from memsheet.questions.explain import formula_modules
from memsheet.readers.model import read_model
from memsheet.references import FORMULAS
from memsheet.resolve import resolve_request
from memsheet.sheet import Component

HEADER = """\
# Every formula of memsheet.formulas, evaluated once on symbols, and what it stands on. `make regold` writes it again.
# name(case) = algebra ; source. A dash stands where a formula takes a model and returns tables.
"""


def load_all() -> None:
    for module in formula_modules():
        importlib.import_module(module)


def symbol(name: str) -> Any:
    return Term(name)


@cache
def spec() -> ModelSpec:
    return read_model("llama-tiny", catalog=catalog.find_model, names=catalog.model_names())


@cache
def plan(engine: str = "fsdp2", **request: Any) -> Plan:
    """A plan whose counts are symbols."""
    made = resolve_request(
        {
            "task": "train",
            "engine": engine,
            "seq_len": 8,
            **{k.replace("__", "."): v for k, v in request.items()},
        },
        spec(),
    ).plan
    mesh = Mesh(
        dp_replicate=symbol("dp_replicate"),
        dp_shard=symbol("dp_shard"),
        tp=symbol("tp"),
        ep=symbol("ep"),
        etp=symbol("etp"),
    )
    return replace(made, mesh=mesh, microbatch=symbol("b"), seq_len=symbol("s"))


TENSOR = Held("layer.weight", (symbol("out"), symbol("in")), FP32, trains=True, role=Role.LINEAR, times=1)


@cache
def staged() -> StageLayers:
    small = replace(plan(), mesh=Mesh(dp_shard=symbol("dp_shard")), microbatch=1, seq_len=8)
    engine = find_engine("fsdp2")
    assert engine is not None
    return walk_stage_layers(spec(), small, engine, release=False)


def group() -> Group:
    """One tensor of a layer, gathered and reduced like all its others."""
    return replace(staged().layers[0].pattern[0], parameters=(TENSOR,))


def attention(**kwargs: Any) -> Attention:
    return Attention(
        path="self_attn", heads=symbol("a"), kv_heads=symbol("k"), head_dim=symbol("d"), weights=(), **kwargs
    )


LATENT = LatentAttention(
    path="self_attn", heads=symbol("a"), q_lora_rank=None, kv_lora_rank=symbol("r_kv"), qk_nope_head_dim=symbol("d_nope"),
    qk_rope_head_dim=symbol("d_rope"), v_head_dim=symbol("d_v"), weights=(),
)  # fmt: skip
CROSS = CrossAttention(
    path="cross", heads=symbol("a"), kv_heads=symbol("k"), head_dim=symbol("d"), memory_hidden=8, weights=()
)
MAMBA = StateSpace(
    path="mixer",
    kind="mamba",
    inner=8,
    state=8,
    conv_kernel=4,
    state_elements=symbol("state"),
    conv_elements=symbol("conv"),
    weights=(),
)
MATRIX = Weight(path="w", shape=(symbol("V"), symbol("h")), role=Role.HEAD, cut=0, padded=True)
HEADS = Weight(path="w", shape=(1024, symbol("h")), role=Role.LINEAR, cut=0, units=8)
EXPERTS = Weight(path="w", shape=(symbol("E"), symbol("f"), symbol("h")), role=Role.EXPERT, cut=1)
SHAPE = (symbol("n_0"), symbol("n_1"))

Cases = Mapping[str, tuple[tuple[Any, ...], dict[str, Any]]]


def optimized(name: OptimizerName, implementation: Implementation) -> Plan:
    return replace(plan(), optimizer=Optimizer(name=name, implementation=implementation))


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def cases() -> dict[str, Cases]:
    """Arguments by formula, where names and annotations do not say enough."""
    mixed = NAMED_PRECISIONS["bf16-master"]
    s, b, h, a, t = (symbol(name) for name in "sbhat")
    adamw, eight, sgd = (
        (OptimizerName.ADAMW, Implementation.FUSED),
        (OptimizerName.ADAMW_8BIT, Implementation.BNB),
        (OptimizerName.SGD, Implementation.FUSED),
    )
    x = (TENSOR, symbol("n"))
    return {
        "textbook.adam_states": {"bf16-master": call(symbol("P"), mixed)},
        "textbook.zero_states": {f"stage {n}": call(symbol("P"), mixed, stage=n, ranks=symbol("N")) for n in range(4)},
        "textbook.largest_model": {f"stage {n}": call(symbol("M"), mixed, stage=n, ranks=symbol("N")) for n in (0, 3)},
        "textbook.gpt_block_activations": {"fused": call(s, b, h, a, t, fused=True), "unfused": call(s, b, h, a, t)},
        "textbook.gpt_block_activations_sequence_parallel": {"": call(s, b, h, a, t)},
        "textbook.hidden_rule_activations": {"": call(symbol("L"), s, b, h, BF16)},
        "textbook.attention_scores": {"bf16": call(b, a, s, BF16)},
        "textbook.weight_bytes": {"bf16": call(symbol("P"), BF16)},
        "textbook.redundant_states": {"bf16-master": call(symbol("P"), mixed, ranks=symbol("N"))},
        "textbook.tensor_pipeline_states": {"stage 1": call(symbol("P"), mixed, tp=symbol("t"), pp=symbol("p"), dp=symbol("d"))},
        "textbook.lora_parameters": {"two matrices": call(symbol("r"), (symbol("o"), h), (symbol("f"), h))},
        "textbook.kv_token_bytes": {"bf16": call(symbol("L"), symbol("k"), symbol("d"), BF16)},
        "serving.kv_cache.kv_elements_per_token": {"attention": call(attention(), symbol("tp")), "latent": call(LATENT, symbol("tp"))},
        "serving.kv_cache.latent_elements_per_token": {"": call(LATENT)},
        "serving.kv_cache.kept_tokens": {"window": call(attention(window=4096), symbol("tokens")), "whole": call(attention(), symbol("tokens"))},
        "serving.kv_cache.recurrent_elements": {"mamba": call(MAMBA)},
        "serving.kv_cache.state_elements": {"mamba": call(MAMBA), "cross": call(CROSS, symbol("tp"), symbol("memory"))},
        "pipeline.in_flight": {kind.value: call(kind, symbol("p"), symbol("r"), symbol("m")) for kind in (Schedule.ONE_F_ONE_B, Schedule.GPIPE)},
        "states.held_shapes.dim0_shard": {"": call(SHAPE, symbol("N"))}, "states.held_shapes.dim0_gathered": {"": call(SHAPE, symbol("N"))},
        "states.held_shapes.flat_shard": {"": call(symbol("n"), symbol("N"), symbol("alignment"))},
        "states.held_shapes.held_shape": {"vocabulary": call(MATRIX, plan().mesh, 128), "heads": call(HEADS, plan().mesh), "experts": call(EXPERTS, plan().mesh)},
        "states.held._lora_matrices": {"": call("q.weight", (symbol("out"), symbol("in")), plan(adapter__rank=8), 1)},
        "states.held.eight_bit_states": {"": call(*x)},
        "states.optimizers.optimizer_bytes": {how[0].value: call(*x, optimized(*how)) for how in (adamw, eight, sgd)},
        "states.optimizers.step_temporaries": {
            how.value: call((x,), optimized(OptimizerName.ADAMW, how)) for how in (Implementation.FOREACH, Implementation.LOOP, Implementation.FUSED)
        },
        "stretches.segment_length": {
            "every": call(symbol("L"), plan(recompute__every=4)), "segments": call(symbol("L"), plan(recompute__segments=2)),
        },
        "sharding.replicated.ddp_buckets": {"one tensor": call((TENSOR,), plan())},
        **{f"sharding.per_parameter_sizes.{name}": {"one tensor": call(group(), plan())} for name in ("gathered_bytes", "reduce_input_bytes", "sharded_gradients")},
        "model_code.transformers.code.block_axes": {"": call(spec().stacks[0].runs[0].pattern[0], plan())},
        "states.held.parameter_bytes": {"one tensor": call(replace(spec(), stacks=()), plan(), (TENSOR,), find_engine("fsdp2").sharding)},  # type: ignore[union-attr]
        "engines.transformers.work._widest_elements_a_token": {"llama-tiny": call(spec().stacks[0].runs[0].pattern[0], symbol("tp"))},
    }  # fmt: skip


def by_annotation(function: Callable[..., Any]) -> Cases:
    """Symbols for counts, a plan and a tensor where they are asked for; a formula that asks for more is not
    called.
    """
    made: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = str(parameter.annotation)
        known = {"Count": symbol(name), "int": symbol(name), "Plan": plan(), "Held": TENSOR}
        if kind not in known:
            return {}
        made[name] = known[kind]
    return {"": ((), made)}


def shown(value: Any) -> str:
    """A result as text: sums of dictionaries and bags item by item."""
    if isinstance(value, BytesByPath):
        value = value.held
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)}: {shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, Held):
        return f"{value.path} {shown(value.shape)}"
    if isinstance(value, tuple | list) or inspect.isgenerator(value):
        return "(" + ", ".join(shown(part) for part in value) + ")"
    return (
        str(value) if isinstance(value, Term | int) and not isinstance(value, bool) else "—"
    )  # no algebra: a choice, functions


def _key(key: Any) -> str:
    return (
        f"{key[0].value} {key[1]}" if isinstance(key, tuple) and isinstance(key[0], Component) else str(key)
    )


def algebra(name: str) -> dict[str, str]:
    """A formula's algebra by case; empty where it does not take symbols."""
    module, _, function = name.rpartition(".")
    short = f"{module.removeprefix('memsheet.').removeprefix('formulas.')}.{function}"
    found = getattr(importlib.import_module(module), function)
    given = cases().get(short)
    try:
        return {
            case: shown(found(*args, **kwargs))
            for case, (args, kwargs) in (by_annotation(found) if given is None else given).items()
        }
    except (TypeError, AttributeError, AssertionError):
        if given is not None:
            raise
        # it branches on what a formula of this kind may branch on, or wants a plan of another engine than
        # this one
        return {}


def lines() -> Iterator[str]:
    load_all()
    for name, (reference, at, _) in sorted(FORMULAS.items()):
        short, source = (
            name.removeprefix("memsheet.").removeprefix("formulas."),
            f"{reference.title} ({reference.where}){', ' + at if at else ''}",
        )
        for case, text in (algebra(name) or {"": "—"}).items():
            yield f"{short}{f'[{case}]' if case else ''} = {text} ; {source}"


def text() -> str:
    return HEADER + "\n".join(lines()) + "\n"
