"""The same arithmetic on a number, on many plans at once and on a symbol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from memsheet.arith import (
    Term,
    ceil_div,
    each,
    given_or,
    is_zero,
    maximum,
    minimum,
    rounded_down,
    where,
)
from memsheet.formulas.step_time.numbers import Curve, larger, logarithm, root, smaller

COUNTS = (0, 1, 3, 7, 4096)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "given_or": lambda a: given_or(a, 5),
    "rounded_down": lambda a: rounded_down(a * 0.37),
    "maximum": lambda a: maximum(a, 4),
    "minimum": lambda a: minimum(a, 4),
    "ceil_div": lambda a: ceil_div(a, 4),
    "each": lambda a: each(lambda n: n * n, a),
    "where": lambda a: where(a >= 4, a, 9),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_array_is_its_numbers(name: str) -> None:
    function = FUNCTIONS[name]
    assert function(np.array(COUNTS)).tolist() == [function(count) for count in COUNTS]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_symbol_prints_and_drives_no_branch(name: str) -> None:
    made = FUNCTIONS[name](Term("n"))
    assert isinstance(made, Term)
    assert "n" in made.text
    with pytest.raises(TypeError, match="may not drive a branch"):
        bool(made)


def test_a_symbol_was_said_and_is_of_what_there_is() -> None:
    n = Term("n")
    assert given_or(n, 5) is n
    assert given_or(None, 5) == given_or(0, 5) == 5
    assert is_zero(0)
    assert not is_zero(n)


def test_comparisons_of_symbols_are_symbols() -> None:
    n, m = Term("n"), Term("m")
    assert [str(one) for one in (n == m, n != m, n < 1, n <= m, n > 1, n >= m + 1)] == [
        "n = m", "n ≠ m", "n < 1", "n ≤ m", "n > 1", "n ≥ m + 1",
    ]  # fmt: skip
    with pytest.raises(TypeError, match="may not drive a branch"):
        assert n == m


def test_the_largest_of_several_is_one_call_that_says_each_once() -> None:
    n, m = Term("n"), Term("m")
    assert str(maximum(maximum(0, n), maximum(m, n))) == "max(0, n, m)"
    assert str(maximum(minimum(n, m), 2 * n)) == "max(min(n, m), 2·n)"
    assert maximum(n, n) is n


def test_nothing_and_one_go_without_saying() -> None:
    n = Term("n")
    assert [str(one) for one in (n + 0, 0 + n, n * 1, 1.0 * n, n + n * 0, 0 * n / n)] == [*"nnnnn0"]
    assert str((n - 1) / 2 * Term("m") % 3) == "(n - 1) / 2·m mod 3"


def test_seconds_take_a_symbol() -> None:
    n, curve = Term("n"), Curve.of({"1": 0.5, "4": 0.75})
    assert [str(one) for one in (larger(n, 1.0), smaller(2.0, n), root(n), logarithm(n))] == [
        "max(n, 1.0)", "min(2.0, n)", "√(n)", "ln(n)",
    ]  # fmt: skip
    assert str(curve.at(n)) == "interpolated(n)"
    assert Curve.flat(0.5).at(n) == 0.5
