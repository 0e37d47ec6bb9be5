"""What a search did not try below its answer is said, where it left something out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from memsheet.report.screen.solution import _widest_gap


def searched(found: int, beyond: int, *tried: int) -> Any:
    values = [SimpleNamespace(value=value) for value in tried]
    return SimpleNamespace(
        tried=values, found=SimpleNamespace(value=found), beyond=SimpleNamespace(value=beyond)
    )


@pytest.mark.parametrize(
    ("solution", "said"),
    [
        (searched(4096, 4160, 64, 2048, 3008, 3968, 4096, 4160), (2048, 960)),
        (searched(4096, 4160, 64, 3968, 4032, 4096, 4160, 9000), (0, 0)),
        (searched(3, 4, 1, 2, 3, 4), (0, 0)),
        (SimpleNamespace(tried=(), found=None, beyond=None), (0, 0)),
    ],
)
def test_the_widest_step_up_to_the_answer_is_said(solution: Any, said: tuple[int, int]) -> None:
    assert _widest_gap(solution) == said
