"""Bytes at several sizes as an exact function of sequences and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

from memsheet.recording import Terms

Size = tuple[int, int]
"""(sequences, tokens of each)."""
POWERS = ((0, 0), (1, 1), (0, 1), (1, 0), (1, 2), (0, 2))
"""What storages grow with, likeliest first: nothing, all tokens, positions, sequences, pairs of positions."""


def solve_terms(sizes: Sequence[Size], bytes_at: Sequence[int]) -> Terms | None:
    """The sum of fewest terms that gives ``bytes_at`` at all ``sizes``; None where there is none with fewer
    terms than sizes.
    """
    return _solved_terms(tuple(sizes), tuple(bytes_at))


@lru_cache(maxsize=4096)
def _solved_terms(sizes: tuple[Size, ...], bytes_at: tuple[int, ...]) -> Terms | None:
    """As ``solve_terms``: a layer's storages are of few sizes."""
    for count in range(1, min(len(sizes), 4)):
        for powers in combinations(POWERS, count):
            factors = _factors(sizes, bytes_at, powers)
            if factors is not None:
                return tuple(
                    (factor, *power) for factor, power in zip(factors, powers, strict=True) if factor
                )
    return None


def bytes_of(terms: Terms, size: Size) -> int:
    """The sum of ``terms`` at a size."""
    return sum(factor * size[0] ** b * size[1] ** s for factor, b, s in terms)


def _factors(
    sizes: Sequence[Size], bytes_at: Sequence[int], powers: Sequence[tuple[int, int]]
) -> tuple[int, ...] | None:
    """Whole factors of the powers that give the bytes at every size."""
    rows = [
        [Fraction(b**i * s**j) for i, j in powers] + [Fraction(y)]
        for (b, s), y in zip(sizes, bytes_at, strict=True)
    ]
    width = len(powers)
    for column in range(width):
        pivot = next((n for n in range(column, len(rows)) if rows[n][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for n, row in enumerate(rows):
            if n != column and row[column]:
                rows[n] = [
                    value - row[column] * other for value, other in zip(row, rows[column], strict=True)
                ]
    if any(row[-1] for row in rows[width:]) or any(rows[n][-1].denominator != 1 for n in range(width)):
        return None
    return tuple(int(rows[n][-1]) for n in range(width))
