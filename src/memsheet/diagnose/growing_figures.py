"""Figures of a text that grow evenly, whatever words stand around them: whether they are memory is told by
arithmetic, since the last of them, or one step further, is what was held when the job died.

A series is the same place of lines that differ by their numbers alone, or of the parts of a list
("6.1, 8.6, 11.1 GiB", "i=0 1.9 GiB, i=50 7.1 GiB, …").
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.figures import Figures
from memsheet.diagnose.interval import Interval
from memsheet.frozen import NamedTuple
from memsheet.patterns import late_pattern
from memsheet.units import GIB, KIB, MIB

_NUMBER = late_pattern(r"(?<![A-Za-z\d.,_])\d{1,15}(?:[.,]\d{1,6})?(?![\d]|[.,]\d)")
_UNIT = late_pattern(r"^\s?[\[(]?\s?([KMGT]i?[Bb]|[GM]o|[ГМ][бБ]|gigs?|[GM])(?![A-Za-zА-я/\d])")
_PARTS = late_pattern(
    r"\.\s|[,;、，](?=\s|\D)|\s(?:->|→|=>|-->|then|and|und|y|e|et|и|danach|luego|puis|poi)\s|→|、"
)
_OF_ELSE = late_pattern(
    r"(?i:reserv|cach|\bcpu\b|host|\bram\b|\brss\b|swap|disk|free|avail|left|frei\b|libre|livre|liber[oi]|свобод|空き|剩余|peak|\bmax|batch.?size|\bbs\b|rank|\bgpu ?\d|cuda:\d|layer|shard|load"
    r"|block|expert|token|param|/s\b|throughput|download|resol|seq|\blen|ctx|context|width|height|\bpx\b|pixel|nodes|beams|pico\b|picco|spitze|最大|峰|ピーク|最高|长度|長さ)"
)  # fmt: skip
"""What figures are called that are no tensors of the card, or grow by a setting."""
_SETTING = late_pattern(
    r"(?i:batch.?size|\bbs\b|micro|\bseq|len(?:gth)?\b|ctx|context|token|resol|width|height|\bsize|nodes|frames|beams|heads|layer|block|shard|load|expert|module|stage|workers|ranks?\b|gpus?\b|hidden|dim\b|\bn_?layer|images?(?=[=: ]*\0)"
    r"|\0(?:k\b|px|x\d|b\b| ?(?:tokens|frames|layers|pixels|images|samples|gpus|workers|px))|长度|批|分辨率|長さ|枚)"
)  # fmt: skip
"""What stands before or behind (a number being \\0) a size that people set."""
FEWEST, EVENLY, MOST_LINES, LONGEST = 4, 2.0, 1_500, 300
"""Figures that make a series; how much larger one step of it may be than another; lines before a message, and
letters of one, that are looked at.
"""
MOST_LISTS = 60
"""Lines at each end of a text in which people list figures; those between are a program's."""
UNITS = {"": (1, KIB, MIB, GIB), "K": (KIB,), "M": (MIB,), "G": (GIB,), "T": (1024 * GIB,)}
_LETTERS = {"К": "K", "М": "M", "Г": "G"}
NO_COUNT = 2**27
"""From here on a whole number is one of bytes, however evenly it grows."""


class Series(NamedTuple):
    """Figures that grow evenly, and the first letter of their unit where one is said."""

    figures: tuple[float, ...]
    unit: str


class _Part(NamedTuple):
    shape: str
    figures: tuple[float, ...]
    units: tuple[str, ...]


def growing_series(log: Log, line: int) -> tuple[Series, ...]:
    """Every series of a log before a message, else behind it."""
    lines = log.named_lines
    before, behind = lines[max(0, line - MOST_LINES) : line], lines[line + 1 : line + 1 + MOST_LINES]
    return tuple(dict.fromkeys((*_series_of_lines(before), *_series_of_lines(behind))))


def _series_of_lines(lines: Sequence[str]) -> Iterator[Series]:
    short = [each for each in lines if len(each) <= LONGEST and any(letter.isdigit() for letter in each)]
    yield from _series_of_parts(_part_of(each) for each in short)
    listed = short if len(short) <= 2 * MOST_LISTS else (*short[:MOST_LISTS], *short[-MOST_LISTS:])
    for each in listed:
        parts = next((found.group().split() for found in _SPACED.finditer(each)), None)
        parts = parts or [part for part in _PARTS.split(each) if part]
        if len(parts) >= FEWEST and not _OF_ELSE.search(_lead_of(each)):
            yield from _series_of_parts(map(_part_of, _without_leads(parts)))


_SPACED = late_pattern(r"(?<![\w.,])(?:\d{1,6}(?:\.\d{1,3})? {1,3}){4,40}\d{1,6}(?:\.\d{1,3})?(?![\w.,]\d)")
"""Figures in a row with nothing but spaces between."""
_FIRST_WORD = late_pattern(r"\s*([^\d\s]+)")
"""The first word of a part, up to its number."""


def _lead_of(line: str) -> str:
    """What a line says before its first figure, behind the sentence before that."""
    first = next((each.start() for each in _NUMBER.finditer(line)), 0)
    return line[:first].rpartition(". ")[2].rpartition(", ")[2]


def _without_leads(parts: Sequence[str]) -> Iterator[str]:
    """Parts of a list without the words that lead to them, by the word with which most of them begin."""
    firsts = Counter(found[1] for each in parts if (found := _FIRST_WORD.match(each)))
    word = next((word for word, count in firsts.most_common(1) if count > 1), "")
    for place, part in enumerate(parts):
        numbers = [] if word or place else [each.start() for each in _NUMBER.finditer(part)]
        yield part[max(0, part.rfind(word) if word else max(numbers, default=0)) :]


def _part_of(text: str) -> _Part:
    """A text without its numbers and their units, and these."""
    shape, figures, units, begun = [], [], [], 0
    for found in _NUMBER.finditer(text):
        unit = _UNIT.match(text[found.end() : found.end() + 8])
        shape.append(text[begun : found.start()])
        begun = found.end() + (unit.end() if unit else 0)
        figures.append(float(found.group().replace(",", ".")))
        letter = unit[1][0].upper() if unit else ""
        units.append(_LETTERS.get(letter, letter))
    tail = text[begun:]
    return _Part(
        "\0".join((*shape, "" if tail.strip(" .:") == "" else tail)).strip(), tuple(figures), tuple(units)
    )


def _series_of_parts(parts: Iterable[_Part]) -> Iterator[Series]:
    """Columns that grow evenly, of parts alike; the first of a list may have words before it."""
    alike: dict[tuple[str, int], list[_Part]] = {}
    first: _Part | None = None
    for part in parts:
        if part.figures:
            first = first or part
            alike.setdefault((part.shape, len(part.figures)), []).append(part)
    for (shape, columns), rows in alike.items():
        if len(rows) < FEWEST:
            continue
        words = shape.split("\0")
        for column in range(columns):
            figures = tuple(row.figures[column] for row in rows)
            unit = next((row.units[column] for row in rows if row.units[column]), "")
            near = f"{words[column]} {words[column + 1]}" if column + 1 == columns else words[column]
            if _OF_ELSE.search(near) or _sets_size(words, rows, column):
                continue
            counts = next((each for each in _counters(rows, column)), None)
            if tail := _even_tail(figures, counts):
                yield Series(tail, unit)


def _sets_size(words: Sequence[str], rows: Sequence[_Part], column: int) -> bool:
    """Whether another column is of a size that is set (``bs=4``, ``512px``, ``8k``) and grows, too: not what
    is as large or larger everywhere in the same unit, as a peak is beside what is allocated.
    """
    for other in range(len(rows[0].figures)):
        around = f"{words[other]}\0{words[other + 1] if other + 1 < len(words) else ''}"
        grows = other != column and rows[0].figures[other] < rows[-1].figures[other]
        unit = rows[0].units[other]
        covers = unit == rows[0].units[column] and all(
            row.figures[other] >= row.figures[column] for row in rows
        )
        if grows and (_SETTING.search(around) or (unit and not covers)):
            return True
    return False


def _counters(rows: Sequence[_Part], column: int) -> Iterator[tuple[float, ...]]:
    """Columns of whole numbers that only grow, but this one."""
    for other in range(column):
        counted = tuple(row.figures[other] for row in rows)
        if all(each == int(each) for each in counted) and _only_grows(counted):
            yield counted


def _only_grows(figures: Sequence[float]) -> bool:
    return all(one < other for one, other in itertools.pairwise(figures))


def _steps(figures: Sequence[float]) -> list[float]:
    return [other - one for one, other in itertools.pairwise(figures)]


def _is_even(figures: Sequence[float]) -> bool:
    steps = _steps(figures)
    return min(steps) > 0 and max(steps) <= EVENLY * min(steps)


def _even_tail(figures: Sequence[float], counts: Sequence[float] | None) -> tuple[float, ...]:
    """The last figures of a column as far back as they grew evenly, by step or by count; nothing where these
    are few.
    """
    begun = len(figures) - 1
    while begun > 0 and figures[begun - 1] < figures[begun]:
        begun -= 1
    tail = tuple(figures[begun:])
    if len(tail) < FEWEST:
        return ()
    by_count = [step / apart for step, apart in zip(_steps(tail), _steps(counts[begun:]), strict=True)] if counts else []  # fmt: skip
    even = _is_even(tail[-FEWEST:]) or (
        by_count and max(by_count[-FEWEST + 1 :]) <= EVENLY * min(by_count[-FEWEST + 1 :])
    )
    return tail if even else ()


def reaches_what_was_held(series: Series, of: Figures) -> tuple[Interval, ...]:
    """The figures as sizes, where what was held at the end lies at most a step behind the last of them, and
    they grew by enough to matter; else nothing.
    """
    for factor in UNITS.get(series.unit, ()):
        sizes = [figure * factor for figure in series.figures]
        step = max(_steps(sizes))
        grown = sizes[-1] - sizes[0]
        if not series.unit and _counts_rounds(series.figures) and sizes[-1] < NO_COUNT * factor:
            continue
        for held in _held_at_death(of, grown):
            near = -step / 2 <= held.middle - sizes[-1] <= _reach(step, held.middle, said=bool(series.unit))
            if (
                near
                and grown * LEAST >= held.middle
                and grown >= of.asked.low - (of.free.high if of.free else 0)
            ):
                return tuple(Interval(int(size), int(size)) for size in sizes)
    return ()


def _counts_rounds(figures: Sequence[float]) -> bool:
    """Whether figures are multiples of one step, or one more or less, as a counter's are."""
    steps = {round(each) for each in _steps(figures)}
    step = max(steps.pop(), 1)
    return not steps and any(all(round(each + shift) % step == 0 for each in figures) for shift in (-1, 0, 1))


LEAST = 5
"""The growth is a fifth of what was held, or more."""


def _reach(step: float, held: float, *, said: bool) -> float:
    """How far behind the last figure what was held may lie: a step, and where the unit is said what a step of
    the job makes besides.
    """
    return max(2.5 * step, held / 5) if said else 1.5 * step


def _held_at_death(of: Figures, grown: float) -> Iterator[Interval]:
    """What was held by tensors, and by the process where little of that is kept without them."""
    if of.allocated is not None:
        yield of.allocated
    if of.unallocated is not None and of.unallocated.middle * 4 <= grown:
        yield from (each for each in (of.reserved, of.process) if each is not None)
        if of.capacity is not None and of.free is not None and of.free_is_said:
            yield of.capacity - of.free
