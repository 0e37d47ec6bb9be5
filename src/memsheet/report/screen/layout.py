"""How a screen is put together: parts under one another, phrases that wrap between words, one console for all
of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill

from memsheet.report.screen.bars import GLYPHS
from memsheet.report.screen.written.parts import Part, Table, Text
from memsheet.report.screen.written.plain import plain_lines
from memsheet.report.shared.look import Look

LONGEST_NOTE = 1000
ASCII = str.maketrans(
    {
        **dict(zip(GLYPHS, "#%+=xo", strict=True)),
        "·": "-",
        "│": "|",
        "└": "`",
        "┘": "'",
        "×": "x",
        "→": "->",
        "…": "...",
        "�": "?",
    }
)


def render_parts(parts: Iterable[Part], look: Look) -> str:
    """The parts as text, an empty line between them, that ends in a newline."""
    held = list(parts)
    lines = None if look.colour else plain_lines(held, look.width)
    if lines is None:
        from memsheet.report.screen.written.coloured import rich_lines

        lines = rich_lines(held, look)
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return text.translate(ASCII) if look.ascii else text


def join_phrases(parts: Iterable[str], width: int, *, between: str = " · ") -> str:
    """Phrases joined into lines of at most ``width`` that break only between phrases (a longer phrase wraps
    by itself).
    """
    lines: list[str] = []
    phrases = [part for part in parts if part]
    end = between.rstrip()
    for number, part in enumerate(phrases, start=1):
        mark = len(end) if number < len(phrases) else 0
        if lines and len(lines[-1]) + len(between) + len(part) + mark <= width:
            lines[-1] += between + part
        else:
            lines.append(part)
    full = (
        width - len(end) < len(line) <= width for line in lines
    )  # with a mark its line would break before the mark
    return "\n".join(
        line if number == len(lines) or fills else f"{line}{end}"
        for number, (line, fills) in enumerate(zip(lines, full, strict=True), start=1)
    )


def wrap_command_line(line: str, width: int, *, indent: int) -> str:
    """A line to type between its words, what does not fit in ``width`` farther in beneath it."""
    first, rest = " " * indent, " " * (indent + 6)
    return fill(
        line,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def labelled_row(word: str, style: str, phrases: Iterable[str], look: Look, *, between: str = " · ") -> Part:
    """A word, and phrases that wrap beside it."""
    grid = Table(gap=2, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(word, style), Text(join_phrases(phrases, look.width - len(word) - 2, between=between)))
    return grid


def command_row(word: str, command: str, look: Look) -> Part:
    """A command beside a word, wrapped between its flags so that it can be copied as it stands."""
    flags = command.replace(" --", "\n--").split("\n")
    if (
        max(map(len, flags)) > look.width - len(word) - 4
    ):  # a list of layers that no line holds: unindented, so that a shell joins its parts
        whole = join_phrases(flags, look.width - 2, between=" ").split("\n")
        return Text(f"{word}\n", "bold").append(
            " \\\n".join(_in_parts(line.rstrip(), look.width - 2) for line in whole), "not bold"
        )
    lines = join_phrases(flags, look.width - len(word) - 4, between=" ").split("\n")
    return labelled_row(word, "bold", (" \\\n".join(line.rstrip() for line in lines),), look)


def _in_parts(line: str, width: int) -> str:
    """A line that breaks after a comma, where a backslash joins it again."""
    place = line.rfind(",", 0, width - 1) + 1
    return line if len(line) <= width or not place else f"{line[:place]}\\\n{_in_parts(line[place:], width)}"


def one_line(text: str) -> str:
    """``text`` without control characters; a sentence may be longer than the names that ``printable``
    shortens.
    """
    return "".join(c if c.isprintable() else "�" for c in text[:LONGEST_NOTE])
