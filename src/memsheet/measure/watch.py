"""What nvidia-smi says of a running job, again and again: used, growth, and when the card would be full. No
torch here, and nothing of the job is touched.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from memsheet.arith import fitted_line
from memsheet.errors import input_error
from memsheet.units import MIB

PROGRAM = "nvidia-smi"
CARDS = (PROGRAM, "--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits")
PROCESSES = (PROGRAM, "--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader,nounits")
PARENTS = ("ps", "-e", "-o", "pid=,ppid=")
KERNELS_TABLE = Path("/proc")
"""Where Linux says what runs; images of few megabytes have no ``ps``."""
PATIENCE_S = 20
ENOUGH, STRAIGHT = 8, 0.9
"""Samples from which growth is told, and R² of the line through them from which it is steady."""
Ask = Callable[[Sequence[str]], str]


class Card(NamedTuple):
    """One card at one moment, in bytes. ``own``: of the watched processes, None where the driver does not say
    (a container sees others' numbers, or none).
    """

    number: int
    used: int
    total: int
    own: int | None


class Growth(NamedTuple):
    """Of a card over the last samples: bytes a second, and seconds until it is full (None: it does not grow
    steadily).
    """

    bytes_per_s: float
    full_in_s: float | None


def driver_output(command: Sequence[str]) -> str:
    """What a command prints. Raises InputError where there is no such program or no GPU."""
    program = shutil.which(command[0])
    if program is None:
        raise input_error(
            command[0],
            None,
            "is not installed here, so that no GPU can be watched",
            "run it where the job runs",
        )
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise input_error(command[0], None, f"does not answer within {PATIENCE_S} seconds") from None
    if done.returncode:
        said = (done.stdout or done.stderr).strip().splitlines()
        raise input_error(
            command[0],
            None,
            f"sees no GPU here: {said[0][:200] if said else f'it ended with {done.returncode}'}",
        )
    return done.stdout


def process_parents(table: Path = KERNELS_TABLE) -> dict[int, int]:
    """Every process and its parent, by number: as the kernel lists them, else as ``ps`` does (proc(5))."""
    found = dict[int, int]()
    for stat in table.glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            told = stat.read_text(encoding="utf-8", errors="replace")
            found[int(stat.parent.name)] = int(told.rpartition(")")[2].split()[1])
    rows = () if found else (line.split() for line in driver_output(PARENTS).splitlines())
    return found or {int(row[0]): int(row[1]) for row in rows if len(row) == 2 and row[0].isdecimal()}


def read_cards(
    pid: int | None,
    ask: Ask = driver_output,
    parents_of: Callable[[], Mapping[int, int]] = process_parents,
) -> list[Card]:
    """All cards now, or those that the process ``pid`` and its children use, where the driver says so. Raises
    InputError where there is no GPU.
    """
    rows = [
        row
        for row in _comma_rows(ask(CARDS), 4)
        if row[0].isdecimal() and row[2].isdecimal() and row[3].isdecimal()
    ]
    if not rows:
        raise input_error(PROGRAM, None, "sees no GPU here")
    family = _process_family(pid, parents_of()) if pid is not None else frozenset()
    own: dict[str, int] = {}
    for number, uuid, used in _comma_rows(ask(PROCESSES), 3):
        if number.isdecimal() and used.isdecimal() and int(number) in family:
            own[uuid] = own.get(uuid, 0) + int(used) * MIB
    found = [
        Card(int(index), int(used) * MIB, int(total) * MIB, own.get(uuid))
        for index, uuid, used, total in rows
    ]
    return [card for card in found if card.own is not None] or found


def _comma_rows(text: str, width: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == width:
            yield cells


def _process_family(pid: int, parents: Mapping[int, int]) -> frozenset[int]:
    """A process and all that it started."""
    found = {pid}
    for _ in range(64):
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            break
        found |= more
    return frozenset(found)


def growth_of(samples: Sequence[tuple[float, Card]]) -> Growth | None:
    """How a card's use grows over (seconds, card); None of too few samples."""
    if len(samples) < ENOUGH:
        return None
    slope, straight = fitted_line([card.used for _, card in samples], [at for at, _ in samples])
    steady = slope > 0 and straight >= STRAIGHT
    last = samples[-1][1]
    return Growth(slope, max(0, last.total - last.used) / slope if steady else None)
