"""Lengths of requests from a file: one a line, tokens of the prompt and of the answer."""

from __future__ import annotations

import re
from pathlib import Path

from memsheet.errors import input_error
from memsheet.guard import read_bytes

MAX_BYTES, MAX_REQUESTS, MAX_TOKENS = 8 * 2**20, 200_000, 2**26
_PAIR = re.compile(
    r"\s*+(\d{1,9})(?:\s*+[,;]\s*+|\s++)(\d{1,9})\s*+"
)  # nothing is gone back to: lines may be long


def read_lengths(path: Path) -> tuple[tuple[int, int], ...]:
    """(prompt, answer) of each line: two whole numbers with a comma, a semicolon or blanks between them.
    Empty lines, lines that begin with # and words on the first line are passed over.

    Raises InputError for anything else, for a file that is too large, and for one without requests.
    """
    text = read_bytes(path, MAX_BYTES).decode("utf-8", errors="replace")
    found: list[tuple[int, int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _PAIR.fullmatch(line)
        if match is None and number == 1 and not any(character.isdigit() for character in line):
            continue
        if match is None:
            raise input_error(
                "lengths",
                line[:60],
                f"is line {number} of {path.name} and no pair of whole numbers",
                "write for example 1200,300",
            )
        pair = int(match[1]), int(match[2])
        if not 0 < sum(pair) <= MAX_TOKENS:
            raise input_error(
                "lengths", line[:60], f"is line {number} of {path.name} and no length of a sequence"
            )
        found.append(pair)
        if len(found) > MAX_REQUESTS:
            raise input_error("lengths", str(path), f"holds more than {MAX_REQUESTS:,} requests")
    if not found:
        raise input_error(
            "lengths",
            str(path),
            "holds no request",
            "write a prompt's and an answer's tokens a line, for example 1200,300",
        )
    return tuple(found)
