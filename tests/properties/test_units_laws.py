"""What is printed can be read back, and rounding never invents a fit."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from strategies import law

from memsheet.units import GIB, KIB, MIB, format_bytes, format_giga, parse_bytes

sizes = st.integers(0, 2**60)
UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1}


@law(300)
@given(sizes, st.booleans(), st.booleans(), st.integers(1, 6))
def test_a_printed_size_reads_back_to_the_printed_precision(
    size: int, decimal: bool, headroom: bool, digits: int
) -> None:
    text = format_bytes(size, decimal=decimal, headroom=headroom, digits=digits)
    unit = UNITS[text.split()[1]]
    step = Fraction(unit, 10**digits) if unit > 1 else 0
    assert abs(parse_bytes(text) - size) < step + 1  # a size that is read is a whole number of bytes


@law(300)
@given(sizes, st.booleans())
def test_a_need_is_rounded_up_and_a_headroom_down(size: int, decimal: bool) -> None:
    def shown(headroom: bool) -> Fraction:
        number, unit = format_bytes(size, decimal=decimal, headroom=headroom).split()
        return Fraction(number) * UNITS[unit]

    assert shown(headroom=False) >= size >= shown(headroom=True)


@law(300)
@given(st.integers(-(2**60), 2**60), st.booleans())
def test_columns_round_the_same_way_and_a_lack_of_headroom_grows(size: int, decimal: bool) -> None:
    unit = 10**9 if decimal else GIB

    def shown(headroom: bool) -> Fraction:
        return Fraction(format_giga(size, decimal=decimal, headroom=headroom).replace(",", "")) * unit

    assert shown(headroom=True) <= size <= shown(headroom=False)


@law(200)
@given(st.integers(0, 10**15), st.sampled_from(sorted(UNITS)))
def test_whole_sizes_parse_exactly(number: int, unit: str) -> None:
    assert parse_bytes(f"{number}{unit}") == number * UNITS[unit]
    assert parse_bytes(f" {number} {unit.lower()} ") == number * UNITS[unit]
