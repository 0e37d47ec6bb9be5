"""Parts of a screen without colours, line for line as rich lays them out: words wrap, columns give way from
the widest, letters of one cell each. What has other letters, or no room, is left to ``coloured``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from memsheet.patterns import late_pattern
from memsheet.report.screen.written.parts import Column, Group, Part, Table, Text

_WORD = late_pattern(r"\s*\S+\s*")
_OTHER = late_pattern(r"[^ -~\n¡-¬®-\u02af\u0370-\u0482\u048a-\u0590‐-―‘-‧‰-⁞ⁿ₀-₎€←-⇿−≈≤≥√∞─-▟■□▪▫▲▼◆●○]")
"""Letters that are not known to take one cell each."""


class NotPlainError(Exception):
    """A part that is not laid out here."""


def plain_lines(parts: Iterable[Part], width: int) -> list[str] | None:
    """The lines of parts with an empty one between them; None where another has to lay them out."""
    lines = list[str]()
    try:
        for number, part in enumerate(parts):
            if number:
                lines.append("")
            # by themselves, texts wrap whatever they say of it
            whole = (
                _text_lines(_words_of(part), width)
                if isinstance(part, str | Text)
                else _part_lines(part, width)
            )
            lines.extend(line[:width] for line in whole)
    except NotPlainError:
        return None
    return lines


def _words_of(part: str | Text) -> str:
    text = part if isinstance(part, str) else part.plain
    if _OTHER.search(text):
        raise NotPlainError
    return text


def _part_lines(part: Part, width: int) -> Iterator[str]:
    if isinstance(part, Table):
        yield from _table_lines(part, width)
    elif isinstance(part, Group):
        for each in part.parts:
            yield from _part_lines(each, width)
    else:
        yield from _text_lines(_words_of(part), width, wraps=isinstance(part, str) or not part.no_wrap)


def _text_lines(
    text: str, width: int, *, wraps: bool = True, justify: str = "", overflow: str = "fold"
) -> list[str]:
    lines = list[str]()
    for line in text.split("\n"):
        if wraps:
            ends = [0, *_line_breaks(line, width, fold=overflow == "fold"), len(line)]
            parts = [_without_end(line[start:end], width) for start, end in pairwise(ends)]
        else:
            parts = [line]
        lines += (_justified_line(part, width, justify, overflow) for part in parts)
    return lines


def _without_end(line: str, width: int) -> str:
    """Without the blanks at its end that are beyond the width."""
    blanks = len(line) - len(line.rstrip())
    return line[: len(line) - max(min(blanks, len(line) - width), 0)]


def _justified_line(line: str, width: int, justify: str, overflow: str) -> str:
    """A line cut to its width, and moved to where it belongs."""
    if justify in ("right", "center"):
        line = line.rstrip()
    if len(line) > width:
        line = f"{line[: width - 1]}…" if overflow == "ellipsis" else line[:width]
    moved = {"right": width - len(line), "center": (width - len(line)) // 2}.get(justify, 0)
    return " " * moved + line


def _line_breaks(line: str, width: int, *, fold: bool) -> Iterator[int]:
    """Where a line is broken so that its words fit."""
    used = 0
    for found in _WORD.finditer(line):
        start, word = found.start(), found[0]
        size = len(word.rstrip())
        if width - used >= size:
            used += len(word)
        elif size > width and fold:
            pieces = range(0, len(word), width)
            yield from (start + at for at in pieces if start + at)
            used = len(word) - pieces[-1]
        elif size > width or (used and start):
            if start:
                yield start
            used = len(word)


def _table_lines(table: Table, width: int) -> Iterator[str]:
    heads: list[tuple[Part, ...]] = (
        [tuple(column.header for column in table.columns)] if table.show_header else []
    )
    rows = [[_words_of(_cell_text(cell)) for cell in row] for row in (*heads, *table.rows)]
    wraps = [
        [isinstance(cell, str) or not cell.no_wrap for cell in map(_cell_text, row)]
        for row in (*heads, *table.rows)
    ]
    columns = table.columns
    if not columns:
        yield ""
        return
    gaps = [table.gap] * (len(columns) - 1) + [0]
    widths = _column_widths(columns, [[row[at] for row in rows] for at in range(len(columns))], gaps, width)
    if any(size - gap < 1 for size, gap in zip(widths, gaps, strict=True)):
        raise NotPlainError
    if table.title is not None and table.title.plain:
        yield from _text_lines(_words_of(table.title), sum(widths), justify=table.title_justify)
    for number, (row, free) in enumerate(zip(rows, wraps, strict=True)):
        cells = [
            _text_lines(text, size - gap, wraps=each and not column.no_wrap, justify=column.justify, overflow=column.overflow)
            for text, each, size, gap, column in zip(row, free, widths, gaps, columns, strict=True)
        ]  # fmt: skip
        high = max(map(len, cells))
        for at, column in enumerate(columns):
            empty = [""] * (high - len(cells[at]))
            below = column.vertical == "top" and not (number == 0 and table.show_header)
            cells[at] = [*cells[at], *empty] if below else [*empty, *cells[at]]
        for line in zip(*cells, strict=True):
            yield "".join(text.ljust(size) for text, size in zip(line, widths, strict=True))


def _cell_text(cell: Part) -> str | Text:
    if not isinstance(cell, str | Text):
        raise NotPlainError
    return cell


def _column_widths(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], gaps: Sequence[int], width: int
) -> list[int]:
    """As wide as their texts; where that is too much, the widest that wrap give way, then all alike."""

    def measured(at: int, most: int) -> int:
        if columns[at].width is not None:
            return min((columns[at].width or 0) + gaps[at], most)
        lines = (line for text in cells[at] for line in text.splitlines())
        longest = max(map(len, lines), default=0)
        if most - gaps[at] < 1:
            raise NotPlainError
        if not cells[at]:
            return most
        least = columns[at].min_width
        return max(min(longest + gaps[at], most), least + gaps[at] if least else 0)

    places = range(len(columns))
    widths = [measured(at, width) or 1 for at in places]
    if sum(widths) <= width:
        return widths
    widths = _collapsed_widths(
        widths, [column.width is None and not column.no_wrap for column in columns], width
    )
    if sum(widths) > width:
        widths = _reduced_widths(sum(widths) - width, [1] * len(widths), widths, widths)
    return [measured(at, widths[at]) for at in places]


def _collapsed_widths(widths: list[int], wraps: Sequence[bool], most: int) -> list[int]:
    over = sum(widths) - most
    while any(wraps) and over > 0:
        widest = max(size for size, free in zip(widths, wraps, strict=True) if free)
        second = max(size if free and size != widest else 0 for size, free in zip(widths, wraps, strict=True))
        shares = [int(size == widest and free) for size, free in zip(widths, wraps, strict=True)]
        if widest == second:
            break
        widths = _reduced_widths(over, shares, [min(over, widest - second)] * len(widths), widths)
        over = sum(widths) - most
    return widths


def _reduced_widths(total: int, shares: list[int], most: Sequence[int], values: Sequence[int]) -> list[int]:
    """``values`` less a total that is divided by ``shares``, none of them by more than its ``most``."""
    shares = [share if limit else 0 for share, limit in zip(shares, most, strict=True)]
    whole, made = sum(shares), list[int]()
    if not whole:
        return list(values)
    for share, limit, value in zip(shares, most, values, strict=True):
        less = min(limit, round(share * total / whole)) if share and whole > 0 else 0
        made.append(value - less)
        if share and whole > 0:
            total, whole = total - less, whole - share
    return made
