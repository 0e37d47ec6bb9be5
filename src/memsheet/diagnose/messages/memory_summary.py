"""``torch.cuda.memory_summary()``'s table: what was held, and how often the allocator failed.

Its sizes are whole units, rounded down (torch/cuda/memory.py, memory_summary's _format_size:
``sz //= 1024``).
"""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import BINARY, Interval, at_least, printed_bytes
from memsheet.diagnose.message import Message
from memsheet.frozen import replace

SIGNS = (b"PyTorch CUDA memory summary",)
_FAILED = re.compile(r"CUDAOOMs:(\d{1,9})")
_DEVICE = re.compile(r"PyTorchCUDAmemorysummary,deviceID(\d{1,4})")
_ROWS = {
    "allocated": "Allocatedmemory", "reserved": "GPUreservedmemory", "not_releasable": "Non-releasablememory",
}  # fmt: skip
_SIZE = r"(\d{1,15}(?:\.\d{1,2})?)(B|[KMGT]i?B)"
"""Without the i until PyTorch 1.12 (torch/cuda/memory.py, _format_size), and of 1,024 all the same."""
_PATTERNS = {name: re.compile(rf"{words}\|{_SIZE}\|{_SIZE}\|") for name, words in _ROWS.items()}


def _whole_units(number: str, unit: str) -> Interval:
    """What a size may be that is rounded down to whole units; one with a point is none of torch's."""
    unit = unit if unit == "B" or "i" in unit else f"{unit[0]}iB"
    if "." in number and (told := printed_bytes(number, unit)):
        return told
    number, size = number.partition(".")[0], BINARY[unit]
    return Interval(int(number) * size, (int(number) + 1) * size - 1)


def summary_facts(log: Log) -> dict[str, Interval]:
    """Now and at its highest, by row."""
    facts: dict[str, Interval] = {}
    for name, pattern in _PATTERNS.items():
        if found := pattern.search(log.squeezed):
            facts[f"summary_{name}_bytes"] = _whole_units(found[1], found[2])
            facts[f"summary_{name}_peak_bytes"] = _whole_units(found[3], found[4])
    return facts


def with_summary(message: Message, log: Log) -> Message | None:
    """A message that ends before it says what the process holds, with what a table of the same device says
    that was printed once a request had failed: tensors are let go while the error goes up, so that what
    was held when it failed lies between now and the highest. None where the message needs none, or there
    is none.
    """
    facts, said = summary_facts(log), message.facts
    device = _DEVICE.search(log.squeezed)
    of_it = device is not None and message.words.get("device", device[1]) == device[1]
    if "free" not in said and "capacity" in said and "summary_reserved_bytes" in facts:
        room = said["capacity"] - facts["summary_reserved_bytes"]
        said = {**said, "free": Interval(0, max(0, room.high))}
    short = "free" in said and "asked" in said and at_least(said["free"], said["asked"]) is False
    names = [f"summary_{name}{at}_bytes" for name in ("allocated", "reserved") for at in ("", "_peak")]
    if (
        "allocated" in said
        or not (of_it and short and failed_requests(log))
        or not facts.keys() >= set(names)
    ):
        return None
    held = {
        name: Interval(facts[f"summary_{name}_bytes"].low, facts[f"summary_{name}_peak_bytes"].high)
        for name in ("allocated", "reserved")
    }
    return replace(message, facts={**said, **held})


def failed_requests(log: Log) -> int | None:
    """How many requests failed for good; None without such a table."""
    found = _FAILED.search(log.squeezed)
    return int(found[1]) if found else None
