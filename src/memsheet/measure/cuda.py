"""What a CUDA device really allocated, by its caching allocator's own counters, read and set back where the
step says it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memsheet.frozen import dataclass
from memsheet.measure.environment import process_bytes
from memsheet.sheet import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantPeaks:
    """High-water marks of the last step's instants, in bytes: as ``requested``, in the allocator's blocks, in
    its segments.

    ``device``: what the driver gave away in all, other processes included; ``process``: what NVML says is
    this process's, None where it cannot tell.
    """

    requested: dict[str, int]
    allocated: dict[str, int]
    reserved: dict[str, int]
    device: int
    process: int | None

    @property
    def facts(self) -> dict[str, Any]:
        """As plain values, by the names that a measured answer has for them."""
        return {
            "instants": self.allocated, "requested": self.requested, "reserved": self.reserved, "device_bytes": self.device,
            "process_bytes": self.process,
        }  # fmt: skip


STATS = {
    "requested": "requested_bytes.all.peak",
    "allocated": "allocated_bytes.all.peak",
    "reserved": "reserved_bytes.all.peak",
}
"""Ours → torch.cuda.memory_stats' (torch/cuda/memory.py)."""


def count_cuda_peaks(
    run: Callable[[Callable[[Instant | None], None]], None],
    cuda: Any,
    process_bytes: Callable[[int], int | None] = process_bytes,
) -> InstantPeaks:
    """Call ``run``, which says where it is; after None nothing counts. ``cuda``: ``torch.cuda``.

    The allocator counts when a tensor is asked for, on the host, so the device need not be waited for.
    """
    peaks: dict[str, dict[str, int]] = {ours: {} for ours in STATS}
    now: list[Instant] = []

    def at(instant: Instant | None) -> None:
        if now:
            name, stats = now.pop().value, cuda.memory_stats()
            for ours, theirs in STATS.items():
                peaks[ours][name] = max(peaks[ours].get(name, 0), stats[theirs])
        if instant is Instant.LOAD:  # a step that begins anew forgets the one before
            for row in peaks.values():
                row.clear()
        if instant is not None:
            now.append(instant)
        cuda.reset_peak_memory_stats()

    run(at)
    at(None)
    free, total = cuda.mem_get_info()
    return InstantPeaks(**peaks, device=total - free, process=process_bytes(cuda.current_device()))


def clear_cuda_caches(cuda: Any) -> None:
    """Nothing of an earlier run is left in the allocator: neither cached segments nor cuBLAS' workspaces."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    cuda.empty_cache()
