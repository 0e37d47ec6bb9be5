"""Arguments of formulas by the end of their names, where names and annotations do not say enough."""

from __future__ import annotations

from collections.abc import Callable

from golden.cases import engines, layers, serving, sharding, states, times
from golden.symbols import Cases

ROOMS = (engines, layers, serving, sharding, states, times)
CASES: dict[str, Callable[[], Cases]] = {end: cases for room in ROOMS for end, cases in room.CASES.items()}
