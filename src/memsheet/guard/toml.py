"""TOML from strangers, under the limits of ``guard``: plain values with finite numbers, never deep, never
long.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from memsheet.errors import input_error, printable_line
from memsheet.guard import MAX_DEPTH, MAX_INT, read_bytes
from memsheet.guard.spending import spend_values

MAX_TOML_BYTES = 16 * 2**10  # what is read as TOML has a few hundred bytes
MAX_DOTS = 256  # of a line: the parser takes n^2 steps for a key of n parts


def parse_toml(data: bytes, field: str) -> dict[str, Any]:
    """The table that TOML text describes. Raises InputError, and nothing else, on anything that is not such
    TOML, or has dates in it.
    """
    import tomllib

    if len(data) > MAX_TOML_BYTES:
        raise input_error(field, None, f"is longer than the {MAX_TOML_BYTES} bytes that are read")
    if any(line.count(b".") > MAX_DOTS for line in data.splitlines()):
        raise input_error(field, None, f"has a line with more than {MAX_DOTS} dots")
    try:
        found = tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise input_error(field, None, "is not UTF-8 text") from None
    except RecursionError:  # the parser is written in Python, so this is an error like any other
        raise input_error(field, None, f"is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:  # a mistake in the text, or an int of thousands of digits
        raise input_error(field, None, f"is not TOML: {printable_line(str(error))}") from None
    _check_toml_values(found, field)
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    return parse_toml(read_bytes(path, MAX_TOML_BYTES), str(path))


def _check_toml_values(found: Any, field: str) -> None:
    """Refuse depth, and values that arithmetic would stumble over; without recursion, which depth could
    exhaust.
    """
    waiting, count = [(found, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if depth > MAX_DEPTH:
            raise input_error(field, None, f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            waiting += [(each, depth + 1) for each in value.values()]
        elif isinstance(value, list):
            waiting += [(each, depth + 1) for each in value]
        else:
            _check_plain(value, field)
    spend_values(field, count)


def _check_plain(value: Any, field: str) -> None:
    if not isinstance(value, str | int | float):
        raise input_error(field, str(value), "is a date or a time, which has no place here")
    if isinstance(value, float) and not math.isfinite(value):
        raise input_error(field, str(value), "is not a finite number")
    if isinstance(value, int) and abs(value) > MAX_INT:
        raise input_error(field, value, "is outside ±2^63")
