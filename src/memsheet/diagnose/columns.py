"""Tables in a text, whatever tool wrote them: rows under a line of names, parted by commas, bars, tabs or
spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from memsheet.frozen import NamedTuple

_NAME = re.compile(r"[A-Za-z_#%][^\d\n]{0,39}(?:\d?[^\d\n]{0,20})?$")
_OF_RUN = re.compile(r"[\w .:()-]{1,80}[ /.][A-Za-z_/.]{0,30}gpu[\w./ -]{1,40}$", re.IGNORECASE)
"""A metric of a card behind the name of its run, whose digits make it no figure."""
_RULE = re.compile(r"[\s|+:=─━┼├┤╪╞╡┿-]{3,}$")
_NUMERIC = re.compile(
    r"[-+]?\d[\d.,e+-]{0,24}(?:\s?(?:[KMGT]i?B?|%|s|ms|it/s))?$|(?:nan|None|-|N/A)$", re.IGNORECASE
)
_UNIT = re.compile(r"(?:^|[(\[ ,_])([GM]i?B)(?![A-Za-z])", re.IGNORECASE)
_BRACKETS = re.compile(r"[\[\](),]")
_MARKS = ("|", "│", "\t", ";", ",")
FEWEST_CELLS, MOST_CELLS, MOST_ROWS, LONGEST = 2, 40, 2_000, 600


class Row(NamedTuple):
    """A row of a table: the number of its line, and its cells by the names above them."""

    line: int
    cells: dict[str, str]


def table_cells(line: str) -> list[str]:
    """A line's cells: by bars, commas or tabs where it has any, else by spaces, wide ones first."""
    bare = line.strip().strip("|│┃").strip()
    for mark in _MARKS:
        if mark in bare:
            return [cell.strip(" `*\"'") for cell in bare.split(mark)]
    wide = re.split(r"\s{2,}", bare)
    return wide if len(wide) > 1 else bare.split()


def _column_names(line: str) -> list[str]:
    """A line's cells where each of them is a name; else nothing."""
    if len(line) > LONGEST:
        return []
    cells = table_cells(line)
    fits = FEWEST_CELLS <= len(cells) <= MOST_CELLS
    distinct = len(set(cells)) == len(cells)
    named = fits and distinct and all(_NAME.match(cell) or _OF_RUN.match(cell) for cell in cells)
    return cells if named else []


def _row_of(line: str, names: Sequence[str]) -> dict[str, str] | None:
    """A line's cells under these names, where they are as many and figures, mostly."""
    if len(line) > LONGEST:
        return None
    cells = table_cells(line)
    if FEWEST_CELLS <= len(cells) < len(names) and line.rstrip()[-1:] in _MARKS:
        cells += [""] * (len(names) - len(cells))  # the last row of a run that died
    if len(cells) != len(names):
        cells = line.split()
    numbers = sum(bool(_NUMERIC.match(cell)) for cell in cells)
    return (
        dict(zip(names, cells, strict=True))
        if len(cells) == len(names) and 2 * numbers >= len(cells)
        else None
    )


def rows_of_tables(lines: Sequence[str]) -> Iterator[Row]:
    """Every row of every table of a text."""
    names: list[str] = []
    for number, line in enumerate(lines):
        if not line.strip() or (names and _RULE.match(line)):
            continue
        row = _row_of(line, names) if names and any(letter.isdigit() for letter in line) else None
        if row is None:
            names = _column_names(line)
        else:
            yield Row(number, row)


def with_named_cells(lines: Sequence[str]) -> tuple[str, ...]:
    """The same lines, each row of a table with the name of a cell before its figure, and its unit behind."""
    named = list(lines)
    for number, cells in rows_of_tables(lines):
        named[number] = ", ".join(_named_cell(name, cell) for name, cell in cells.items())
    return tuple(named)


def _named_cell(name: str, cell: str) -> str:
    unit = _UNIT.search(name) if cell[-1:].isdigit() else None
    bare = f"{name[: unit.start()]} {name[unit.end() :]}" if unit else name
    return f"{' '.join(re.sub(_BRACKETS, ' ', bare).split())}={cell}{f' {unit[1]}' if unit else ''}"
