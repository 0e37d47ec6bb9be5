"""An engine's rules are found in its folder, and agree with its facts about what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet.engines
from memsheet.plan.defaults import SERVED_ADAPTERS
from memsheet.plan.engine_registry import (
    CANDIDATES,
    MODELLED,
    NO_RULES,
    adapter_servers,
    find_engine,
    rules_of,
)

FOLDERS = Path(memsheet.engines.__path__[0])


@pytest.mark.parametrize("name", MODELLED)
def test_rules_are_those_of_the_folder(name: str) -> None:
    folder = FOLDERS / name.replace("-", "_").replace(".", "_")
    assert (folder / "facts.py").is_file()
    assert (rules_of(name) is not NO_RULES) == (folder / "defaults.py").is_file()


@pytest.mark.parametrize("name", MODELLED)
def test_an_engine_takes_the_keys_of_adapters_where_it_has_a_rule_for_them(name: str) -> None:
    engine = find_engine(name)
    assert engine is not None
    takes = "serving.max_loras" in engine.models
    assert takes == (rules_of(name).served_adapters is not None) == (name in adapter_servers())
    assert not takes or set(SERVED_ADAPTERS) - {"serving.max_cpu_loras"} <= engine.models


def test_an_engine_that_nobody_names_serves() -> None:
    for name in CANDIDATES:
        engine = find_engine(name)
        assert engine is not None
        assert "infer" in engine.tasks


@pytest.mark.parametrize("name", MODELLED)
def test_facts_of_groups_are_said_where_there_are_groups(
    name: str,
) -> None:
    engine = find_engine(name)
    assert engine is not None
    groups = "attn_dp" in engine.serving_axes
    assert groups or engine.serving.grouped_families is None
    assert groups or not engine.serving.replicas_share_experts
