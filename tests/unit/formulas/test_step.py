"""A step's moments, put together by hand."""

from __future__ import annotations

from memsheet.formulas.step import _pad_with_last


def test_a_plan_of_fewer_moments_has_its_last_one_again() -> None:
    assert _pad_with_last([(1, 2), (3, 4)], 4) == [(1, 2), (3, 4), (3, 4), (3, 4)]
    assert _pad_with_last([(1, 2), (3, 4)], 2) == [(1, 2), (3, 4)]
