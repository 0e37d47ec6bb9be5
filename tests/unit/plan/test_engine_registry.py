"""What engines say of themselves fits together: who stands in for whom, what is run, what is searched."""

from __future__ import annotations

import pytest

from memsheet.plan.engine_registry import (
    MODELLED,
    ONE_GPU,
    SEVERAL_GPUS,
    STAGE_ENGINES,
    find_engine,
    modelled_engines,
    searched_engines,
    sharding_counterpart,
)

ENGINES = {engine.name: engine for engine in modelled_engines()}


def test_every_modelled_engine_has_its_own_facts():
    assert tuple(ENGINES) == MODELLED
    assert find_engine("abacus") is None


def test_a_search_tries_engines_that_train_each_in_a_place_of_its_own():
    places = [engine.searched for engine in ENGINES.values() if engine.searched is not None]
    assert len(set(places)) == len(places) > 1
    assert [ENGINES[name].searched for name in searched_engines()] == sorted(places)
    assert all("train" in ENGINES[name].tasks for name in searched_engines())


@pytest.mark.parametrize("engine", [engine for engine in ENGINES.values() if engine.whole_copies_by])
def test_who_keeps_whole_copies_runs_the_same_model_code(engine):
    other = ENGINES[engine.whole_copies_by]
    assert 0 in other.zero
    assert 0 not in engine.zero
    assert other.layers == engine.layers
    assert sharding_counterpart(other) == engine.name


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_who_divides_every_state_of_an_engines_code_can(engine):
    other = sharding_counterpart(engine)
    assert other is None or 3 in ENGINES[other].zero


def test_a_stage_is_taken_over_by_an_engine_that_has_it():
    assert all(stage in ENGINES[name].zero for stage, name in enumerate(STAGE_ENGINES))
    assert ENGINES[SEVERAL_GPUS].zero[-1] == 3
    assert set(ENGINES[ONE_GPU].tasks) == {"train", "infer"}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_only_what_is_run_here_has_axes_that_its_own_code_takes(engine):
    assert engine.runner is not None or not (engine.real_axes or engine.real_schedules or engine.real_zero)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_parameters_lie_on_the_host_at_a_stage_that_the_engine_has(engine):
    assert engine.offloads_parameters_at in (0, *engine.zero)
    assert not engine.offloads_parameters_at or "parameters" in engine.offload
