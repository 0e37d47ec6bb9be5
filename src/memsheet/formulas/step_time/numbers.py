"""Arithmetic on times: one line for a float and for a float array. Nothing here imports numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memsheet.arith import at_least, where

Real = Any
"""A float for one plan, a float64 array for a stratum of plans."""


def larger(a: Real, b: Real) -> Real:
    return where(at_least(a, b), a, b)


def smaller(a: Real, b: Real) -> Real:
    return where(at_least(a, b), b, a)


def exposed(work: Real, cover: Real) -> Real:
    """What is left of ``work`` after ``cover`` ran beside it."""
    return larger(work - cover, 0.0)


@dataclass(frozen=True, slots=True)
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

    def at(self, x: Real) -> Real:
        """Below the first point in proportion to ``x``: what is there is bound by one tile, however few of its rows are used."""
        first_x, first_y = self.points[0]
        found = first_y * smaller(x / first_x, 1.0) if len(self.points) > 1 else first_y
        for (left, low), (right, high) in zip(self.points, self.points[1:], strict=False):
            found = found + (high - low) * smaller(larger((x - left) / (right - left), 0.0), 1.0)
        return found
