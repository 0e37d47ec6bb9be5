"""Which plans have the same layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memsheet import catalog
from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.formulas import layers_of_plan as kept
from memsheet.formulas import step
from memsheet.formulas.groups import walk_stage_layers
from memsheet.formulas.layers_of_plan import MOST_PLACES, layers_of_plan
from memsheet.formulas.model_code import engine_for, model_code
from memsheet.frozen import replace
from memsheet.plan.device import cluster_of
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import modelled_engines
from memsheet.plan.plan import Plan, Spread
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request

MODEL = read_model("llama-3-8b", catalog=catalog.find_model)
TRAINS = [engine for engine in modelled_engines() if "train" in engine.tasks and engine.recompute]
REQUEST: dict[str, Any] = {"task": "train", "engine": "deepspeed", "zero": 3, "seq_len": 2048}


def plan_of(**changes: Any) -> Plan:
    asked = {**REQUEST, **{key.replace("__", "."): value for key, value in changes.items()}}
    return resolve_request(asked, MODEL, cluster_of(catalog.find_device("H100-80GB"), 8)).plan


def of_plan(plan: Plan) -> Any:
    return layers_of_plan(plan, engine_for(MODEL, plan))


@pytest.mark.parametrize(
    "changes",
    [
        {"zero": 2},
        {"optimizer__name": "adamw_8bit"},
        {"offload__optimizer": 1},
        {"global_batch": 64},
    ],
)
def test_states_and_batches_are_nothing_that_a_layer_knows(changes: dict[str, Any]) -> None:
    assert of_plan(plan_of()) is of_plan(plan_of(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"microbatch": 2},
        {"seq_len": 1024},
        {"recompute__mode": "full"},
        {"loss": "fused"},
        {"dropout": 0.1},
        {"adapter__rank": 8},
        {"attention": "eager"},
    ],
)
def test_what_a_layer_runs_is_another_plan_of_layers(changes: dict[str, Any]) -> None:
    assert of_plan(plan_of()) is not of_plan(plan_of(**changes))


ROUTED: list[dict[str, Any]] = [
    {},
    {"recompute.mode": "full"},
    {"recompute.mode": "selective"},
    {"moe.capacity_factor": 1.25},
    {"adapter.rank": 8},
]


def parts_under(name: str, asked: dict[str, Any], *, alone: bool) -> list[list[dict[Any, Any]]]:
    """What the parts of a step make and keep under every routing, each asked about after the others."""
    found = []
    for spread in Spread:
        if alone:
            kept._recent = ()
        spec = read_model(name, catalog=catalog.find_model)
        request = {"task": "train", "engine": "megatron", "seq_len": 1024, "mesh.ep": 4, **asked}
        plan = resolve_request(request, spec, cluster_of(catalog.find_device("H100-80GB"), 8)).plan
        assert plan.routing is not None
        plan = replace(plan, routing=replace(plan.routing, spread=spread))
        walk = walk_stage_layers(spec, plan, engine_for(spec, plan), release=True)
        groups = [walk.embeddings, *(group for run in walk.layers for group in run.pattern), walk.head]
        parts = [part for group in groups if group for part in (group.part, group.plain)]
        found.append(
            [
                bag.held
                for part in parts
                for bag in (part.retained, part.forward, part.backward, part.gradients, part.arriving)
            ]
        )
    return found


@pytest.mark.parametrize("asked", ROUTED)
@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2"])
def test_layers_under_a_routing_after_others_are_those_under_it_alone(
    name: str, asked: dict[str, Any]
) -> None:
    try:
        together = parts_under(name, asked, alone=False)
    except InputError:
        pytest.skip("not modelled")
    assert together == parts_under(name, asked, alone=True)
    assert together[0] != together[-1]


def test_counts_of_many_plans_are_compared_place_by_place() -> None:
    def of(*sizes: int) -> Any:
        plan = plan_of()
        return of_plan(replace(plan, workload=replace(plan.training, microbatch=np.array(sizes))))

    assert of(1, 2) is of(1, 2)
    assert of(1, 2) is not of(1, 3)
    assert of(1, 2) is not of(1, 2, 2)


def test_layers_of_many_plans_are_not_kept_beside_others() -> None:
    few, plan = of_plan(plan_of()), plan_of()
    of_plan(replace(plan, workload=replace(plan.training, microbatch=np.arange(1, 2 + MOST_PLACES))))
    assert of_plan(plan_of()) is not few


def test_a_walk_is_made_once_for_plans_whose_layers_are_alike() -> None:
    one, other = plan_of(), plan_of(optimizer__name="adamw_8bit")
    engine = engine_for(MODEL, one)
    assert walk_stage_layers(MODEL, one, engine, release=True) is walk_stage_layers(
        MODEL, other, engine, release=True
    )
    assert walk_stage_layers(MODEL, one, engine, release=True) is not walk_stage_layers(
        MODEL, other, engine, release=False
    )


class Untold:
    """A value that nobody may look at."""

    def __getattr__(self, name: str) -> Any:
        if name in ("__array_namespace__", "__own_fields__"):
            raise AttributeError(name)
        raise AssertionError(name)

    def looked_at(self, *_: object) -> Any:
        raise AssertionError("a layer asks what it is not told")

    __bool__ = __int__ = __index__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = looked_at
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = looked_at
    __hash__ = object.__hash__


def without_untold(plan: Plan, told: Any) -> Plan:
    """A plan of layers with ``told`` in every place that it is not told of."""
    mesh = dict.fromkeys(("dp_replicate", "dp_shard", "pp", "vpp"), told)
    return replace(
        plan,
        **dict.fromkeys(("zero", "optimizer", "reshard_after_forward", "gathers", "schedule"), told),
        layers_per_stage=told,
        mesh=replace(plan.mesh, **mesh),
        offload=replace(plan.offload, optimizer=told, parameters=told),
        workload=replace(plan.training, global_batch=told),
    )


@pytest.mark.parametrize("mode", ["none", "full"])
@pytest.mark.parametrize("engine", TRAINS, ids=[engine.name for engine in TRAINS])
def test_no_layer_asks_what_it_is_not_told(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, mode: str
) -> None:
    plan, made = plan_of(engine=engine.name, zero=max(engine.zero), recompute__mode=mode), list[Plan]()
    try:
        whole, told = account_rank(MODEL, plan), Untold()
    except InputError:
        pytest.skip("builds models of its own")

    def plan_of_layers(own: Plan) -> Plan:
        made.append(without_untold(own, told))
        return made[-1]

    monkeypatch.setattr(kept, "plan_of_layers", plan_of_layers)
    monkeypatch.setattr(step, "_recent_steps", ())
    monkeypatch.setattr(step, "_recent_peaks", ())
    assert account_rank(MODEL, plan).items == whole.items
    assert bool(made) is not model_code(engine.layers).knows_shards
