"""A printed figure as the bytes it may stand for: "14.00 GiB" is anything from 13.995 to 14.005 GiB.

A comparison of two such figures is true, false, or None where their rounding leaves it open.
"""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.frozen import dataclass
from memsheet.units import GIB, KIB, MIB, TIB, format_bytes

BINARY = {
    "bytes": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB, "PiB": 2**50, "EiB": 2**60,
    "KB": KIB, "kB": KIB, "MB": MIB, "GB": GIB, "TB": TIB, "K": KIB, "M": MIB, "G": GIB,
}  # fmt: skip
"""What allocators and servers mean by their units: powers of two, whatever the letters say."""
_ANY_CASE = {unit.lower(): size for unit, size in BINARY.items()}
MOST = 2**60
"""No figure of memory is above; 17179869184.00 GiB is 2^64, which stands for none."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Bytes from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.low - other.high, self.high - other.low)

    def times(self, numerator: int, denominator: int = 1) -> Interval:
        """A share of it, rounded outwards."""
        return Interval(self.low * numerator // denominator, -(-self.high * numerator // denominator))

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    @property
    def positive(self) -> Interval:
        return Interval(max(0, self.low), max(0, self.high))


NOTHING = Interval(0, 0)


def sum_intervals(sizes: Iterable[Interval]) -> Interval:
    total = NOTHING
    for size in sizes:
        total += size
    return total


def printed_bytes(number: str, unit: str) -> Interval | None:
    """The bytes that a rounded figure may stand for, its unit in letters of either case; None for what is no
    size of memory.
    """
    whole, _, fraction = number.strip().partition(".")
    factor, digits = _ANY_CASE[unit.lower()], whole + fraction
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20:
        return None
    doubled, parts = 2 * int(digits), 2 * 10 ** len(fraction)
    if doubled * factor // parts >= MOST:
        return None
    if factor == 1:
        return Interval(int(whole or "0"), int(whole or "0"))
    return Interval(-(-max(0, doubled - 1) * factor // parts), (doubled + 1) * factor // parts)


def at_least(left: Interval, right: Interval) -> bool | None:
    """Whether ``left`` ≥ ``right``."""
    return True if left.low >= right.high else False if left.high < right.low else None


def more_than(left: Interval, right: Interval) -> bool | None:
    """Whether ``left`` > ``right``."""
    return True if left.low > right.high else False if left.high <= right.low else None


def all_hold(*tests: bool | None) -> bool | None:
    """Whether every one is true: None where one is open and none is false."""
    return False if False in tests else None if None in tests else True


def size_words(size: Interval) -> str:
    """A size for a sentence: as messages print it, two digits behind the point; of what is known within wide
    bounds alone, these.
    """
    if (size.high - size.low) * 4 <= size.high:
        return _rounded_words(size.middle)
    return f"{f'{at_least_words(size)} to' if size.low > 0 else 'up to'} {at_most_words(size)}"


def at_least_words(size: Interval) -> str:
    """The low end, rounded down."""
    return format_bytes(max(0, size.low), headroom=True)


def at_most_words(size: Interval) -> str:
    """The high end, rounded up."""
    return format_bytes(max(0, size.high))


def _rounded_words(size: int) -> str:
    sign, magnitude = ("-", -size) if size < 0 else ("", size)
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if magnitude >= unit:
            return f"{sign}{magnitude / unit:.2f} {name}"
    return f"{sign}{magnitude} bytes"
