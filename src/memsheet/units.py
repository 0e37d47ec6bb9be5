"""Bytes in and out of text. The only place that knows GiB from GB."""

from __future__ import annotations

import re

from memsheet.errors import input_error
from memsheet.patterns import late_pattern

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
_FACTORS = {
    "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_SIZE = late_pattern(r"^\s*(\d{1,18})(?:\.(\d{1,9}))?\s*([a-zA-Z]*)\s*$", re.ASCII)


def parse_bytes(text: str, field: str = "size") -> int:
    """Bytes named by ``text``: ``80GB`` is 80·10⁹, ``80GiB`` is 80·2³⁰; a bare ``80G`` is refused."""
    match = _SIZE.match(text)
    if match is None:
        raise input_error(field, text, "is not a size", "write for example 80GB or 80GiB")
    whole, fraction, unit = match[1], match[2] or "", match[3].lower()
    if unit in {"k", "m", "g", "t"}:
        raise input_error(
            field,
            text,
            "is ambiguous",
            f"write {whole}{unit.upper()}B (decimal) or {whole}{unit.upper()}iB (binary)",
        )
    if unit == "" or unit not in _FACTORS:
        raise input_error(
            field,
            text,
            "has no known unit",
            "units are B, KB, MB, GB, TB (decimal) and KiB, MiB, GiB, TiB (binary)",
        )
    return int(whole + fraction) * _FACTORS[unit] // int(10 ** len(fraction))


_RATE = late_pattern(r"^\s*(\d{1,12})(?:\.(\d{1,9}))?\s*([KMGT]?)(bit|B)/s\s*$", re.ASCII)
_THOUSANDS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_rate(text: str, field: str = "rate") -> int:
    """Bytes a second named by ``text``: ``450 GB/s``, ``400 Gbit/s``, both decimal. ``400 Gb/s`` could be
    either and is refused.
    """
    match = _RATE.match(text)
    if match is None:
        raise input_error(
            field, text, "is not a rate", "write for example 450 GB/s (bytes) or 400 Gbit/s (bits)"
        )
    whole, fraction, thousands, what = match[1], match[2] or "", match[3], match[4]
    return (
        int(whole + fraction)
        * _THOUSANDS[thousands]
        // (int(10 ** len(fraction)) * (1 if what == "B" else 8))
    )


def format_bytes(size: int, *, decimal: bool = False, headroom: bool = False, digits: int = 2) -> str:
    """``size`` for people: a need rounded up, a headroom rounded down, so that rounding never invents a
    fit.
    """
    steps = (
        ((10**9, "GB"), (10**6, "MB"), (10**3, "KB"))
        if decimal
        else ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
    )
    sign, magnitude = ("-", -size) if size < 0 else ("", size)
    down = headroom == (size >= 0)
    for unit, name in steps:
        if magnitude >= unit:
            scaled = magnitude * 10**digits
            shown = scaled // unit if down else -(-scaled // unit)
            return f"{sign}{shown // 10**digits}.{shown % 10**digits:0{digits}d} {name}"
    return f"{sign}{magnitude} B"


def format_count(number: int) -> str:
    """An exact count with thousands separated, ``70,553,706,496``."""
    return f"{number:,}"


def format_giga(size: int, *, decimal: bool = False, headroom: bool = False, digits: int = 2) -> str:
    """``size`` in GiB (GB if ``decimal``) for a column that names the unit, rounded as ``format_bytes``
    rounds.
    """
    unit, magnitude = 10**9 if decimal else GIB, abs(size)
    down = headroom == (size >= 0)
    scaled = magnitude * 10**digits
    shown = scaled // unit if down else -(-scaled // unit)
    return f"{'-' if size < 0 else ''}{shown // 10**digits:,}.{shown % 10**digits:0{digits}d}"
