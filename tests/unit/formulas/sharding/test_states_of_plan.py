"""What states know of a plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memsheet.catalog import find_model
from memsheet.formulas.model_code import engine_for
from memsheet.formulas.sharding.algorithm import algorithm_of
from memsheet.formulas.sharding.states_of_plan import RecentStates, plan_of_states
from memsheet.frozen import replace
from memsheet.plan.engine_registry import modelled_engines
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request

ALONE = [
    engine.name
    for engine in modelled_engines()
    if "train" in engine.tasks and algorithm_of(engine.sharding).state_alone
]


def spec_of(name: str) -> ModelSpec:
    return read_model(name, catalog=find_model)


def plan_of(spec: ModelSpec, **changes: Any) -> Plan:
    asked = {
        "task": "train",
        "seq_len": 512,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return resolve_request(asked, spec).plan


def test_an_engine_keeps_states_that_no_layer_decides() -> None:
    assert ALONE


@pytest.mark.parametrize("engine", ALONE)
@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v2"])
def test_no_state_knows_what_is_recomputed_or_how_the_loss_is(engine: str, name: str) -> None:
    spec = spec_of(name)
    for changes in (
        {"recompute__mode": "full"},
        {"recompute__mode": "selective"},
        {"loss": "fused"},
        {
            "loss": "fused",
            "attention": "eager",
            "recompute__mode": "full",
            "mesh__tp": 2,
            "sequence_parallel": True,
        },
    ):
        plan = plan_of(spec, engine=engine, **changes)
        alone = algorithm_of(engine_for(spec, plan).sharding).state_alone
        assert alone is not None
        own, known = alone(spec, plan), alone(spec, plan_of_states(plan))
        assert (own.states.held, own.at_step.held, own.ranges) == (
            known.states.held,
            known.at_step.held,
            known.ranges,
        )


def test_what_is_made_is_known_of_plans_with_the_same_states_alone() -> None:
    spec, recent = spec_of("llama-3-8b"), RecentStates[int](3, 1 << 10)
    plain, made = plan_of(spec, engine="megatron"), list[Plan]()

    def asked(plan: Plan, model: ModelSpec = spec) -> int:
        return recent.made_of(model, plan, lambda own: made.append(own) or len(made))

    assert (
        asked(plain) == asked(replace(plain, recompute=plan_of(spec, recompute__mode="full").recompute)) == 1
    )
    assert asked(plan_of(spec, engine="megatron", optimizer__name="muon")) == 2
    assert asked(plain, replace(spec, name="another")) == 3
    assert asked(plain) == 1
    asked(plan_of(spec, engine="megatron", microbatch=3))
    asked(plan_of(spec, engine="megatron", microbatch=2))
    assert asked(plan_of(spec, engine="megatron", optimizer__name="muon")) > 3, "the last three are kept"


def test_large_strata_are_not_kept_beside_others() -> None:
    spec, recent = spec_of("llama-3-8b"), RecentStates[object](8, 64)
    plan = plan_of(spec, engine="megatron")
    large = replace(plan, mesh=replace(plan.mesh, dp_shard=np.arange(1, 101)))
    small, first = (
        recent.made_of(spec, plan, lambda _: object()),
        recent.made_of(spec, large, lambda _: object()),
    )
    assert recent.made_of(spec, large, lambda _: object()) is first
    assert recent.made_of(spec, plan, lambda _: object()) is not small
