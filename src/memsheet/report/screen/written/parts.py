"""What a screen is made of, as data: texts with styles, tables and groups of them. ``plain`` writes them
without colours and ``coloured`` with, by rich, which takes longer to load than most answers to find.
"""

from __future__ import annotations

from typing import TypeAlias

from memsheet.frozen import NamedTuple

Style = str
"""As rich spells it: ``bold``, ``dim``, ``bold red``."""


class Text:
    """A text and the styles of its stretches. ``no_wrap``: inside a group or a table its lines are cut at the
    width, not broken.
    """

    __slots__ = ("no_wrap", "pieces", "style")

    def __init__(self, text: str = "", style: Style = "", *, no_wrap: bool = False) -> None:
        self.pieces: list[tuple[str, Style]] = [(text, "")] if text else []
        self.style = style
        self.no_wrap = no_wrap

    @classmethod
    def assemble(cls, *pieces: str | tuple[str, Style]) -> Text:
        made = cls()
        for piece in pieces:
            made.append(*((piece,) if isinstance(piece, str) else piece))
        return made

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.pieces)

    def append(self, text: str | Text, style: Style = "") -> Text:
        """The same text with more at its end; another's style goes with it."""
        if isinstance(text, Text):
            self.pieces += [(held, f"{text.style} {own}".strip()) for held, own in text.pieces]
        elif text:
            self.pieces.append((text, style))
        return self

    def cut(self, start: int, end: int | None = None) -> Text:
        """The letters from ``start`` to before ``end``."""
        made, at = Text(style=self.style, no_wrap=self.no_wrap), 0
        for text, style in self.pieces:
            held = text[max(start - at, 0) : None if end is None else max(end - at, 0)]
            at += len(text)
            if held:
                made.pieces.append((held, style))
        return made

    def translated(self, table: dict[int, str]) -> Text:
        """With letters in place of others, one for one."""
        made = Text(style=self.style, no_wrap=self.no_wrap)
        made.pieces = [(text.translate(table), style) for text, style in self.pieces]
        return made


class Column(NamedTuple):
    """``justify``: ``left`` or ``right``; ``overflow``: what becomes of a word that is too long, ``fold`` or
    ``ellipsis``; ``vertical``: ``top`` or ``bottom``.
    """

    header: str = ""
    justify: str = "left"
    overflow: str = "ellipsis"
    no_wrap: bool = False
    width: int | None = None
    vertical: str = "top"
    min_width: int = 0


class Table:
    """Columns without lines between them, each but the last with ``gap`` empty cells at its right."""

    __slots__ = (
        "columns",
        "gap",
        "header_style",
        "rows",
        "show_header",
        "styles",
        "title",
        "title_justify",
        "title_style",
    )

    def __init__(
        self,
        *,
        gap: int = 2,
        show_header: bool = True,
        header_style: Style = "bold",
        title: Text | None = None,
        title_justify: str = "center",
        title_style: Style = "",
    ) -> None:
        self.gap, self.show_header, self.header_style = gap, show_header, header_style
        self.title, self.title_justify, self.title_style = title, title_justify, title_style
        self.columns: list[Column] = []
        self.rows: list[tuple[Part, ...]] = []
        self.styles: list[Style] = []

    def add_column(
        self,
        header: str = "",
        *,
        justify: str = "left",
        overflow: str = "ellipsis",
        no_wrap: bool = False,
        width: int | None = None,
        vertical: str = "top",
    ) -> None:
        self.columns.append(Column(header, justify, overflow, no_wrap, width, vertical))

    def add_row(self, *cells: Part, style: Style = "") -> None:
        """A row; cells beyond the columns that there are make columns of their own."""
        for _ in cells[len(self.columns) :]:
            self.columns.append(Column())
            self.rows = [(*row, "") for row in self.rows]
        self.styles.append(style)
        self.rows.append((*cells, *("" for _ in self.columns[len(cells) :])))


class Group:
    """Parts right under one another."""

    __slots__ = ("parts",)

    def __init__(self, *parts: Part) -> None:
        self.parts = parts


Part: TypeAlias = str | Text | Table | Group
