"""A part is evaluated once for axes of the same numbers, and anew for any others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memsheet.formulas.tapes.evaluate import MOST_KEPT, Part, evaluate_tape
from memsheet.formulas.tapes.tape import Entry, Event, Tape
from memsheet.plan.dtypes import BF16

TAPE = Tape(
    entries=(Entry("x", ("s", "b"), BF16), Entry("y", (8, "s"), BF16)),
    forward=((Event.ALLOC, 0), (Event.ALLOC, 1)),
    backward=((Event.FREE, 1), (Event.FREE, 0)),
    saved=frozenset({0}),
    cached=frozenset(),
    outputs=frozenset({1}),
    handed=frozenset(),
)


def evaluated(**axes: Any) -> Part:
    return evaluate_tape(TAPE, axes, "layers", release=False)


def test_the_same_numbers_are_one_part() -> None:
    first = evaluated(s=np.array([3, 5]), b=2)
    assert evaluated(s=np.array([3, 5]), b=2) is first
    assert [*first.output] == [48, 80]


@pytest.mark.parametrize(
    "other",
    [
        {"s": np.array([3, 6]), "b": 2},
        {"s": np.array([3, 5]), "b": 3},
        {"s": np.array([[3, 5]]), "b": 2},
        {"s": np.array([3, 5], dtype=np.int32), "b": 2},
        {"b": 2, "s": np.array([5, 3])},
        {"s": 3, "b": np.array([2, 2])},
        {"s": 3, "b": 2},
    ],
)
def test_other_numbers_are_another(other: dict[str, Any]) -> None:
    first, again = evaluated(s=np.array([3, 5]), b=2), evaluated(**other)
    assert again is not first
    assert np.array_equal(again.output, 16 * other["s"])


def test_long_arrays_are_not_kept() -> None:
    rows = np.arange(MOST_KEPT + 1)
    assert evaluated(s=rows, b=2) is not evaluated(s=rows, b=2)
