"""What states know of a plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memsheet.account import rank_of
from memsheet.catalog import find_model
from memsheet.errors import InputError
from memsheet.formulas import step as step_module
from memsheet.formulas.model_code import engine_for
from memsheet.formulas.sharding import by_tensor, partitioned, states_of_plan
from memsheet.formulas.sharding.algorithm import algorithm_of
from memsheet.formulas.sharding.states_of_plan import RecentStates, plan_of_states
from memsheet.formulas.step import account_training_step
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


TRAINERS = [engine.name for engine in modelled_engines() if "train" in engine.tasks and engine.name != "bare"]
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"recompute__mode": "full"},
    {"loss": "chunked"},
    {"loss": "fused"},
    {"zero": 0},
    {"zero": 1},
    {"zero": 2},
    {"global_batch": 64},
    {"global_batch": 64, "zero": 1},
    {"global_batch": 64, "mesh__pp": 2},
    {"optimizer__name": "adafactor"},
    {"offload__optimizer": 1},
    {"adapter__rank": 8},
    {"precision__name": "bf16-master"},
    {"mesh__tp": 2, "sequence_parallel": True},
    {"mesh__ep": 2},
    {"attention": "eager"},
)


def steps_at(spec: ModelSpec, engine: str, changes: dict[str, Any]) -> list[dict[Any, Any] | None]:
    """What steps of several lengths hold, each asked about after the others."""
    axes = next(one.axes for one in modelled_engines() if one.name == engine)
    ranks = {"mesh__dp_shard": 4} if "dp_shard" in axes else {}
    found: list[dict[Any, Any] | None] = []
    for length in (512, 1024, 640, 512):
        try:
            plan = plan_of(spec, **{**ranks, "engine": engine, **changes, "seq_len": length})
            step = account_training_step(rank_of(spec, plan), plan, engine_for(spec, plan))
        except InputError:
            found.append(None)
            continue
        bags = {instant: bag.held for instant, bag in step.bags.items()}
        found.append(
            {"bags": bags, "ranges": step.kept.ranges, "host": step.kept.host, "notes": step.kept.notes}
        )
    return found


@pytest.mark.parametrize("engine", TRAINERS)
@pytest.mark.parametrize("name", ["llama-3.2-1b", "mixtral-8x7b"])
def test_a_step_after_others_of_other_lengths_is_the_step_alone(
    engine: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(name)
    together = [steps_at(spec, engine, changes) for changes in CHANGES]
    if not any(found[0] for found in together):
        pytest.skip(f"{engine} trains no {name}")
    monkeypatch.setattr(RecentStates, "made_of", lambda _, __, plan, make, ___=None: make(plan))
    for module in (states_of_plan, by_tensor, partitioned, step_module):
        monkeypatch.setattr(module, "plan_of_any_length", lambda plan: plan)
    assert together == [steps_at(spec, engine, changes) for changes in CHANGES]


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
