"""Sizes in and out of text."""

from __future__ import annotations

import pytest

from memsheet.errors import InputError
from memsheet.units import GIB, KIB, MIB, format_bytes, format_count, format_giga, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 10**9), ("80GiB", 80 * 2**30), ("80 gib", 80 * 2**30), ("1.5 TB", 1_500_000_000_000), ("0.5KiB", 512),
        ("512MB", 512 * 10**6), ("512MiB", 512 * 2**20), ("7B", 7), ("0 B", 0), ("0.000000001GB", 1),
    ],
)  # fmt: skip
def test_a_size_is_decimal_or_binary_as_its_unit_says(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["80G", "80g", "1T", "12 M"])
def test_a_bare_letter_is_refused_with_both_readings(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_bytes(text, "host_memory")
    problem = caught.value.problems[0]
    assert problem.field == "host_memory"
    assert problem.reason == "is ambiguous"
    assert "iB (binary)" in problem.hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GB",
        "-1GB",
        "80",
        "80 bananas",
        "1e3GB",
        "80GB!",
        "٣GB",
        "9" * 40 + "GB",
        "1.2.3GB",
        "nan GB",
        "inf",
    ],
)
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_bytes(text)


def test_a_need_is_rounded_up_and_a_headroom_down() -> None:
    almost = 80 * GIB - 1
    assert format_bytes(almost) == "80.00 GiB"
    assert format_bytes(almost, headroom=True) == "79.99 GiB"
    assert format_bytes(80 * GIB + 1) == "80.01 GiB"
    assert format_bytes(-(GIB + 1), headroom=True) == "-1.01 GiB"  # what is missing is a need
    assert format_bytes(-(GIB + 1)) == "-1.00 GiB"


def test_the_unit_fits_the_size() -> None:
    assert [format_bytes(n) for n in (0, 1023, KIB, MIB, GIB)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.00 MiB",
        "1.00 GiB",
    ]
    assert [format_bytes(n, decimal=True) for n in (999, 10**3, 10**6, 10**9)] == [
        "999 B",
        "1.00 KB",
        "1.00 MB",
        "1.00 GB",
    ]


def test_a_column_names_its_unit_once() -> None:
    assert format_giga(1234 * GIB) == "1,234.00"
    assert format_giga(-1, headroom=True) == "-0.01"
    assert format_giga(10**9, decimal=True, digits=1) == "1.0"
    assert format_count(70_553_706_496) == "70,553,706,496"
