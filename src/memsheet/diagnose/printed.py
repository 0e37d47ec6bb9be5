"""What a log prints of memory beside what the plan's sheet predicts of the same, of a run that lives too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from memsheet.diagnose.interval import Interval
from memsheet.frozen import NamedTuple
from memsheet.sheet import Bytes, Component, Sheet

if TYPE_CHECKING:
    from memsheet.budget import Answer


class Printed(NamedTuple):
    """One figure of a log by the name of its fact, and the same of the sheet: the least and the most."""

    fact: str
    words: str
    printed: Interval
    predicted: Interval
    expected_bytes: int


PREDICTED: dict[str, tuple[str, Callable[[Sheet], Bytes]]] = {
    "weights_loaded_bytes": ("weights", lambda sheet: sheet.of(Component.PARAMETERS)),
    "kv_available_bytes": ("KV cache", lambda sheet: sheet.of(Component.KV_CACHE)),
    "kv_allocated_bytes": ("KV cache", lambda sheet: sheet.of(Component.KV_CACHE)),
    "graphs_took_bytes": ("CUDA graphs", lambda sheet: sheet.of(Component.CUDA_GRAPHS)),
    "allocated_peak_before_bytes": ("most allocated", lambda sheet: sheet.allocated),
    "reserved_peak_before_bytes": ("most reserved", lambda sheet: sheet.reserved),
    "summary_allocated_peak_bytes": ("most allocated", lambda sheet: sheet.allocated),
    "summary_reserved_peak_bytes": ("most reserved", lambda sheet: sheet.reserved),
}  # fmt: skip
"""By the fact of a log."""


def printed_beside(facts: Mapping[str, Interval], answer: Answer) -> Iterator[Printed]:
    """Every figure of ``facts`` that the sheet of the worst rank has, too."""
    worst = max(answer.sheets, key=lambda sheet: sheet.device.high)
    for fact, (words, of_sheet) in PREDICTED.items():
        if fact in facts:
            size = of_sheet(worst)
            if int(size.high):
                ends = Interval(
                    *sorted((int(size.low), int(size.high)))
                )  # a cache is least where the rest is most
                yield Printed(fact, words, facts[fact], ends, int(size.value))
