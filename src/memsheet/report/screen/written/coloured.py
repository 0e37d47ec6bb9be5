"""Parts of a screen with colours, and whatever ``plain`` leaves: by rich."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from memsheet.report.screen.written.parts import Group, Part, Table, Text
from memsheet.report.shared.look import Look

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text as RichText


def rich_lines(parts: Iterable[Part], look: Look) -> list[str]:
    """The lines of parts with an empty one between them."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(
        file=file,
        width=look.width,
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=look.colour,
        legacy_windows=False,
        color_system="standard" if look.colour else None,
        no_color=not look.colour,
    )
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(_rich_part(part))
    return file.getvalue().splitlines()


def _rich_part(part: Part) -> RenderableType:
    if isinstance(part, Text):
        return _rich_text(part)
    if isinstance(part, Table):
        return _rich_table(part)
    if isinstance(part, Group):
        from rich.console import Group as RichGroup

        return RichGroup(*map(_rich_part, part.parts))
    return part


def _rich_text(text: Text) -> RichText:
    from rich.text import Text as RichText

    made = RichText(style=text.style, no_wrap=text.no_wrap or None)
    for piece, style in text.pieces:
        made.append(piece, style or None)
    return made


def _rich_table(table: Table) -> RenderableType:
    from rich.table import Table as RichTable

    made = RichTable(
        box=None,
        pad_edge=False,
        padding=(0, table.gap, 0, 0),
        show_header=table.show_header,
        header_style=table.header_style,
        title=None if table.title is None else _rich_text(table.title),
        title_justify=_rich_word(table.title_justify),
        title_style=table.title_style or None,
    )
    for column in table.columns:
        made.add_column(
            column.header,
            justify=_rich_word(column.justify),
            overflow=_rich_word(column.overflow),
            no_wrap=column.no_wrap,
            width=column.width,
            vertical=_rich_word(column.vertical),
            min_width=column.min_width or None,
        )
    for row, style in zip(table.rows, table.styles, strict=True):
        made.add_row(*map(_rich_part, row), style=style or None)
    return made


def _rich_word(word: str) -> Any:
    """A word that rich has a type of its own for."""
    return word
