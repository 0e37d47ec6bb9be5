"""Models, plans and tensors whose counts are symbols."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

from memsheet import catalog
from memsheet.arith import Term
from memsheet.formulas.activations import run_config_of
from memsheet.formulas.groups import Group, StageLayers, walk_stage_layers
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.plan.device import cluster_of
from memsheet.plan.dtypes import BF16, FP32
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import Dense, ModelSpec, Moe, Role, Source, StoredQuantization, Weight
from memsheet.plan.plan import Mesh, Plan, ServedAdapters
from memsheet.plan.workload import PassShape, Training
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.sheet import Component

T = TypeVar("T")
Call = tuple[tuple[Any, ...], dict[str, Any]]
Cases = dict[str, Call]

CHOICES = frozenset(
    [
        "window",
        "chunk",
        "units",
        "copies",
        "streams",
        "layer_elements",
        "groups",
        "count",
        "rotary_dim",
        "max_positions",
        "scaled_positions",
        "ahead",
    ]
)
"""Whole numbers of a model that choose what its code does, and stay numbers."""
SERVED = ("max_model_len", "max_sequences", "prompt_tokens", "output_tokens", "max_batched_tokens")


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


@cache
def symbol(name: str) -> Any:
    """One object for each name, so that what is alike counts once."""
    return Term(name)


@cache
def numbers(model: str = "llama-tiny") -> ModelSpec:
    """A model as it is read."""
    return read_model(model, catalog=catalog.find_model, names=catalog.model_names())


@cache
def spec(model: str = "llama-tiny") -> ModelSpec:
    """A model whose widths, heads, experts and vocabulary are symbols."""
    return _with_symbols(numbers(model))


def _with_symbols(part: T) -> T:
    if isinstance(part, Weight):
        path = part.path.removesuffix(".weight")
        return replace(part, shape=tuple(symbol(f"{path}.{axis}") for axis in range(len(part.shape))))
    if isinstance(part, tuple):
        return tuple(map(_with_symbols, part))  # type: ignore[return-value]
    if not is_dataclass(part) or isinstance(part, type | Source | StoredQuantization):
        return part
    own = {f.name: getattr(part, f.name) for f in fields(part)}
    counts = {
        name: symbol(name)
        for name, value in own.items()
        if type(value) is int and value and name not in CHOICES
    }
    parts = {name: _with_symbols(value) for name, value in own.items() if name not in counts}
    return replace(part, **counts, **parts)


@cache
def plan(
    engine: str = "fsdp2", model: str = "llama-tiny", task: str = "train", mesh: bool = True, **request: Any
) -> Plan:
    """A plan whose counts are symbols; ``mesh=False`` leaves the degrees of parallelism as asked, for what
    chooses by them.
    """
    sizes = {"seq_len": 8} if task == "train" else {"serving.max_model_len": 64, "serving.max_sequences": 2}
    asked = {k.replace("__", "."): v for k, v in request.items()}
    wanted = {"task": task, "engine": engine, **sizes, **asked}
    card = cluster_of(catalog.find_device("H100-80GB"), _ranks(asked))
    made = resolve_request(wanted, numbers(model), card).plan
    axes = [axis for axis in ENGINE_AXES if mesh and axis in _axes(engine, task)]
    made = replace(made, mesh=replace(made.mesh, **{axis: symbol(axis) for axis in axes}))
    if task == "train":
        return replace(made, workload=replace(made.training, microbatch=symbol("b"), seq_len=symbol("s")))
    lengths = {name: symbol(name) for name in SERVED if getattr(made.serving, name) is not None}
    return replace(made, workload=replace(made.serving, **lengths))


def pass_shape() -> PassShape:
    return PassShape(sequences=symbol("b"), tokens=symbol("s"))


ENGINE_AXES = ("dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")


def _axes(engine: str, task: str) -> tuple[str, ...]:
    found = find_engine(engine)
    assert found is not None
    axes = found.axes if task == "train" else found.serving_axes
    return (*axes, "ep", "etp") if engine == "fsdp2" else axes


def _ranks(asked: dict[str, Any]) -> int:
    ranks = 1
    for axis in ("dp_replicate", "dp_shard", "cp", "tp", "pp"):
        ranks *= asked.get(f"mesh.{axis}", 1)
    return ranks


def serving(engine: str = "vllm", model: str = "llama-tiny", **request: Any) -> Plan:
    return plan(engine, model, "infer", **request)


def first(kind: Any, model: str = "llama-tiny") -> Any:
    """The first part of a model that is of a kind."""
    for stack in spec(model).stacks:
        for run in stack.runs:
            for block in run.pattern:
                for part in (block, *block.mixers, block.feed_forward, *block.norms, *block.weights):
                    if isinstance(part, kind):
                        return part
                moe = block.feed_forward
                if isinstance(moe, Moe) and kind is Dense and moe.shared:
                    return moe.shared
    raise LookupError(f"{model} has no {kind}")


TENSOR = HeldTensor(
    "layer.weight", (symbol("out"), symbol("in")), FP32, trains=True, role=Role.LINEAR, times=1
)
LORAS = ServedAdapters(
    slots=symbol("slots"), rank=symbol("r"), targets=("q_proj", "down_proj"), dtype=BF16, host=symbol("host")
)


@cache
def staged(engine: str = "fsdp2", **request: Any) -> StageLayers:
    """The groups of a small model, in numbers but for the ranks that share states."""
    made = plan(engine, mesh=False, **request)
    small = replace(made, mesh=Mesh(dp_shard=symbol("dp_shard")), workload=Training(microbatch=1, seq_len=8))
    found = find_engine(engine)
    assert found is not None
    return walk_stage_layers(numbers(), small, found, release=False)


def how(engine: str = "fsdp2", model: str = "llama-tiny", **request: Any) -> RunConfig:
    """How a plan's operations run, apart from their shapes."""
    made = plan(engine, model, **request)
    found = find_engine(engine)
    assert found is not None
    return run_config_of(made, found)


def group() -> Group:
    """One tensor of a layer, gathered and reduced like all its others."""
    made = BytesByPath.of([((Component.GRADIENTS, "layer"), FP32.nbytes(TENSOR.elements))])
    return replace(staged().layers[0].pattern[0], parameters=(TENSOR,), gradients=made)
