"""Arithmetic on times: one line for a float and for a float array. Nothing here imports numpy."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from memsheet.arith import Term, is_array, is_symbol, maximum, minimum, symbolic
from memsheet.frozen import dataclass

Real = Any
"""A float for one plan, a float64 array for a stratum of plans."""


PLAIN = frozenset({int, float})


def larger(a: Real, b: Real) -> Real:
    if type(a) in PLAIN and type(b) in PLAIN:
        return max(a, b)
    space = getattr(a, "__array_namespace__", None) or getattr(b, "__array_namespace__", None)
    if space is None:
        return maximum(a, b) if isinstance(a, Term) or isinstance(b, Term) else max(a, b)
    return space().maximum(a, b)


def smaller(a: Real, b: Real) -> Real:
    if type(a) in PLAIN and type(b) in PLAIN:
        return min(b, a)
    space = getattr(a, "__array_namespace__", None) or getattr(b, "__array_namespace__", None)
    if space is None:
        return minimum(a, b) if isinstance(a, Term) or isinstance(b, Term) else min(b, a)
    return space().minimum(a, b)


def root(x: Real) -> Real:
    return symbolic("√", x) if is_symbol(x) else math.sqrt(x)


def logarithm(x: Real) -> Real:
    return symbolic("ln", x) if is_symbol(x) else math.log(x)


def exposed_seconds(work: Real, cover: Real) -> Real:
    """What is left of ``work`` after ``cover`` ran beside it."""
    return larger(work - cover, 0.0)


@dataclass(frozen=True)
class Curve:
    """Measured points joined by straight lines, held level beyond both ends."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, table: Mapping[str, float]) -> Curve:
        return cls(tuple(sorted((float(key), float(value)) for key, value in table.items())))

    @classmethod
    def flat(cls, value: float) -> Curve:
        return cls(((1.0, value),))

    @property
    def top(self) -> float:
        return self.points[-1][1]

    def scaled(self, factor: float) -> Curve:
        return Curve(tuple((x, y * factor) for x, y in self.points))

    @cached_property
    def _columns(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        points = self.points if len(self.points) == 1 else ((0.0, 0.0), *self.points)
        return tuple(x for x, _ in points), tuple(y for _, y in points)

    def at(self, x: Real) -> Real:
        """Below the first point in proportion to ``x``: what is there is bound by one tile, however few of
        its rows are used.
        """
        if is_symbol(x):
            return self.top if len(self.points) == 1 else symbolic("interpolated", x)
        xs, ys = self._columns
        if is_array(x):
            return x.__array_namespace__().interp(x, xs, ys)
        right = bisect_right(xs, x)
        if right in (0, len(xs)):
            return ys[min(right, len(xs) - 1)]
        left = right - 1
        return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])
