"""A step on a terminal: what is held over the steady step as a small graph, its instants named under it and
its peak marked.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from memsheet.report.shared.curve import Column, instant_spans, steady_step_window, timeline_columns
from memsheet.report.shared.look import Look
from memsheet.report.shared.peaks import elide_middle, made_by
from memsheet.report.shared.words import INSTANTS
from memsheet.timeline import Peak, Timeline, highest_peak

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Text

EIGHTHS = " ▁▂▃▄▅▆▇█"
ASCII = str.maketrans(
    {
        **dict(zip(EIGHTHS[1:], "..::==##", strict=True)),
        "▼": "v",
        "└": "`",
        "┘": "'",
        "├": "|",
        "│": "|",
        "·": "-",
        "…": ".",
    }
)
HEIGHT = 4
ROWS = 3
"""Lines that the names of the instants may take."""


def render_sparkline(timeline: Timeline, look: Look, *, height: int = HEIGHT) -> Text:
    """The graph as lines of at most ``look.width``: the peak in words, ``height`` lines of blocks from
    nothing up to it, the instants.

    Every column shows its largest event, so the peak is always there. Raises InputError for a timeline
    without a steady step.
    """
    from memsheet.report.screen.written.parts import Text

    steady_step_window(timeline)  # there is a steady step
    top = highest_peak(timeline)
    scale = (look.need(top.bytes), f"0 {look.fitted(top.bytes).unit}")
    left = max(map(len, scale)) + 1
    shown = timeline_columns(timeline, max(look.width - left, 1))
    at = next(number for number, column in enumerate(shown) if top.at < column.end)
    text = Text(no_wrap=True)
    text.append(f"{_place_peak_label(_peak_label_phrases(top, look), at, left, look.width)}\n", "bold")
    for level in reversed(range(height)):
        label = scale[0] if level == height - 1 else scale[1] if level == 0 else ""
        line = "".join(_block_glyph(column, top.bytes, level, height) for column in shown)
        text.append(f"{label:>{left - 1}} ", "dim").append(line[:at], "cyan").append(
            line[at], "bold red"
        ).append(f"{line[at + 1 :].rstrip()}\n", "cyan")
    text.append("\n".join(f"{'':{left}}{row}" for row in _instant_name_lines(timeline, shown)), "dim")
    return _ascii_text(text) if look.ascii else text


def _peak_label_phrases(top: Peak, look: Look) -> list[str]:
    words = f"{look.need(top.bytes, 2)} in {INSTANTS[top.instant]}"
    return [f"{words} ·", *made_by(top.storage, decimal=look.decimal)] if top.storage else [words]


def _place_peak_label(phrases: list[str], at: int, left: int, width: int) -> str:
    """What is said beside a mark over column ``at``, on the side that has room for it; else in lines of its
    own above it.
    """
    mark, words = f"{'':{left + at}}▼", " ".join(phrases)
    if len(words) <= width - len(mark) - 1:
        return f"{mark} {words}"
    if len(words) < left + at:
        return f"{words:>{left + at - 1}} ▼"
    text = " ".join(elide_middle(phrase, width) for phrase in phrases)
    return f"{textwrap.fill(text, width, break_on_hyphens=False)}\n{mark}"


def _block_glyph(column: Column, whole: int, level: int, height: int) -> str:
    """The block of one column in one line; what is held at all shows at least in the lowest."""
    eighths = -(-column.bytes * height * 8 // whole) if whole else 0
    return EIGHTHS[min(max(eighths - 8 * level, 0), 8)]


def _instant_name_lines(timeline: Timeline, shown: tuple[Column, ...]) -> list[str]:
    """The instants' names, each from the column where its span begins; one that comes again is named again
    where there is room.

    From right to left each takes the highest line where it meets no other name and no other corner.
    """
    lines = [[" "] * len(shown) for _ in range(ROWS)]
    begun: dict[object, int] = {}
    found = [(span.instant, _event_column_index(shown, span.first)) for span in instant_spans(timeline)]
    for number, (instant, _) in enumerate(found):
        begun.setdefault(instant, number)
    firsts = [found[number] for number in begun.values()]
    again = [pair for number, pair in enumerate(found) if number not in begun.values()]
    for rows, pairs in ((ROWS, firsts), (1, again)):
        for instant, at in reversed(pairs):
            _place_stem_label(lines[:rows], INSTANTS[instant].removeprefix("the "), at)
    return [row for line in lines if (row := "".join(line).rstrip())]


def _place_stem_label(lines: list[list[str]], words: str, at: int) -> None:
    """``└words`` from column ``at`` (``words┘`` up to it at the right edge) in the first line with room, with
    a stem above it.
    """
    width = len(lines[0])
    right = at + 1 + len(words) <= width
    start, text = (at, f"└{words}") if right else (at - len(words), f"{words}┘")
    for number, line in enumerate(lines):
        space = line[max(start - 1, 0) : start + len(text) + 1]
        if start >= 0 and all(cell == " " for cell in space):
            line[start : start + len(text)] = text
            for above in lines[:number]:
                above[at] = "├" if above[at] == "└" else "│"
            return


def _event_column_index(shown: tuple[Column, ...], event: int) -> int:
    return next((number for number, column in enumerate(shown) if event < column.end), len(shown) - 1)


def _ascii_text(text: Text) -> Text:
    """The same text, styles and all, in ASCII: every character stands for one."""
    return text.translated(ASCII)
