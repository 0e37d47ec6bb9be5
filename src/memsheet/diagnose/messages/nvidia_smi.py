"""nvidia-smi's table, and lists of processes as it, gpustat and rocm-smi print them: what is used of each
card, and by whom.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, printed_bytes, size_words, sum_intervals
from memsheet.frozen import NamedTuple, dataclass

SIGNS = (b"NVIDIA-SMI",)
_CARD = re.compile(r"(?<!\d)(\d{1,7})\s{0,3}MiB\s{0,3}/\s{0,3}(\d{1,7})\s{0,3}MiB")
_PROCESS = re.compile(
    r"^\|"
    r"?\s{0,6}(\d{1,3})\s+(?:N/A\s+N/A\s+)?(\d{1,10})\s+[CG](?:\+[CG])?"
    r"\s+(?P<name>.{1,120}?)\s+(?P<size>\d{1,7})\s?MiB\s{0,3}\|?$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Used and whole bytes by card, (card, process, bytes), and the processes' names by their numbers."""

    cards: tuple[tuple[Interval, Interval], ...]
    processes: tuple[tuple[int, int, Interval], ...]
    names: Mapping[int, str]


def card_table(log: Log) -> Table | None:
    """The table in a text, where there is one."""
    if "NVIDIA-SMI" not in log.text:
        return _table_of_others(log)
    cards: list[tuple[Interval, Interval]] = []
    processes: list[tuple[int, int, Interval]] = []
    names: dict[int, str] = {}
    for line in log.lines:
        used = _CARD.search(line)
        if used and (held := printed_bytes(used[1], "MiB")) and (whole := printed_bytes(used[2], "MiB")):
            cards.append((held, whole))
        elif (found := _PROCESS.match(line)) and (size := printed_bytes(found["size"], "MiB")):
            processes.append((int(found[1]), int(found[2]), size))
            names[int(found[2])] = _short_name(found["name"])
    return Table(cards=tuple(cards), processes=tuple(processes), names=names) if cards else None


_USED_OF_WHOLE = re.compile(
    r"(?:^\[\d{1,3}\] [^|\n]{1,80}\|[^|\n]{0,40}\||\b(?:MEM|HBM|VRAM)\b[^\d\n]{0,20}|\d[CW] [^\n]{0,40}?)\s{0,4}(?P<used>\d{1,7}(?:\.\d{1,3})?)\s?(?P<unit>[GM]i?B?)?\s?/\s?(?P<whole>\d{1,7}(?:\.\d{1,3})?)\s?(?P<of>[GM]i?B?)\b"
)  # fmt: skip
"""What is used of a card and all that it has, as gpustat, nvtop and nvitop write it."""


def _table_of_others(log: Log) -> Table | None:
    """The same of the tables of other tools, where they list processes; without a card's number, of the only
    one.
    """
    holders = listed_holders(log)
    found = (_USED_OF_WHOLE.search(line) for line in log.lines) if holders else ()
    cards = tuple(
        (used, whole)
        for each in found
        if each
        and (used := printed_bytes(each["used"], f"{(each['unit'] or each['of'])[0]}iB"))
        and (whole := printed_bytes(each["whole"], f"{each['of'][0]}iB"))
        and used.low <= whole.high
    )
    places = [(each.card if len(cards) > 1 else max(each.card, 0), each) for each in holders]
    if not cards or any(not 0 <= place < len(cards) for place, _ in places):
        return None
    processes = tuple((place, each.pid, each.size) for place, each in places)
    return Table(
        cards=cards,
        processes=processes,
        names={each.pid: _short_name(each.name) for each in holders if each.name},
    )


_LISTED = re.compile(
    r"^\s{0,6}(?P<pid>\d{1,10}), (?P<name>[^,\n]{1,200}), (?P<size>\d{1,7}) (?P<unit>MiB)\s*$"
)
"""A line of ``nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv``."""
_OF_GPUSTAT = re.compile(r"^\[(?P<card>\d{1,3})\] [^|\n]{1,80}\|[^\n]{1,160}\|(?P<users>[^\n|]{1,400})$")
_OF_USER = re.compile(
    r"(?<![\w/])(?P<name>[\w.:@+-]{1,80})(?:/(?P<pid>\d{1,10}))?\((?P<size>\d{1,7})(?P<unit>M)\)"
)
"""A card of ``gpustat -cp`` (gpustat 1.1.1, core.py, GPUStat.print_to), and one of its processes."""
_HEADER = re.compile(r"^\s*(?:[a-z_]{2,30}(?: \[\w+\])?, ){1,12}[a-z_]{2,30}(?: \[\w+\])?\s*$")
"""The first line of a query's answer, which names its columns in any order (nvidia-smi
--help-query-compute-apps).
"""
_USED = re.compile(r"^used_(?:gpu_)?memory(?: \[(?P<unit>\w+)\])?$")
NO_CARD = -1
"""Of a list that does not say on which card a process is."""


def process_called(pid: int, name: str) -> str:
    """A process by its number and name; one below 0 is of a list that says its user alone (gpustat without
    ``-p``).
    """
    return f"process {pid} ({name})" if pid >= 0 else f"a process of {name}'s"


class Holder(NamedTuple):
    """A process of a table: its card, number, name and arguments, and what it holds."""

    card: int
    pid: int
    name: str
    size: Interval

    @property
    def words(self) -> str:
        """It and what it holds; of a list that names users alone, whose it is."""
        return f"{process_called(self.pid, self.name)} {size_words(self.size)}"


def _holder_of_row(found: Mapping[str, str], card: int) -> Holder | None:
    size = printed_bytes(found["size"], {"M": "MiB"}.get(found["unit"], found["unit"]))
    return Holder(card, int(found["pid"]), found["name"].strip(), size) if size else None


def _rows_of_query(lines: Sequence[str]) -> Iterator[Holder | None]:
    """The lines behind a header that names a process's number and what it holds."""
    columns: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if _HEADER.match(line) and "pid" in cells:
            columns = cells
            continue
        row = dict(zip(columns, cells, strict=False)) if columns and len(cells) == len(columns) else {}
        used = next((name for name in row if _USED.match(name)), "")
        number = row.get(used, "").partition(" ")
        if not (used and row["pid"].isdigit() and number[0].isdigit()):
            columns = columns if row else []
            continue
        said = _USED.match(used)
        unit = number[2] or (said["unit"] if said else "") or "MiB"
        name = row.get("process_name") or row.get("name") or ""
        yield _holder_of_row({"pid": row["pid"], "name": name, "size": number[0], "unit": unit}, NO_CARD)


_NAMES = re.compile(r"\b(?:PID|[Pp]rocess ?[Ii][Dd])\b")
_MEMORY_NAME = re.compile(
    r"(?P<host>HOST|CPU|GTT|SHR|SYS)?[ _-]?(?:(?:GPU|VRAM|HBM|Process)[ _-]?)?(?:Mem(?:ory)?|VRAM)\b(?:[ _-]?(?:USED|Usage))?\s?[(\[]?(?P<unit>[KMG]i?B)?", re.IGNORECASE
)  # fmt: skip
_SIZE = re.compile(r"(?<![\w.])(?P<size>\d{1,7}(?:\.\d{1,3})?)\s?(?P<unit>[KMG]i?B?)(?![\w/])")
_WHOLE_NUMBER = re.compile(r"(?<![\w.%/-])\d{1,15}(?![\w.%/])")
_WORD = re.compile(r"[^\s|│]*[A-Za-z/][^\s|│]*")
_KINDS = frozenset(("Compute", "Graphic", "C", "G", "C+G", "N/A", "-", "UNKNOWN", "MiB", "GiB", "MB", "GB"))
"""What stands in a table of processes beside a program's name."""


def _rows_under_names(lines: Sequence[str]) -> Iterator[Holder | None]:
    """Rows of any tool's table whose line of names has a process's number and a memory of the card (nvtop,
    nvitop, rocm-smi --showpids, amd-smi, npu-smi): its number is the first whole one where the table
    begins with it, else the first of three digits or more; its memory the figure with a unit in that column's
    order, else the first number behind it that is large enough for bytes, or the last of the row.
    """
    heads: list[re.Match[str]] = []
    first = False
    for line in lines:
        names = list(_MEMORY_NAME.finditer(line)) if _NAMES.search(line) else []
        if names and not _WHOLE_NUMBER.search(line):
            heads, first = names, bool(re.match(r"[\s|│]*(?:PID|[Pp]rocess ?[Ii][Dd])\b", line))
            continue
        if heads and (row := _row_of_process(line, heads, 1 if first else 3)):
            yield row


def _row_of_process(line: str, heads: Sequence[re.Match[str]], digits: int) -> Holder | None:
    if "," in line or _PROCESS.match(line) or _USED_OF_WHOLE.search(line):
        return None
    place = next((at for at, head in enumerate(heads) if not head["host"]), 0)
    number = next((each for each in _WHOLE_NUMBER.finditer(line) if len(each.group()) >= digits), None)
    if number is None:
        return None
    sizes = list(_SIZE.finditer(line, number.end()))
    unit = heads[place]["unit"]
    plain = [each.group() for each in _WHOLE_NUMBER.finditer(line, number.end())]
    told = (
        (sizes[place]["size"], f"{sizes[place]['unit'].rstrip('iB')}iB") if len(sizes) > place
        else (plain[-1], unit) if plain and unit
        else next(((each, "bytes") for each in plain if "VRAM" in heads[place].group() and len(each) > LEAST_DIGITS), None)
    )  # fmt: skip
    words = [each.group() for each in _WORD.finditer(_SIZE.sub(" ", line)) if "%" not in each.group()]
    said = [each for each in words if each not in _KINDS]
    begun = next((at for at, each in enumerate(said) if _PROGRAM.search(each)), 0)
    name = " ".join(said[begun:])
    return _holder_of_row({"pid": number.group(), "name": name, "size": told[0], "unit": told[1]}, NO_CARD) if told and words else None  # fmt: skip


_PROGRAM = re.compile(r"/|python|\.(?:py|exe|sh)\b")
LEAST_DIGITS = 6
"""A whole number with more digits than these is one of bytes, where rocm-smi says no unit."""
_SPOKEN = re.compile(
    r"\b(?:pid|PID|[Pp]rocess(?: id)?)[\"']?\s?[=:#]?\s?(?P<pid>\d{2,10})\b(?P<name>[^\n]{1,80}?)(?<![\w.])(?P<size>\d{1,6}(?:\.\d{1,3})?)\s?(?P<unit>[MG]i?B)(?![\w/])"
)  # fmt: skip
_OF_ALLOCATOR = re.compile(r"memory in use|Tried to allocate|anon-rss|total-vm|\bRSS\b|resident|\bRAM\b|host|[Kk]illed|\bcpu\b|virt", re.IGNORECASE)  # fmt: skip


def _spoken_holders(lines: Sequence[str]) -> Iterator[Holder | None]:
    """A process by its number and what it holds, in one line of anybody's words."""
    for line in lines:
        if len(line) > LONGEST or _OF_ALLOCATOR.search(line):
            continue
        for found in _SPOKEN.finditer(line):
            if not _PID_BESIDE.search(found["name"]):
                quoted = _QUOTED.search(found["name"])
                name = quoted[1] if quoted else found["name"].strip(" ,:;(){}=-\"'")
                yield _holder_of_row({**found.groupdict(), "name": name}, NO_CARD)


LONGEST = 400
_QUOTED = re.compile(r":\s?[\"']([^\"'\n]{2,80})[\"']")
_PID_BESIDE = re.compile(r"\bpid\b|\d\s?[KMG]i?B|free|total|capacity|allocat", re.IGNORECASE)


def _holders_of_lines(lines: Sequence[str]) -> Iterator[Holder | None]:
    for line in lines:
        if found := _PROCESS.match(line):
            yield _holder_of_row(
                {"pid": found[2], "name": found["name"], "size": found["size"], "unit": "MiB"}, int(found[1])
            )
        elif found := _LISTED.match(line):
            yield _holder_of_row(found.groupdict(), NO_CARD)
        elif found := _OF_GPUSTAT.match(line):
            yield from (
                _holder_of_row({**each.groupdict(), "pid": each["pid"] or str(-at)}, int(found["card"]))
                for at, each in enumerate(_OF_USER.finditer(found["users"]), start=1)
            )
    yield from _rows_of_query(lines)
    yield from _rows_under_names(lines)
    yield from _spoken_holders(lines)


_UNSIZED = re.compile(
    r"^\|?\s{0,6}\d{1,3}\s+N/A\s+N/A\s+(\d{1,10})\s+C(?:\+G)?\s+(.{1,120}?)\s+N/A\s{0,4}\|?$"
)


def unsized_processes(log: Log) -> Iterator[str]:
    """Processes of a table that compute, in words, of which Windows' driver does not say what each holds;
    what draws its desktop is none.
    """
    for line in log.lines:
        if (found := _UNSIZED.match(line)) and ":\\Windows" not in found[2]:
            yield f"process {found[1]} ({_short_name(found[2])})"


def listed_holders(log: Log) -> tuple[Holder, ...]:
    """The processes of a table or a list, each once, whether or not its cards stand above it."""
    held = [each for each in _holders_of_lines(log.lines) if each is not None]
    return tuple(
        {each.pid if each.card == NO_CARD else (each.card, each.pid): each for each in held}.values()
    )


def listed_processes(log: Log) -> dict[str, Interval]:
    """Programs with their arguments, and what each holds, of a table of processes or of a list of them."""
    return {each.name: each.size for each in listed_holders(log)}


def _short_name(path: str) -> str:
    """A program without its folders and arguments, of a name that may be cut in front."""
    return path.split(maxsplit=1)[0].replace("\\", "/").rpartition("/")[2][:40]


def emptiest_card(table: Table) -> tuple[int, Interval] | None:
    """The card that has the most free, and that, where it is another than the fullest and a quarter of it or
    more is free.
    """
    free = [(whole - used).positive for used, whole in table.cards]
    place = max(range(len(free)), key=lambda card: free[card].middle)
    wide = free[place].middle * 4 >= table.cards[place][1].middle
    return (place, free[place]) if wide and free[place].low > min(each.high for each in free) else None


def table_facts(table: Table) -> dict[str, Interval]:
    """The fullest card, and what its processes hold."""
    used, whole = max(table.cards, key=lambda card: card[0].middle)
    facts = {"card_used_bytes": used, "card_bytes": whole}
    return (
        {**facts, "card_processes_bytes": sum_intervals(size for *_, size in table.processes)}
        if table.processes
        else facts
    )
