"""The algebra of every formula, as it prints itself."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

from golden import algebra
from golden.cases import CASES, ROOMS
from laws import every
from memsheet.references import FORMULAS

FILE = Path(__file__).with_name("formulas.txt")
PLAIN = {
    "operators.blocks.branch_count": "as many as the block's parts",
    "grad_scaler.scaler_bytes": "as many bytes for every model",
    "grad_scaler.unscaling_bytes": "as many bytes for every model",
    "states.optimizers.fused_backward_step": "copies by the optimizer's name",
    "states.optimizers.step_count_bytes": "four bytes or none",
    "step_time.schedule.bubble_share": "a share by the schedule's name",
}
"""Formulas that take no count, and print a number."""


@cache
def printed() -> dict[str, dict[str, str]]:
    algebra.load_all()
    return {name: algebra.algebra(name) for name in FORMULAS}


def names(counts: str) -> list[str]:
    algebra.load_all()
    return sorted(name for name, (_, _, taken) in FORMULAS.items() if taken == counts)


def test_the_formulas_say_what_they_said() -> None:
    assert algebra.text() == FILE.read_text(encoding="utf-8"), "make regold writes it again"


def test_every_case_belongs_to_one_formula() -> None:
    """None to a formula that was renamed, and none to two."""
    every = [f".{algebra.short_name(name)}" for name in names("any")]
    found = {end: [name for name in every if name.endswith(f".{end}")] for end in CASES}
    assert {end: owners for end, owners in found.items() if len(owners) != 1} == {}
    assert len(CASES) == sum(len(room.CASES) for room in ROOMS)


def test_a_formula_prints_unless_it_says_that_it_takes_whole_numbers_alone() -> None:
    dashes = [name for name in names("any") if any(algebra.DASH in text for text in printed()[name].values())]
    assert dashes == []
    assert all(printed()[name] == {"": algebra.DASH} for name in names("int"))


def test_what_prints_prints_a_symbol() -> None:
    """Not the nothing of a plan that has no such part."""
    numbers = {
        algebra.short_name(name)
        for name in names("any")
        if not any(_has_symbol(text) for text in printed()[name].values())
    }
    assert numbers == {*PLAIN}


@every("name", names("int"))
def test_a_formula_that_would_print_does_not_say_whole_numbers(name: str) -> None:
    """Asked by annotation it branches on a symbol, wants what no symbol makes, or answers with a choice."""
    text = algebra.DASH
    with suppress(TypeError, KeyError, AttributeError, AssertionError, LookupError):
        ((args, kwargs),) = algebra.by_annotation(name).values()
        text = algebra.shown(algebra.function_of(name)(*args, **kwargs))
    assert algebra.DASH in text or not _has_symbol(text)


def _has_symbol(text: str) -> bool:
    """Whether a letter stands anywhere but in a name before a colon."""
    return bool(re.search(r"[^\W\d_]", re.sub(r"[^{},()]+: ", "", text)))
