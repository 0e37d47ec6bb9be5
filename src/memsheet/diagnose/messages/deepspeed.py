"""DeepSpeed's memory lines: ``MA`` allocated, ``CA`` kept by the allocator, their peaks; its GB are 2^30."""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, printed_bytes
from memsheet.diagnose.message import NUMBER
from memsheet.diagnose.messages.step_lines import steady_growth

SIGNS = (b"Max_MA",)
_LINE = re.compile(
    rf"MA(?P<MA>{NUMBER})GBMax_MA(?P<Max_MA>{NUMBER})GBCA(?P<CA>{NUMBER})GBMax_CA(?P<Max_CA>{NUMBER})GB"
)
_NAMES = {"MA": "allocated_before", "CA": "reserved_before"}
_PEAKS = {"Max_MA": "allocated_peak_before", "Max_CA": "reserved_peak_before"}


def step_facts(log: Log) -> dict[str, Interval]:
    """The last line's figures, and what is kept beyond tensors there."""
    lines = list(_LINE.finditer(log.squeezed))
    if not lines:
        return {}
    last = {name: printed_bytes(lines[-1][name], "GB") for name in _NAMES}
    facts = {f"{_NAMES[name]}_bytes": size for name, size in last.items() if size is not None}
    for name, words in _PEAKS.items():
        sizes = [size for line in lines if (size := printed_bytes(line[name], "GB")) is not None]
        facts |= {f"{words}_bytes": max(sizes, key=lambda size: size.high)} if sizes else {}
    held, kept = last["MA"], last["CA"]
    return {**facts, "kept_before_bytes": (kept - held).positive} if held and kept else facts


def grows_steadily(log: Log) -> tuple[Interval, ...]:
    """What is allocated from line to line, where it has only grown by about the same; else nothing."""
    return steady_growth(
        [size for found in _LINE.finditer(log.squeezed) if (size := printed_bytes(found["MA"], "GB"))]
    )
