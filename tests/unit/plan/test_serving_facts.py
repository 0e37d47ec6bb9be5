"""What engines say of their serving, against what their folders do."""

from __future__ import annotations

from dataclasses import fields

import pytest

from laws import every
from memsheet import infer
from memsheet.formulas.serving.servers import server_of
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import (
    HOST_LAYERS_SERVER,
    ONE_GPU,
    PAGED_SERVER,
    find_engine,
    modelled_engines,
)
from memsheet.plan.serving_facts import ServingFacts

ENGINES = modelled_engines()
SERVERS = tuple(engine for engine in ENGINES if "infer" in engine.tasks)


def _names(engine: Engine) -> str:
    return engine.name


@pytest.mark.parametrize("engine", ENGINES, ids=_names)
def test_only_who_serves_says_how(engine: Engine) -> None:
    assert engine in SERVERS or engine.serving == ServingFacts()


@pytest.mark.parametrize("engine", SERVERS, ids=_names)
def test_a_pool_has_room_and_nothing_else_has(engine: Engine) -> None:
    assert hasattr(server_of(engine), "room") == engine.serving.pools_cache


@pytest.mark.parametrize("engine", SERVERS, ids=_names)
def test_what_is_said_of_ranks_needs_such_ranks(engine: Engine) -> None:
    """Facts of groups, stages and sums where the engine has none would never be asked."""
    said = engine.serving
    needs = {
        "attn_dp": said.limits_all_groups or said.cuts_dense_over_groups,
        "pp": said.stages_at_once,
        "tp": said.own_all_reduce,
    }
    assert {axis for axis, needed in needs.items() if needed} <= {*engine.serving_axes}


@every("fact", [field.name for field in fields(ServingFacts)])
def test_every_fact_tells_engines_apart(fact: str) -> None:
    """A fact that all servers share is no fact of one."""
    values = [getattr(engine.serving, fact) for engine in SERVERS]
    assert any(value != values[0] for value in values)


@pytest.mark.parametrize(
    ("engine", "weights"),
    [(engine.name, weights) for engine in SERVERS for weights in engine.serving.fewer_bits],
)
def test_formats_that_are_offered_are_accounted_and_milder_first(engine: str, weights: str) -> None:
    offered = find_engine(engine).serving.fewer_bits  # type: ignore[union-attr]
    sizes = [
        infer(
            "llama-3-8b",
            gpus="1xA100-80GB",
            engine=engine,
            max_model_len=1024,
            sequences=1,
            **({"quantize": name} if name else {}),
        )
        .sheets[0]
        .device.value
        for name in (None, *offered[: offered.index(weights) + 1])
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len({*sizes}) == len(sizes)


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        (PAGED_SERVER, {"serving.page_tokens", "serving.max_batched_tokens"}),
        (HOST_LAYERS_SERVER, {"serving.gpu_layers", "serving.host_experts"}),
    ],
)
def test_who_is_offered_where_nobody_says_has_what_it_is_offered_for(name: str, needed: set[str]) -> None:
    engine = find_engine(name)
    assert engine in SERVERS
    assert needed <= engine.models


def test_who_is_taken_where_nobody_says_is_planned_for() -> None:
    assert {PAGED_SERVER, ONE_GPU} <= {engine.name for engine in SERVERS if engine.serving.planned}
