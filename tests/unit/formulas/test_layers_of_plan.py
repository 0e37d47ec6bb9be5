"""Which plans have the same layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memsheet import catalog
from memsheet.formulas.groups import walk_stage_layers
from memsheet.formulas.layers_of_plan import MOST_PLACES, layers_of_plan
from memsheet.formulas.model_code import engine_for
from memsheet.frozen import replace
from memsheet.plan.device import cluster_of
from memsheet.plan.plan import Plan
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request

MODEL = read_model("llama-3-8b", catalog=catalog.find_model)
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
