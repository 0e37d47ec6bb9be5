"""nvidia-smi's table, and lists of processes as it, gpustat and rocm-smi print them: what is used of each
card, and by whom.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, printed_bytes, sum_intervals
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
        return None
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


_LISTED = re.compile(
    r"^\s{0,6}(?P<pid>\d{1,10}), (?P<name>[^,\n]{1,200}), (?P<size>\d{1,7}) (?P<unit>MiB)\s*$"
)
"""A line of ``nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv``."""
_OF_GPUSTAT = re.compile(r"^\[(?P<card>\d{1,3})\] [^|\n]{1,80}\|[^\n]{1,160}\|(?P<users>[^\n|]{1,400})$")
_OF_USER = re.compile(r"(?P<name>[\w.:@+-]{1,80})/(?P<pid>\d{1,10})\((?P<size>\d{1,7})(?P<unit>M)\)")
"""A card of ``gpustat -cp`` (gpustat 1.1.1, core.py, GPUStat.print_to), and one of its processes."""
_OF_ROCM = re.compile(
    r"^(?P<pid>\d{2,10})\s+(?P<name>\S{1,80})\s+\d{1,2}\s+(?P<size>\d{7,15})\s+\d{1,15}\s+\S{1,12}$"
)
"""A process of ``rocm-smi --showpids``, its memory in bytes (python_smi_tools/rocm_smi.py, showPids)."""
_HEADER = re.compile(r"^\s*(?:[a-z_]{2,30}(?: \[\w+\])?, ){1,12}[a-z_]{2,30}(?: \[\w+\])?\s*$")
"""The first line of a query's answer, which names its columns in any order (nvidia-smi
--help-query-compute-apps).
"""
_USED = re.compile(r"^used_(?:gpu_)?memory(?: \[(?P<unit>\w+)\])?$")
NO_CARD = -1
"""Of a list that does not say on which card a process is."""


class Holder(NamedTuple):
    """A process of a table: its card, number, name and arguments, and what it holds."""

    card: int
    pid: int
    name: str
    size: Interval


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


def _holders_of_lines(lines: Sequence[str]) -> Iterator[Holder | None]:
    for line in lines:
        if found := _PROCESS.match(line):
            yield _holder_of_row(
                {"pid": found[2], "name": found["name"], "size": found["size"], "unit": "MiB"}, int(found[1])
            )
        elif found := _LISTED.match(line):
            yield _holder_of_row(found.groupdict(), NO_CARD)
        elif found := _OF_ROCM.match(line):
            yield _holder_of_row({**found.groupdict(), "unit": "bytes"}, NO_CARD)
        elif found := _OF_GPUSTAT.match(line):
            yield from (
                _holder_of_row(each.groupdict(), int(found["card"]))
                for each in _OF_USER.finditer(found["users"])
            )
    yield from _rows_of_query(lines)


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
