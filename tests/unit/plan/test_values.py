"""Values as they are written."""

from __future__ import annotations

import pytest

from memsheet.plan.values import parse_token_count, parse_whole_number


@pytest.mark.parametrize("blank", [" ", "\t", "\x1c", "\x1f", "\u2003"])
def test_what_counts_as_a_blank_around_a_number_is_left_out(blank: str) -> None:
    assert parse_whole_number(f"{blank}12{blank}") == 12
    assert parse_token_count(f"8k{blank}") == 8192
    assert parse_whole_number(f"1{blank}2") == f"1{blank}2"
