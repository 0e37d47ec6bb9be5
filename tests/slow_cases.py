"""Cases of a test that are left to the slow sweep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_quick(cases: Iterable[Any], quick: int) -> list[Any]:
    """The first few cases, and the others for whoever has the patience."""
    return [
        case if place < quick else pytest.param(case, marks=pytest.mark.slow)
        for place, case in enumerate(cases)
    ]
