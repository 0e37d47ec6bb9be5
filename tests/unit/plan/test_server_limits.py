"""Facts of what engines take of cards, dtypes and versions: laws over all engines, cards and families."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from laws import every
from memsheet import catalog
from memsheet.plan.dtypes import BF16, FP16, FP32
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import KNOWN_NAMES, MODELLED, find_engine
from memsheet.plan.hardware import capability_of, lowers_itself, not_served_in

ENGINES = {name: engine for name in MODELLED if (engine := find_engine(name)) is not None}
FAMILIES = ("llama", "gemma3", "glm4", "")
CARDS = sorted(
    (device for device in catalog.catalog_devices() if capability_of(device)),
    key=lambda device: capability_of(device) or (0, 0),
)


def test_every_modelled_engine_is_a_word_of_plans() -> None:
    assert set(ENGINES) == set(MODELLED) <= set(KNOWN_NAMES)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_version_that_was_read_names_a_release(engine: Engine) -> None:
    assert re.search(engine.version_form, engine.tested)
    example = engine.version_example.partition("for example ")[2]
    assert example
    assert re.search(engine.version_form, example)


@every("family", FAMILIES)
@every("engine", ENGINES.values(), ids=ENGINES)
def test_a_dtype_is_left_on_every_card_and_older_cards_refuse_no_less(engine: Engine, family: str) -> None:
    refused = [set(not_served_in(engine, None, card, family)) for card in CARDS]
    assert all({BF16, FP16, FP32} - found for found in refused)
    assert all(newer <= older for older, newer in pairwise(refused))
    assert set(not_served_in(engine, None, None, family)) <= refused[0]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_what_casts_down_or_overflows_has_a_dtype_in_place(engine: Engine) -> None:
    limits = engine.limits
    assert not limits.casts_down or limits.bf16_units is not None
    assert bool(limits.overflowing) <= (limits.lowers_since is not None)
    assert not (limits.overflowing or limits.casts_down) or lowers_itself(engine, None)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_an_optimizer_is_usually_stepped_in_the_engine_s_way_where_it_can_be(engine: Engine) -> None:
    assert all(ways and len(set(ways)) == len(ways) for ways in engine.implementations.values())
    own = [ways for name, ways in engine.implementations.items() if name in engine.optimizers]
    assert not engine.own_kernel_steps or all(ways[0] is engine.default_implementation for ways in own)
