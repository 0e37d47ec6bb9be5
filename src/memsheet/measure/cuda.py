"""What a CUDA device really allocated, by its caching allocator's own counters, read and set back where the step says it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memsheet.sheet import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """High-water marks of the last step's instants, in bytes. ``allocated`` in the allocator's blocks; ``device``: what the driver gave
    away in all, other processes included.
    """

    allocated: dict[str, int]
    reserved: dict[str, int]
    device: int


def counted(run: Callable[[Callable[[Instant | None], None]], None], cuda: Any) -> Counted:
    """Call ``run``, which says where it is; after None nothing counts. ``cuda``: ``torch.cuda``.

    The allocator counts when a tensor is asked for, on the host, so the device need not be waited for.
    """
    allocated, reserved = dict[str, int](), dict[str, int]()
    now: list[Instant] = []

    def at(instant: Instant | None) -> None:
        if now:
            name = now.pop().value
            allocated[name] = max(allocated.get(name, 0), cuda.max_memory_allocated())
            reserved[name] = max(reserved.get(name, 0), cuda.max_memory_reserved())
        if instant is Instant.LOAD:  # a step that begins anew forgets the one before
            allocated.clear()
            reserved.clear()
        if instant is not None:
            now.append(instant)
        cuda.reset_peak_memory_stats()

    run(at)
    at(None)
    free, total = cuda.mem_get_info()
    return Counted(allocated=allocated, reserved=reserved, device=total - free)
