"""nvidia-smi's table: what is used of each card, and by which processes."""

from __future__ import annotations

import re
from collections.abc import Mapping

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


_LISTED = re.compile(r"^\s{0,6}(\d{1,10}), (?P<name>[^,\n]{1,200}), (?P<size>\d{1,7}) MiB\s*$")
"""A line of ``nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv``."""


def listed_processes(log: Log) -> dict[str, Interval]:
    """Programs with their arguments, and what each holds, of a table of processes or of a list of them."""
    found: dict[str, Interval] = {}
    for line in log.lines:
        listed = _PROCESS.match(line) or _LISTED.match(line)
        if listed and (size := printed_bytes(listed["size"], "MiB")):
            found[listed["name"]] = size
    return found


class Holder(NamedTuple):
    """A process of a table: its card, number, name and arguments, and what it holds."""

    card: int
    pid: int
    name: str
    size: Interval


def listed_holders(log: Log) -> tuple[Holder, ...]:
    """The processes of a table, each once, whether or not its cards stand above it."""
    found = (match for line in log.lines if (match := _PROCESS.match(line)))
    sized = ((each, printed_bytes(each["size"], "MiB")) for each in found)
    held = (Holder(int(each[1]), int(each[2]), each["name"], size) for each, size in sized if size)
    return tuple({(each.card, each.pid): each for each in held}.values())


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
