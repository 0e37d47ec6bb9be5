"""PyTorch's allocator, in the words of all its releases: CUDA, HIP, XPU, NPU, MPS, and the driver's own pool.

The sentences are those of c10/cuda/CUDACachingAllocator.cpp: until 2.0 all figures in brackets, since 2.1 a
sentence a figure, since 2.4 private pools apart. Figures are ``format_size``'s, two digits behind the point.
Cambricon/torch_mlu (torch_mlu/csrc/framework/core/caching_allocator.cpp) and MooreThreads/torch_musa
(torch_musa/csrc/core/MUSACachingAllocator.cpp) say the same of their devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, printed_bytes
from memsheet.diagnose.message import NUMBER, UNIT, Message

SIGNS = (
    b"out of memory", b"Tried to allocate", b"would exceed allowed memory", b"OutOfMemoryError",
)  # fmt: skip
KIND = "allocator"
TRIED, NEAR = "Triedtoallocate", 400
"""The words before the size, and how far behind a message's first words they stand at the most."""
_START = re.compile(
    r"(?P<who>CUDA|HIP|XPU|NPU|MLU|MUSA|MPSbackend)outofmemory(?=[.(]|$)"
    r"|Allocationondevice\d{0,4}(?:wouldexceedallowedmemory)?\.?\(?(?=outofmemory)"
    rf"|{TRIED}(?=\d)"
)
_SIZE = rf"({NUMBER})({UNIT})"
_MODERN = {
    "asked": re.compile(f"Triedtoallocate{_SIZE}"),
    "capacity": re.compile(f"hasatotalcapac(?:ity|ty)of{_SIZE}"),
    "free": re.compile(f"ofwhich{_SIZE}isfree"),
    "process": re.compile(f"thisprocesshas{_SIZE}memoryinuse"),
    "allowed": re.compile(f"{_SIZE}allowed;"),
    "allocated": re.compile(f"Oftheallocatedmemory{_SIZE}isallocated"),
    "private_pools": re.compile(f"with{_SIZE}allocatedinprivatepools"),
    "unallocated": re.compile(
        rf"{_SIZE}isreservedbyPyTorchbutunallocated|allocatedbyPyTorch,(?:with\S{{1,80}}?\),)?and{_SIZE}is"
    ),
}
_BRACKETS = {
    "asked": re.compile(f"Triedtoallocate{_SIZE}"),
    "capacity": re.compile(f"{_SIZE}totalcap"),
    "allocated": re.compile(f"{_SIZE}alreadyallocated"),
    "free": re.compile(f"{_SIZE}free[;)]"),
    "allowed": re.compile(f"{_SIZE}allowed;"),
    "reserved": re.compile(f"{_SIZE}reservedintotal"),
    "cached": re.compile(rf"{_SIZE}cached\)"),
}
_MPS = {
    "asked": re.compile(f"Triedtoallocate{_SIZE}"),
    "allocated": re.compile(f"MPSallocated:{_SIZE}"),
    "other_allocations": re.compile(f"otherallocations:{_SIZE}"),
    "allowed": re.compile(f"maxallowed:{_SIZE}"),
}
_DRIVER_POOL = {
    "allocated": re.compile(f"Currentlyallocated:{_SIZE}"),
    "asked": re.compile(f"Requested:{_SIZE}"),
    "capacity": re.compile(f"Devicelimit:{_SIZE}"),
    "free": re.compile(rf"Free\(accordingtoCUDA\):{_SIZE}"),
    "allowed": re.compile(rf"PyTorchlimit\(setbyuser-suppliedmemoryfraction\):{_SIZE}"),
}
_PROCESS = re.compile(rf"Process(\d{{1,10}})has{_SIZE}memoryinuse")
_DEVICE = re.compile(r"(?:GPU|NPU|XPU|MLU)(\d{1,4})(?:hasatotal|;)")
_CUT = re.compile(rf"\((?:GPU|NPU|XPU|MLU)\d{{1,4}};{_SIZE}totalcap(?!acity)")
"""A message in brackets that ends within the name of its first figure."""
REACH = 6000
"""Letters after its beginning within which a message ends: some thirty processes are named in so many."""
IN_WARNING = re.compile(r"(?:User|Runtime)Warning:[^:]{0,120}$")


def allocator_messages(log: Log) -> Iterator[Message]:
    """Every message of an allocator, in order."""
    starts = list(_message_starts(log.squeezed))
    for number, found in enumerate(starts):
        end = starts[number + 1].start() if number + 1 < len(starts) else len(log.squeezed)
        yield _read_message(log.squeezed[found.start() : min(end, found.start() + REACH)], log, found)


def _message_starts(text: str) -> Iterator[re.Match[str]]:
    """Where messages begin: by their first words, or, of those that are cut in front, by the size."""
    without_size = -NEAR
    for found in _START.finditer(text):
        is_size = found.group() == TRIED
        if is_size and found.start() - without_size < NEAR:
            without_size = -NEAR
            continue
        yield found
        without_size = -NEAR if is_size else found.start()


def _read_message(text: str, log: Log, found: re.Match[str]) -> Message:
    who = found["who"] or ""
    fields = (
        _MPS if who.startswith("MPS") else _DRIVER_POOL if "Currentlyallocated:" in text
        else _BRACKETS if "totalcapacity;" in text or _CUT.search(text) else _MODERN
    )  # fmt: skip
    facts: dict[str, Interval] = {}
    for name, pattern in fields.items():
        said = pattern.search(text)
        if said and (size := printed_bytes(*[each for each in said.groups() if each][:2])) is not None:
            facts[name] = size
    processes = tuple(
        (int(pid), size)
        for pid, number, unit in _PROCESS.findall(text)
        if (size := printed_bytes(number, unit)) is not None
    )
    words = {"who": who or "CUDA"}
    if len(processes) < len(_PROCESS.findall(text)):
        words["unsized"] = "yes"
    if device := _DEVICE.search(text[:400]):
        words["device"] = device[1]
    if IN_WARNING.search(log.squeezed, max(0, found.start() - 300), found.start()):
        words["warning"] = "yes"
    return Message(
        kind=KIND,
        line=log.line_at(found.start()),
        facts=_with_cached(facts),
        words=words,
        processes=processes,
    )


def _with_cached(facts: dict[str, Interval]) -> dict[str, Interval]:
    """What releases until 1.3 call cached: what is kept beyond tensors; where the card could not hold that
    beside the tensors, all that is kept.
    """
    cached = facts.pop("cached", None)
    if cached is None:
        return facts
    allocated, free, capacity = (facts.get(name) for name in ("allocated", "free", "capacity"))
    total = allocated and free and capacity and (allocated + cached + free).low > capacity.high
    return {**facts, "reserved": cached} if total else {**facts, "unallocated": cached}
