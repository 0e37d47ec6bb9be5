"""A log without what terminals, launchers and loggers put around its words.

Messages are looked for in a text from which all spaces and ends of lines are gone: what a terminal, an
issue's box or a test's report wrapped, in the middle of a word if need be, is whole there.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from memsheet.diagnose.columns import with_named_cells

if TYPE_CHECKING:
    from memsheet.diagnose.named_cards import NamedCard

MOST_BYTES = 64 * 2**20
WHOLE = 2**20
"""A longer log is looked at around its signs alone."""
BEFORE, AFTER, ENDS = 96 * 2**10, 48 * 2**10, 64 * 2**10
LONGEST_LINE = 8 * 2**10
_ENTITIES = {"nbsp": " ", "#160": " ", "lt": "<", "gt": ">", "quot": '"', "#39": "'", "amp": "&"}
_ENTITY = re.compile(f"&({'|'.join(_ENTITIES)});")
"""How a page's source writes these letters."""
MOST_EMPTY = 32
"""Empty lines in a row that are kept: what stands behind more of them is as far away."""
_COLOURS = re.compile(r"\x1b\[[0-?]{0,32}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|\x1b[@-_]")
_BOX = "│┃║|╎┆"
_PREFIX = re.compile(
    r"""\s*(?:
      \[(?:default|rank)?\d{1,6}\]:                                  # torchrun
    | \(\w[\w .:/=-]{0,60}?\s?pid=\d{1,9}[^)\n]{0,80}\)               # Ray, vLLM's processes
    | \[\d{1,2},\d{1,6}\]<std(?:err|out)>:                           # mpirun
    | \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?
    | \[?\d\d-\d\d\ \d\d:\d\d:\d\d\]?
    | \[\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:\ (?:TP|DP|PP)\d{1,4})*\]
    | \[?(?:TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\]?:?(?=\s)
    | \|\ {0,3}(?:TRACE|DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL)\ {0,8}\|
      (?:\ {0,3}[\w.:<>-]{1,80}\ {1,3}[|-](?=\s))?                     # columns of loggers
    | [EWIF]\d{4}\ \d\d:\d\d:\d\d\.\d{1,9}\s{1,4}\d{1,9}\ [\w./-]{1,80}:\d{1,6}\]  # glog
    | \[?[\w./-]{1,80}\.(?:py|cpp|cc):\d{1,6}\]
    | [A-Z][a-z]{2}\ [ \d]\d\ \d\d:\d\d:\d\d\ [\w.-]{1,80}\ [\w./@-]{1,80}(?:\[\d{1,9}\])?:(?=\s|$)  # journald
    | -\ [\w.]{1,80}\ -\ (?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\ -(?=\s)  # logging, of Python
    | [\w.-]{1,60}-\d{1,3}\s{1,4}\|(?=\s|$)                            # docker compose
    | E(?=\ {3})                                                     # pytest
    | >(?=\s)
    | std(?:out|err)\ [FP](?=\s)                                     # containers
    )""",
    re.VERBOSE,
)
_MOST_PREFIXES = 8
MOST_OF_PREFIX = 200
_SPEAKER = re.compile(r"\((\w[\w.:-]{0,60})[\w .:/=-]{0,40}? pid=\d")
"""The name of a process before its number, as Ray and vLLM print it."""
ALIKE = 32
"""Lines of one shape that are read at the beginning of a log, and at its end: what a run is set to is in the
first, how far it came in the last.
"""
_WITHOUT_DIGITS = str.maketrans("", "", "0123456789abcdef .,+-=_#>█▏▎▍▌▋▊▉░━╸╺ \t")
"""Digits, those of hexadecimal numbers among them, and what bars are drawn of."""
_ENDS_OF_LINES, _DIGITS = bytes.maketrans(b"\r", b"\n"), b"0123456789"


APART = "|"
_CLOCK = re.compile(r"\d{1,4}[:.\-/]\d{1,3}[:.\-/]\d")


class Log:
    """A cleaned text. ``lines``: its lines without prefixes; ``squeezed``: all of them without a space;
    ``speakers``: the names of the processes that said lines, by their numbers, where a prefix has them;
    ``card``: of the job, where it is told beside the text.
    """

    def __init__(self, lines: Iterable[str], speakers: Mapping[int, str] | None = None) -> None:
        self.lines = tuple(lines)
        self.card: NamedCard | None = None
        self.speakers: Mapping[int, str] = speakers or {}

    @cached_property
    def named_lines(self) -> tuple[str, ...]:
        """The lines, rows of tables with the name of each cell before its figure."""
        return with_named_cells(self.lines)

    @cached_property
    def _parts(self) -> tuple[str, ...]:
        """Each line without spaces; a clock or an address at its beginning is no end of the figure before."""
        parts = ["".join(line.split()) for line in self.lines]
        return tuple(
            f"{APART}{part}" if before[-1:].isdigit() and _CLOCK.match(part) else part
            for before, part in zip(("", *parts), parts, strict=False)
        )

    @cached_property
    def squeezed(self) -> str:
        return "".join(self._parts)

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return tuple(accumulate(map(len, self._parts), initial=0))

    @cached_property
    def text(self) -> str:
        """The lines; of those that differ by digits and bars alone, as steps do, the first and the last."""
        if len(self.lines) <= 2 * ALIKE:
            return "\n".join(self.lines)
        shapes = [line.translate(_WITHOUT_DIGITS) for line in self.lines]
        left, seen = Counter(shapes), Counter[str]()
        kept = []
        for line, shape in zip(self.lines, shapes, strict=True):
            if seen[shape] < ALIKE or left[shape] <= ALIKE:
                kept.append(line)
            seen[shape] += 1
            left[shape] -= 1
        return "\n".join(kept)

    def line_at(self, place: int) -> int:
        """The number, from 0, of the line that holds a place of ``squeezed``."""
        return max(0, bisect_right(self._starts, place) - 1)

    def place_of(self, line: int) -> int:
        """Where a line begins in ``squeezed``."""
        return self._starts[max(0, min(line, len(self.lines)))]


def cleaned_log(texts: Iterable[bytes | str], signs: Iterable[bytes]) -> Log:
    """Texts as one log. ``signs``: what a line that matters holds; of a long text only what stands around
    the first of each, its beginning and its end is kept.
    """
    signs = tuple(signs)
    lines: list[str] = []
    speakers: dict[int, str] = {}
    raws = [raw for text in texts for raw in _raw_lines(_decoded_text(text, signs))]
    hosts = _hosts_in_front(raws)
    for raw in raws:
        if " pid=" in raw[:MOST_OF_PREFIX] and (found := _SPEAKER.search(raw, 0, MOST_OF_PREFIX)):
            speakers[len(lines)] = found[1]
        lines.append(without_prefixes(_without_host(raw, hosts) if hosts else raw))
    return Log(_with_whole_frames(lines), speakers)


_FRAME_BEGUN = re.compile(
    r'File "[^"\n]{1,400}(?:"(?:, (?:l(?:i(?:n(?:e(?: \d{0,9}(?:,(?: (?:i(?:n)?)?)?)?)?)?)?)?)?)?)?$'
)

_BOXED_BEGUN = re.compile(r"[\w./~-]{1,300}\.py:\d{1,9} in$")
"""rich's frames, which wrap before the function's name."""


def _with_whole_frames(lines: list[str]) -> list[str]:
    """The same, a traceback's frame that a terminal wrapped as one line, and an empty one before it."""
    whole = list(lines)
    for number, line in enumerate(lines[:-1]):
        if _BOXED_BEGUN.match(line) and re.fullmatch(r"[\w<>]{1,120}", lines[number + 1]):
            whole[number], whole[number + 1] = "", f"{line} {lines[number + 1]}"
        elif line.startswith('File "') and _FRAME_BEGUN.match(line) and ", in " in line + lines[number + 1]:
            whole[number], whole[number + 1] = "", line + lines[number + 1]
    return whole


_HOST = re.compile(
    r"\s{0,4}([\w.@-]{1,80}(?::|\s{1,4}\|))\s{0,12}"
    r"(?:\[(?:default|rank)?\d{1,6}\]:\s{0,12})?(?:File \"|Traceback \(most recent)"
)
_TASK = re.compile(r"\s{0,4}(\d{1,5}:)(?=\s|$)")
_IN_FRONT = re.compile(r"\s{0,4}([\w.@-]{1,80}(?::|\s{1,4}\|))(?=\s|\[|$)")
LEAST_LINES = 2
"""Lines of tracebacks that a word has to stand before to be a host's or a task's."""


def _hosts_in_front(raws: Iterable[str]) -> frozenset[str]:
    """What launchers put before each line that is of no form of theirs alone: a host's name (pdsh,
    containers), a task's number (srun --label). Known by the lines of tracebacks that it stands before; a
    number also where most lines have one, and several the same.
    """
    lines = [raw for raw in raws if raw.strip()]
    marked = (raw for raw in lines if 'File "' in raw or "Traceback (most" in raw)
    counts = Counter(found[1] for raw in marked if (found := _HOST.match(raw)))
    hosts = {name for name, count in counts.items() if count >= LEAST_LINES}
    tasks = Counter(found[1] for raw in lines if (found := _TASK.match(raw)))
    numbered = sum(tasks.values()) * 2 > len(lines) and max(tasks.values()) > LEAST_LINES
    return frozenset(hosts | set(tasks) if numbered else hosts)


def _without_host(raw: str, hosts: frozenset[str]) -> str:
    found = _IN_FRONT.match(raw)
    return raw[found.end() :] if found and found[1] in hosts else raw


def _decoded_text(text: bytes | str, signs: tuple[bytes, ...]) -> str:
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raw = raw.decode("utf-16", "replace").encode("utf-8", "replace")
    elif raw[:4096].count(b"\0") > len(raw[:4096]) // 4:  # UTF-16 without its mark
        raw = raw.replace(b"\0", b"")
    return _parts_that_matter(raw, signs).decode("utf-8", "replace")


def _parts_that_matter(raw: bytes, signs: tuple[bytes, ...]) -> bytes:
    if len(raw) <= WHOLE:
        return raw
    found = _first_places(raw, _signs_that_may_stand(raw, signs))
    spans = sorted(
        [(0, ENDS), (len(raw) - ENDS, len(raw)), *((max(0, at - BEFORE), at + AFTER) for at in found)]
    )
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return b"\n".join(raw[start:end] for start, end in merged)


STEM, MOST_STEMS = 5, 2_000
"""Bytes that several signs share and that are looked for once, and places of them that are looked at."""


def _first_places(raw: bytes, signs: tuple[bytes, ...]) -> Iterator[int]:
    """Where each sign stands first. What several signs share is looked for in their place: a text is long."""
    left = list(dict.fromkeys(signs))
    while left:
        shared = Counter(stem for sign in left for stem in _stems_of(sign))
        stem, count = shared.most_common(1)[0] if shared else (b"", 0)
        if count < 2:
            break
        own = [sign for sign in left if stem in sign]
        left = [sign for sign in left if stem not in sign]
        places = [*islice((one.start() for one in re.finditer(re.escape(stem), raw)), MOST_STEMS + 1)]
        if len(places) > MOST_STEMS:
            yield from (place for sign in own if (place := raw.find(sign)) >= 0)
            continue
        for sign in own:
            starts = (place - sign.index(stem) for place in places)
            first = next((at for at in starts if at >= 0 and raw.startswith(sign, at)), None)
            if first is not None:
                yield first
    yield from (place for sign in left if (place := raw.find(sign)) >= 0)


def _stems_of(sign: bytes) -> set[bytes]:
    """Stretches of a sign that cannot overlap themselves."""
    found = (sign[at : at + STEM] for at in range(len(sign) - STEM + 1))
    return {stem for stem in found if not any(stem[:n] == stem[-n:] for n in range(1, STEM))}


def _signs_that_may_stand(raw: bytes, signs: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Signs that a text can hold, by its lines without their digits: steps and progress bars are then a few
    lines, each looked through once.
    """
    for part in (raw[: 2 * WHOLE], raw):  # the beginning tells whether the whole is worth it
        different = set(part.translate(_ENDS_OF_LINES, _DIGITS).split(b"\n"))
        bare = b"\n" + b"\n".join(different)
        if len(bare) * 2 > len(part):
            return signs
    return tuple(sign for sign in signs if sign.translate(_ENDS_OF_LINES, _DIGITS) in bare)


def _raw_lines(text: str) -> Iterable[str]:
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    if "{" in text or "msg=" in text or "message=" in text:
        text = "\n".join(map(_carried_text, text.split("\n")))
    if "\\n" in text and text.count("\n") * 20 < text.count("\\n") + 20:  # an answer of a server, escaped
        text = text.replace("\\\\n", "\n").replace("\\n", "\n").replace('\\"', '"')
    if "&" in text:
        text = _ENTITY.sub(lambda found: _ENTITIES[found[1]], text)
    if "<" in text:
        text = _TAGS.sub("\n", text)
    empty = 0
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        empty = 0 if line else empty + 1
        if empty <= MOST_EMPTY:
            yield line[:LONGEST_LINE]


_TAGS = re.compile(r"</?(?:pre|code|br)(?:\s[^<>\n]{0,100})?/?>")
_LOGFMT = re.compile(
    r"\s{0,8}(?:time|ts|t|timestamp)=\S{1,60}\s(?:level|lvl)=\w{1,10}\s(?:msg|message)=\"(?P<said>.{0,8000})\"\s{0,4}$"
)  # fmt: skip
SAID = ("message", "msg", "log", "text", "MESSAGE")
AROUND = frozenset((
    "ts", "t", "time", "timestamp", "@timestamp", "asctime", "date", "level", "lvl", "severity", "levelname", "logger", "name", "module", "stream", "pod", "container", "namespace",
    "host", "hostname", "service", "app", "caller", "source", "file", "filename", "lineno", "func", "funcName", "thread", "pid", "rank", "process", "node", "tag", "labels", "id", "_p",
))  # fmt: skip
"""Keys under which loggers and collectors put what a program said, and what they put around it."""
LONGEST_RECORD = 64 * 2**10


def _carried_text(line: str) -> str:
    """What a program said, of a line in which a logger carries it as JSON or as pairs, and nothing but what
    it puts around it; any other line as it is.
    """
    bare = line.strip()
    if bare[:1] == "{" and bare[-1:] == "}" and len(bare) <= LONGEST_RECORD:
        try:
            record = json.loads(bare)
        except (ValueError, RecursionError):
            return line
        told = [key for key in SAID if isinstance(record.get(key), str)]
        return record[told[0]] if len(told) == 1 and set(record) <= AROUND | {told[0]} else line
    found = _LOGFMT.match(line) if "msg=" in line or "message=" in line else None
    return found["said"].replace('\\"', '"') if found else line


def without_prefixes(line: str) -> str:
    """A line without ranks, processes, times, levels and the sides of a box."""
    bare = line.strip()
    if bare[:1] in _BOX and bare:
        bare = bare.strip(_BOX).strip()
    for _ in range(_MOST_PREFIXES):
        if not (found := _PREFIX.match(bare)):
            break
        bare = bare[found.end() :].lstrip()
    return bare
