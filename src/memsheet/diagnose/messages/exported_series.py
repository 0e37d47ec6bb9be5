"""What of a card was held over a run, in the columns of an export: of W&B's, Comet's and MLflow's system
metrics, of nvidia-smi's own log, of a script's CSV.

W&B says ``system/gpu.0.memoryAllocatedBytes`` in bytes and ``…memoryAllocated`` in percent of the card
(docs.wandb.ai, System metrics); MLflow ``system/gpu_0_memory_usage_megabytes`` and
``…_percentage`` (mlflow/mlflow 12cb58df system_metrics/metrics/gpu_monitor.py); nvidia-smi --query-gpu
``memory.used [MiB]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.columns import Row, rows_of_tables
from memsheet.diagnose.interval import BINARY, Interval, printed_bytes
from memsheet.diagnose.messages.stated import card_of
from memsheet.diagnose.messages.step_lines import steady_growth
from memsheet.patterns import late_pattern

_HELD = late_pattern(
    r"(?=.*mem|.*vram)(?=.*(?:gpu|cuda|vram|device|alloc|reserv|memory[._ ]used))(?!.*(?:peak|max|free|total|clock|host|cpu|process|time|util|access))",
    re.IGNORECASE,
)  # fmt: skip
"""A column's name that is of what a card holds."""
_CLOCK = late_pattern(
    r"step|time|epoch|iter|batch|second|minute|hour|index|^_?(?:runtime|t|s)$", re.IGNORECASE
)
_UNIT = late_pattern(r"(?<![a-z])(bytes|[kmgt]i?b|mega|giga)(?:ytes|bytes)?(?![a-z])|(?<=Allocated)Bytes")
_PERCENT = late_pattern(r"%|percent|memoryAllocated\"?$")
_WHOLE = re.compile(
    r"hasatotalcapac(?:ity|ty)of(\d{1,6}(?:\.\d{1,2})?)(GiB|MiB)|(\d{1,6}\.\d{1,2})(GiB)totalcapacity"
)
_CELL = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)\s?(%|[KMGT]i?B|bytes)?$", re.IGNORECASE)


def exported_growth(log: Log) -> tuple[Interval, ...]:
    """What one card held from row to row of a table, where it only grew; else nothing."""
    columns: dict[str, list[str]] = {}
    for row in (*rows_of_tables(log.lines), *_records(log.lines)):
        if any(_CLOCK.search(name) for name in row.cells):
            for name in _held_columns(row):
                columns.setdefault(name, []).append(row.cells[name])
    whole = _whole_card(log)
    told = (steady_growth(_sizes_of(name, cells, whole)) for name, cells in columns.items())
    return next((sizes for sizes in told if sizes), ()) or steady_growth(_sizes_by_clock(log.lines))


def _records(lines: Sequence[str]) -> Iterator[Row]:
    """Lines that are JSON objects of figures, as a tracker's history has them."""
    for number, line in enumerate(lines):
        if line[:1] != "{" or line[-1:] != "}" or len(line) > LONGEST_RECORD:
            continue
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        yield Row(number, {name: str(cell) for name, cell in said.items() if isinstance(cell, int | float)})


def _sizes_by_clock(lines: Sequence[str]) -> list[Interval]:
    """Figures that somebody wrote down with the time of each, and of nothing but the card."""
    rows = [found for line in lines if (found := _BY_CLOCK.match(line))]
    if not rows or any(_OF_HOST.search(line) for line in lines):
        return []
    told = (printed_bytes(row[1], f"{row[2][0]}iB") for row in rows)
    return [size for size in told if size is not None]


def _held_columns(row: Row) -> list[str]:
    return [name for name in row.cells if _HELD.match(name) and not _CLOCK.match(name)]


def _whole_card(log: Log) -> Interval | None:
    """What the card has, by its allocator's message or by its name."""
    if said := _WHOLE.search(log.squeezed):
        return printed_bytes(said[1] or said[3], said[2] or said[4])
    card = card_of(log)
    return Interval(card.sizes[0], card.most) if card else None


def _sizes_of(name: str, cells: list[str], whole: Interval | None) -> list[Interval]:
    """A column's figures as bytes: those without a unit of their own have the name's."""
    unit, sizes = _UNIT.search(name.lower()) or _UNIT.search(name), []
    for cell in cells:
        if not (found := _CELL.match(cell)):
            return []
        of_cell = found[2] or ("%" if _PERCENT.search(name) else _unit_called(unit.group() if unit else ""))
        if of_cell == "%" and whole is not None:
            sizes.append(whole.times(round(float(found[1]) * 100), 10_000))
        elif size := printed_bytes(found[1], of_cell) if of_cell.lower() in _UNITS else None:
            sizes.append(size)
        else:
            return []
    return sizes


LONGEST_RECORD = 16 * 2**10
_BY_CLOCK = re.compile(
    r"\s{0,8}\[?\d{1,2}[:h]\d{2}(?::\d{2})?\]?\s{0,3}(?:[-|:,=>→]{1,2}\s{0,3})?(\d{1,6}(?:\.\d{1,3})?)\s?([GM])(?:i?B)?\s{0,3}(?:/\s?\d{1,6}\s?[GM]?(?:i?B)?)?\s*$"
)  # fmt: skip
_OF_HOST = late_pattern(r"\bRSS\b|\bRAM\b|\bhost\b|\bdisk\b|\bcpu\b", re.IGNORECASE)
_UNITS = frozenset(unit.lower() for unit in BINARY)


def _unit_called(said: str) -> str:
    """A unit as a name has it: nothing where it has none."""
    word = said.lower()
    return "MiB" if word.startswith("mega") else "GiB" if word.startswith("giga") else word
