"""``torch.cuda.memory_summary()``'s table: what was held, and how often the allocator failed."""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, printed_bytes

SIGNS = (b"PyTorch CUDA memory summary",)
_FAILED = re.compile(r"CUDAOOMs:(\d{1,9})")
_ROWS = {
    "allocated": "Allocatedmemory", "reserved": "GPUreservedmemory", "not_releasable": "Non-releasablememory",
}  # fmt: skip
_SIZE = r"(\d{1,15}(?:\.\d{1,2})?)(B|KiB|MiB|GiB|TiB)"
_PATTERNS = {name: re.compile(rf"{words}\|{_SIZE}\|{_SIZE}\|") for name, words in _ROWS.items()}


def summary_facts(log: Log) -> dict[str, Interval]:
    """Now and at its highest, by row."""
    facts: dict[str, Interval] = {}
    for name, pattern in _PATTERNS.items():
        if found := pattern.search(log.squeezed):
            now, peak = printed_bytes(found[1], found[2]), printed_bytes(found[3], found[4])
            facts |= {f"summary_{name}_bytes": now} if now else {}
            facts |= {f"summary_{name}_peak_bytes": peak} if peak else {}
    return facts


def failed_requests(log: Log) -> int | None:
    """How many requests failed for good; None without such a table."""
    found = _FAILED.search(log.squeezed)
    return int(found[1]) if found else None
