"""The figures of one message of an allocator, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.diagnose.interval import NOTHING, Interval, sum_intervals
from memsheet.diagnose.message import Message
from memsheet.frozen import dataclass, field
from memsheet.units import GIB

PAGE = 2 * 2**20
"""The driver hands out whole pages of 2 MiB (c10/cuda/CUDACachingAllocator.h, kSmallBuffer and kRoundLarge).
"""
OUTSIDE_LEAST = 3 * GIB // 10
"""The low end of a context, likewise."""
OUTSIDE_MOST = 3 * GIB
"""The most that a usual process has outside the allocator: the high ends of a context and of a few
communicators (catalog/overheads.toml: 1 GiB, 1.5 GiB each of buffers made on use).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Bytes: asked, of the card, free, of this process, of others; allocated, kept beyond that, allowed.

    ``reserved`` = allocated + unallocated; ``outside`` = process - reserved; ``unseen`` = what of the card
    nobody is named for. None where the message says nothing from which it follows.
    """

    asked: Interval
    capacity: Interval | None = None
    free: Interval | None = None
    process: Interval | None = None
    others: tuple[tuple[int, Interval], ...] = ()
    allocated: Interval | None = None
    private_pools: Interval | None = None
    unallocated: Interval | None = None
    allowed: Interval | None = None
    reserved: Interval | None = None
    outside: Interval | None = None
    unseen: Interval | None = None
    free_is_said: bool = True
    names: Mapping[int, str] = field(default_factory=dict)
    """What processes are called, where a table says it."""
    unsized: bool = False
    """Whether a process is named of which the driver does not say what it holds."""

    def process_words(self, pid: int) -> str:
        """A process by its number and its name, where it is known; without a number by its user."""
        if pid < 0:
            return f"of {self.names[pid]}'s"
        return f"{pid} ({self.names[pid]})" if self.names.get(pid) else str(pid)

    @property
    def others_total(self) -> Interval:
        return sum_intervals(size for _, size in self.others)


def read_figures(message: Message) -> Figures | None:
    """The figures; None where the message does not say what was asked for."""
    said = message.facts
    asked = said.get("asked")
    if asked is None:
        return None
    allocated, unallocated, reserved = (said.get(each) for each in ("allocated", "unallocated", "reserved"))
    if reserved is not None and allocated is not None:
        unallocated = (reserved - allocated).positive
    elif allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
    elif allocated is not None and "other_allocations" in said:  # MPS counts those of its system, too
        reserved = allocated + said["other_allocations"]
    capacity, free = said.get("capacity"), said.get("free")
    process, others = own_process(said.get("process"), message.processes, reserved)
    free_is_said = free is not None
    if free is None and capacity is not None and reserved is not None:
        free = Interval(0, max(0, capacity.high - reserved.low))
    if unallocated is None and None not in (allocated, capacity, free) and "reserved" not in said:
        unallocated = Interval(0, max(0, capacity.high - allocated.low - free.low))  # type: ignore[union-attr]
    if unallocated is None and free_is_said and capacity is not None and free is not None:
        held = (
            process or (capacity - free).positive
        )  # a message that ends early says neither tensors nor the rest
        unallocated = Interval(0, max(0, held.high))
    outside = process - reserved if process is not None and reserved is not None else None
    unseen = None
    if capacity is not None and free is not None and free_is_said and process is not None:
        unseen = (capacity - free - process - sum_intervals(size for _, size in others)).positive
    return Figures(
        asked=asked, capacity=capacity, free=free, process=process, others=others, allocated=allocated,
        private_pools=said.get("private_pools"), unallocated=unallocated, allowed=said.get("allowed"),
        reserved=reserved, outside=outside, unseen=unseen, free_is_said=free_is_said, unsized="unsized" in message.words,
    )  # fmt: skip


def own_process(
    own: Interval | None, processes: tuple[tuple[int, Interval], ...], reserved: Interval | None
) -> tuple[Interval | None, tuple[tuple[int, Interval], ...]]:
    """The process itself and the others: a container sees itself under the number that its host gives it, by
    what it keeps and a context.
    """
    if own is not None or reserved is None:
        return own, processes
    near = [
        (size.low - reserved.low, pid)
        for pid, size in processes
        if size.high >= reserved.low and size.low - reserved.high <= OUTSIDE_MOST
    ]
    if not near or reserved == NOTHING:
        return None, processes
    _, mine = min(near)
    return dict(processes)[mine], tuple((pid, size) for pid, size in processes if pid != mine)


def aligned_bytes(asked: Interval) -> Interval:
    """What the driver has to have free for a request: whole pages."""
    return Interval(asked.low, -(-asked.high // PAGE) * PAGE)


def figure_facts(figures: Figures) -> dict[str, Interval]:
    """What is known, by the names of the document."""
    named = {
        "asked": figures.asked, "capacity": figures.capacity, "free": figures.free if figures.free_is_said else None,
        "process": figures.process, "allocated": figures.allocated, "private_pools": figures.private_pools,
        "unallocated": figures.unallocated, "reserved": figures.reserved, "allowed": figures.allowed,
        "outside_allocator": figures.outside, "unseen": figures.unseen,
        "other_processes": figures.others_total if figures.others else None,
    }  # fmt: skip
    return {f"{name}_bytes": size.positive for name, size in named.items() if size is not None}
