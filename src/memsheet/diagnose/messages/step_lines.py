"""What trainers print of memory from step to step.

DeepSpeed's ``MA`` is what is allocated (messages/deepspeed.py). torchtitan prints the most that was
reserved since the line before, of sequences of one length (torchtitan/components/metrics.py,
MetricsProcessor.log: ``max_reserved_gib``). Where lengths differ from step to step, as answers of a
reinforcement learning do, growth of a peak shows no leak: such lines are not read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, printed_bytes
from memsheet.diagnose.message import NUMBER

SIGNS = (b"GiB(",)
_UNITS = r"(?:it(?=[\s:=#]{1,8}\d)|fold|trial|run|fit|round|episode|turn|message|gen(?:eration)?|step|iter|iteration|epoch|batch|requests?|calls?|jobs?|prompts?|files?|samples?|documents?|images?|quer(?:y|ies))"  # fmt: skip
_COUNTS = rf"(?:(?<![A-Za-z]){_UNITS}\b|\"(?:GET|POST|PUT) /)"
"""What a line counts, of a run that goes on."""
_PEAKS = re.compile(
    r"(?<![A-Za-z])(?:max(?:imum)?|peak)[ _](?:(?:gpu|cuda|mem(?:ory)?|vram)[ _]){0,2}(?:alloc\w*|used|usage|in[ _]use|vram|mem(?:ory)?)",
    re.IGNORECASE,
)  # fmt: skip
"""What a peak is called, which grows with the longest sample and shows no leak."""
_SIZE = (
    rf"(?:[\"']?\s{{0,3}}[:=]?\s{{0,3}}(?P<size>{NUMBER})\s?(?P<unit>[GM]i?B)\b"
    rf"|[_ ]{{0,2}}[(\[]?(?P<unit_before>[GM]i?B)[)\]]?[\"']?\s{{0,3}}[:=]\s{{0,3}}(?P<size_behind>{NUMBER})(?![\w.]))"
)  # fmt: skip
"""A figure and its unit, which stands behind it or in its name (``allocated_gb``)."""
_RESERVED = re.compile(rf"\bmemory:\s{{0,4}}(?P<size>{NUMBER})GiB\(")
_ALLOCATED = re.compile(
    rf"(?:{_COUNTS}|\d/\d).{{1,200}}?(?<![A-Za-z])(?:memory[ _])?alloc(?:ated)?"
    rf"(?:[ _]mem(?:ory)?)?(?:\([^()]{{0,40}}\))?{_SIZE}",
    re.IGNORECASE,
)  # fmt: skip
_COUNTED = re.compile(
    rf"{_COUNTS}.{{1,200}}?\bmemory_allocated(?:\([^()]{{0,40}}\))?[\"']?"
    r"\s{0,3}[:=]\s{0,3}(?P<size>\d{7,15})(?![\d.])",
    re.IGNORECASE,
)  # fmt: skip
"""Bytes, as torch.cuda.memory_allocated() returns them."""
_HEADING = re.compile(
    r"(?:memory[ _])?alloc(?:ated)?\b[^\n]{0,60}?(?:[(\[](?P<unit>[GM]i?B)[)\]][^\n]{0,40})?:?\s{0,3}$",
    re.IGNORECASE,
)
"""A line that says of what figures are that follow."""
_OF_COUNTS = re.compile(_COUNTS, re.IGNORECASE)
_ROW = re.compile(
    rf"\W{{0,4}}(?:after\s)?(?P<counts>{_UNITS}[ #]{{0,2}})?\d{{1,8}}\s{{0,4}}[:=|,>\s-]{{1,4}}\s{{0,8}}(?P<size>{NUMBER})\s?(?P<unit>[GM]i?B)?\W{{0,3}}",
    re.IGNORECASE,
)  # fmt: skip
"""A numbered step and a figure, and nothing else."""
_PEAK = re.compile(
    rf"{_COUNTS}.{{1,200}}?(?<![A-Za-z])(?:max[ _])?(?:gpu[ _]|cuda[ _])?mem(?:ory)?{_SIZE}",
    re.IGNORECASE,
)  # fmt: skip
_USED = re.compile(
    rf"(?:{_COUNTS}|\d/\d).{{0,200}}?(?<![A-Za-z])"
    rf"(?:vram|(?:gpu|cuda)[ _]?(?:mem(?:ory)?|ram))[ _](?:used|usage|in[ _]use){_SIZE}",
    re.IGNORECASE,
)  # fmt: skip
_TOKENS = re.compile(
    r"(?<![A-Za-z])(?:step|iter|iteration|batch)\b.{0,200}?"
    r"(?<![A-Za-z])(?:num_)?(?:tokens? in (?:the |this )?batch|tokens?|toks?|seq(?:uence)?[ _]?len(?:gth)?|max[_ ]?len(?:gth)?|len(?:gth)?|(?:seq|tokens?)[_ ]?max|max[_ ]?(?:seq|tokens?))"
    r"(?:[\"']?\s{0,3}[:=]\s{0,3}|(?<=len)\s|(?<=length)\s|(?<=max)\s{1,3}|(?<=max_seq)\s{1,3}|(?<=tokens)\s{1,3}|(?<=toks)\s{1,3}|(?<=in batch)\s{1,3}|(?<=this batch)\s{1,3})(\d[\d,]{1,9})(?![\d/])"
    r"|(?:\bloss\b|\d/\d{1,9} \[).{0,300}?(?<![A-Za-z])(?:(?:max|longest|padded)[_ ])?(?:seq(?:uence)?[_ ]?)?(?:len(?:gth)?|tokens)(?:_in_(?:micro_?)?batch)[\"']?\s{0,3}[:=]\s{0,3}(\d[\d,]{1,9})(?![\d/])"
    r"|(?<![A-Za-z])(?:step|iter|iteration|batch)\b.{0,60}?\b(?:padded to|shape|size)[\"']?\s{0,3}[:=]?\s{0,3}(?:torch\.Size\()?[(\[]\d{1,5},\s{0,2}(\d{2,9})[)\]]",
    re.IGNORECASE,
)  # fmt: skip
"""Tokens, or the length, of a step, as its line says it, or the shape of its batch."""
FEWEST, BEYOND, FAR = 3, (3, 2), 3
"""Steps that make a custom, how far beyond their largest one is another, and how far with one step less."""
ENOUGH = 4
"""Steps of growth that are no accident."""


_NUMBERED = re.compile(rf"{_COUNTS}[\"']?[ #:=\[|]{{0,6}}(\d[\d,]{{0,9}})(?![\d.])", re.IGNORECASE)
"""A count of a line, and its number."""


def steady_growth(sizes: list[Interval], lines: Sequence[str] = ()) -> tuple[Interval, ...]:
    """Where growth began, and the last sizes, where these have only grown by about the same; else nothing.
    ``lines``: those that say the sizes, whose steps may lie apart by different counts.
    """
    tail = sizes[-ENOUGH - 1 :]
    apart = _counts_between(lines[-len(tail) :]) or [1] * (len(tail) - 1)
    steps = [
        (later.middle - earlier.middle) / count
        for (earlier, later), count in zip(itertools.pairwise(tail), apart, strict=True)
    ]
    steady = len(steps) >= ENOUGH and min(steps) > 0 and max(steps) <= 2 * min(steps)
    if not steady:
        return ()
    begun = len(sizes) - len(tail)
    while begun > 0 and sizes[begun - 1].middle < sizes[begun].middle:
        begun -= 1
    return (*sizes[begun : begun + (begun < len(sizes) - len(tail))], *tail)


def _counts_between(lines: Sequence[str]) -> list[int]:
    """How many steps lie between lines, by the first of their counts that only grows; nothing where none
    does.
    """
    counted = ([int(each.replace(",", "")) for each in _NUMBERED.findall(line)] for line in lines)
    for numbers in zip(*counted, strict=False):
        apart = [later - earlier for earlier, later in itertools.pairwise(numbers)]
        if apart and min(apart) > 0:
            return apart
    return []


_PAIR = re.compile(
    rf"(?<![A-Za-z])(?:after\s)?{_UNITS}\s?#?\s?(?P<count>\d[\d,]{{0,8}})\b[^\n\d;.]{{1,24}}?(?P<size>{NUMBER})\s?(?P<unit>[GM]i?B)\b",
    re.IGNORECASE,
)  # fmt: skip
"""A count and a figure, of which a sentence holds several."""


def _pairs_of_sentences(log: Log) -> Iterator[tuple[Interval, ...]]:
    """Figures that one line says of several counts, each larger than the one before it, and of no peak."""
    for line in log.named_lines:
        several = line.upper().count("B") > ENOUGH and not _PEAKS.search(line)
        found = list(_PAIR.finditer(line)) if several else []
        counts = [int(each["count"].replace(",", "")) for each in found]
        if len(found) > ENOUGH and all(one < other for one, other in itertools.pairwise(counts)):
            yield tuple(size for each in found if (size := printed_bytes(each["size"], each["unit"])))


def allocated_growth(log: Log) -> tuple[Interval, ...]:
    """What a script's own lines say is allocated from step to step, where it only grew."""
    lines = [_PEAKS.sub("peak", line) for line in log.named_lines if "lloc" in line]
    sized = [line for line in lines if _ALLOCATED.search(line)]
    sizes = _sizes_in(sized, _ALLOCATED)
    counted = (_COUNTED.search(line) for line in lines)
    exact = [Interval(int(said["size"]), int(said["size"])) for said in counted if said]
    told = itertools.chain(_lists_of_sizes(log), _pairs_of_sentences(log))
    listed = (steady_growth(list(sizes)) for sizes in told)
    grown = steady_growth(sizes, sized) or steady_growth(exact) or _growth_across_gaps(log)
    return grown or next((each for each in listed if each), ())


_LEFT_OUT = re.compile(r"\W{0,4}(?:\.{2,}|…|snip|cut\b|omitted)[^\n]{0,60}$", re.IGNORECASE)
"""A line that stands for others which somebody left out."""


def _growth_across_gaps(log: Log) -> tuple[Interval, ...]:
    """The same of lines between which others are left out: steady up to there, and larger behind."""
    if not any(_LEFT_OUT.match(line) for line in log.named_lines):
        return ()
    runs: list[list[str]] = [[]]
    for line in (_PEAKS.sub("peak", each) for each in log.named_lines):
        if _LEFT_OUT.match(line):
            runs.append([])
        elif "lloc" in line and _ALLOCATED.search(line):
            runs[-1].append(line)
    first, *later = [run for run in runs if run] or [[]]
    grown = steady_growth(_sizes_in(first, _ALLOCATED), first)
    behind = _sizes_in(itertools.chain(*later), _ALLOCATED)
    rising = [*grown[-1:], *behind]
    rises = all(one.middle < other.middle for one, other in itertools.pairwise(rising))
    return (*grown, *behind[-1:]) if grown and rises else ()


def _sizes_in(lines: Iterable[str], pattern: re.Pattern[str]) -> list[Interval]:
    """The figure of each line that has one."""
    found = [said for line in lines if (said := pattern.search(line))]
    pairs = [(said["size"] or said["size_behind"], said["unit"] or said["unit_before"]) for said in found]
    return [size for number, unit in pairs if (size := printed_bytes(number, unit))]


def _lists_of_sizes(log: Log) -> Iterator[tuple[Interval, ...]]:
    """What stands line by line behind a heading that says that it is allocated, of numbered steps."""
    for place, line in enumerate(log.named_lines):
        if "lloc" not in line or not (heading := _HEADING.search(_PEAKS.sub("peak", line))):
            continue
        behind = (
            log.named_lines[number]
            for number in range(place + 1, len(log.named_lines))
            if log.named_lines[number]
        )
        rows = itertools.takewhile(bool, (_ROW.fullmatch(each) for each in behind))
        told = bool(_OF_COUNTS.search(line))
        numbered = (row for row in rows if row and (told or row["counts"]))
        pairs = [(row["size"], row["unit"] or heading["unit"] or "") for row in numbered]
        yield tuple(size for number, unit in pairs if unit and (size := printed_bytes(number, unit)))


def peak_growth(log: Log) -> tuple[Interval, ...]:
    """The most that was held, as a script's lines of steps have it, where it only grew."""
    return steady_growth(_sizes_in((line for line in log.named_lines if "mem" in line), _PEAK))


LEVEL = (50, 51)
"""A figure that grew by less than a fiftieth stays; the first is of a step before there were states."""


def stays_level(log: Log) -> bool:
    """Whether a script's lines say of several steps what was held, and it did not grow."""
    sizes = _sizes_in(
        (line for line in log.named_lines if "mem" in line or "lloc" in line), _PEAK
    ) or _sizes_in((line for line in log.named_lines if "lloc" in line), _ALLOCATED)
    return len(sizes) > ENOUGH and sizes[-1].middle * LEVEL[0] <= sizes[1].middle * LEVEL[1]


def used_growth(log: Log) -> tuple[Interval, ...]:
    """What of the card a script's own lines say is used from step to step, where it only grew: what is kept
    without tensors counts in.
    """
    lines = (_PEAKS.sub("peak", line) for line in log.named_lines if "us" in line or "US" in line)
    return steady_growth(_sizes_in(lines, _USED))


def reserved_growth(log: Log) -> tuple[Interval, ...]:
    """What was reserved from step to step, where it only grew: tensors', unless it is kept without them."""
    found = (_RESERVED.search(line) for line in log.named_lines if "memory:" in line)
    return steady_growth([size for said in found if said and (size := printed_bytes(said["size"], "GiB"))])


def outsized_step(log: Log, line: int) -> tuple[int, int] | None:
    """Tokens of the last step that a log names before a message, and the most of those before it, where that
    one is far larger than all of them.
    """
    found = (_TOKENS.search(each) for each in log.named_lines[: line + 1])
    sizes = [int(next(filter(None, said.groups())).replace(",", "")) for said in found if said]
    most = max(sizes[:-1], default=0)
    far = bool(sizes) and sizes[-1] >= FAR * most
    fewest = FEWEST - (far or len(set(sizes[:-1])) == 1)  # alike ones are a custom earlier
    return (sizes[-1], most) if len(sizes) > fewest and sizes[-1] * BEYOND[1] >= most * BEYOND[0] else None
