"""Whose code a model is run by, operation by operation over shape-only tensors.

``transformers`` is the library's, which most engines run; those that have model code of their own bring it
(``layers`` in an engine's folder).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from memsheet.arith import Count
from memsheet.errors import Problem, input_error
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import DType
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import engine_module, engine_of, find_engine
from memsheet.plan.model import Block, Embeddings, Head, ModelSpec, Norm, Weight
from memsheet.plan.plan import Loss, Plan
from memsheet.plan.workload import PassShape, Training

if TYPE_CHECKING:
    from memsheet.formulas.graph_captures import Captured
    from memsheet.formulas.model_code.shared_tables import LetGo
    from memsheet.formulas.numerics import RunConfig
    from memsheet.formulas.tapes.bytes_by_path import BytesByPath
    from memsheet.formulas.tapes.evaluate import Beside
    from memsheet.formulas.tapes.graph import GradientSum, Tensor
    from memsheet.formulas.tapes.recorder import Recorder
    from memsheet.formulas.tapes.tape import Shape


def _as_it_is(spec: ModelSpec, _: Plan) -> ModelSpec:
    return spec


def _same_plan(plan: Plan) -> Plan:
    return plan


def nothing_shared(*_: object) -> BytesByPath:
    """Of code whose layers share nothing."""
    from memsheet.formulas.tapes.bytes_by_path import EMPTY

    return EMPTY


def nothing_let_go(*_: object) -> LetGo:
    """Of code whose backward lets go of nothing between stacks."""
    from memsheet.formulas.model_code.shared_tables import LetGo

    return LetGo()


def _nothing_captured(*_: object) -> None:
    return None


def nothing_beside(*_: object) -> Beside:
    """Of code whose forward names nothing beside its layers."""
    from memsheet.formulas.tapes.evaluate import NOTHING

    return NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCode:
    """One way of writing models. What depends on how much enters the layers at once is handed the shape of
    the pass: training's of its workload, a server's of what it computes then.

    ``built``: the model as this code builds it (its own module names, joined projections). ``of_rank``: the
    plan of what a rank has, where its layers are handed a part of every sequence. ``problems``: what
    it cannot run or what is not modelled of it. ``plan_numerics``: what depends on the plan alone;
    ``block_numerics``: on a block's shapes too. ``axes``, ``end_axes``: values of the axes that shapes are
    named by. ``forward``: a block; ``embed``: the embeddings, and what their caller still names; ``head``:
    from the last hidden states to what the loss takes, whose shape and dtype ``loss_input`` gives; ``loss``:
    from there to a number. ``shared``: what all layers keep together; ``masks``: what lives through the
    model's forward, and ``keeps_masks``: through its backward too; ``until_loss``: what lives until the loss
    is there; ``masks_inside``: the embeddings' own forward holds both. ``let_go``: what is gone when backward
    comes to what lies between two stacks and has passed it; ``made_again``: when it has come to a stack's
    first layer, which is run again. ``stream``: what blocks hand on. ``named``: what the training loop names
    from the loss to the end of the step. ``at_ends``: how embeddings and head run, of how the layers do.
    ``beside``: what the model's forward names of a tower that pictures pass through. ``inside``: of a block's
    tensors those of a unit inside it that the library never splits either. ``notes``: what a reader
    should know of the model's kernels. ``captured``: what the CUDA graphs of a rank's layers hold, of a
    pipeline's stage. ``any_kernel``: attention is modelled with every kernel that torch may choose.
    ``knows_shards``: layers or ends hold what is gathered of other ranks' shards; others know of none.
    """

    forward: Callable[[Recorder, Tensor, Block, RunConfig], Tensor]
    embed: Callable[[Recorder, Embeddings, RunConfig, GradientSum], tuple[Tensor, tuple[Tensor, ...]]]
    head: Callable[[Recorder, Tensor, Head, RunConfig, Loss, str], Tensor]
    loss: Callable[[Recorder, Tensor, RunConfig, Loss, str], Tensor]
    loss_input: Callable[[RunConfig, Loss], tuple[Shape, DType, str]]
    problems: Callable[[ModelSpec, Plan], list[Problem]]
    block_numerics: Callable[[Block, Plan, PassShape, RunConfig], RunConfig]
    axes: Callable[[Block, Plan, PassShape], dict[str, Count]]
    end_axes: Callable[[ModelSpec, Plan, PassShape], dict[str, Count]]
    normalise: Callable[[Recorder, Tensor, Norm, RunConfig], Tensor] | None = None
    built: Callable[[ModelSpec, Plan], ModelSpec] = _as_it_is
    of_rank: Callable[[Plan], Plan] = _same_plan
    on_rank: Callable[[Block, Plan], Block] = lambda block, _: block
    shared: Callable[[ModelSpec, Plan, PassShape, RunConfig], BytesByPath] = nothing_shared
    plan_numerics: Callable[[Plan, RunConfig], RunConfig] = lambda _, how: how
    masks: Callable[[ModelSpec, Plan, PassShape, RunConfig], BytesByPath] = nothing_shared
    until_loss: Callable[[ModelSpec, Plan, PassShape, RunConfig], BytesByPath] = nothing_shared
    let_go: Callable[[ModelSpec, Plan, RunConfig], LetGo] = nothing_let_go
    made_again: Callable[[ModelSpec, Plan, RunConfig], BytesByPath] = nothing_shared
    keeps_masks: Callable[[ModelSpec, Plan], bool] = lambda *_: False
    masks_inside: bool = False
    named: Callable[[ModelSpec, Plan, PassShape, RunConfig], BytesByPath] = nothing_shared
    positions_each: Callable[[ModelSpec], bool] = lambda _: False
    at_ends: Callable[[RunConfig], RunConfig] = lambda how: how
    beside: Callable[[ModelSpec, Plan, RunConfig], Beside] = nothing_beside
    inside: Callable[[Block], tuple[Weight, ...]] = lambda _: ()
    notes: Callable[[ModelSpec], tuple[str, ...]] = lambda _: ()
    stream: Shape = ("b", "s", "h")
    captured: Callable[[ModelCode, ModelSpec, Plan, Count], Captured | None] = _nothing_captured
    any_kernel: bool = False
    knows_shards: bool = False


RECORDED = "recorded"
"""In place of an engine's folder: the model's own code, on record."""


@cache
def _with_recorded_layers(name: str) -> Engine:
    engine = find_engine(name)
    assert engine is not None
    return replace(engine, layers=RECORDED)


def engine_for(model: ModelSpec, plan: Plan) -> Engine:
    """The engine of a plan, whose layers are those of the model's recording where it has one. Raises
    InputError for an engine with model code of its own.
    """
    engine = engine_of(plan)
    if model.recording is None or not isinstance(plan.workload, Training):
        return engine
    if engine.layers is not None:
        raise input_error(
            "engine",
            plan.engine,
            f"has model code of its own, which is not written down here for {model.model_type}",
            "one that runs the transformers library's: transformers, fsdp2, deepspeed",
        )
    return _with_recorded_layers(engine.name)


@cache
def model_code(layers: str | None) -> ModelCode:
    """The way of writing models of an engine's folder, or of the library."""
    if layers is None:
        from memsheet.formulas.model_code.transformers.code import CODE

        return CODE
    if layers == RECORDED:
        from memsheet.formulas.model_code.recorded import CODE as OF_RECORDINGS

        return OF_RECORDINGS
    found: ModelCode = engine_module(layers, "layers").CODE
    return found
