"""What a training step leaves behind, step after step: growth at the same place of each is a leak, and memory
that holds no tensor even at the peak lies in pieces. Each is told once, with its cause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from memsheet.arith import fitted_line
from memsheet.units import MIB, format_bytes

WARM, ENOUGH = 2, 8
"""First steps, in which states and workspaces are made; steps of growth that are no accident."""
STRAIGHT = 0.9
"""R² of a line through what steps leave behind, from which growth is steady."""
WORTH_TELLING = 200
"""Growth over the steps in sight is told from one part in so many of what there is room for."""
PIECES, NEARLY_FULL = (3, 10), (9, 10)
"""The share of segments without tensors at the peak, and the share of room in segments, that are told."""


class StepWatch:
    """The counters at the ends of steps, of ``gpu_memory_counters``."""

    def __init__(self) -> None:
        self.left: deque[int] = deque(maxlen=4 * ENOUGH)
        self.steps = 0
        self.told: set[str] = set()

    def warnings_of_step(self, gpu: Mapping[str, int]) -> Iterator[str]:
        """What is to be told after one more step: nothing, mostly."""
        self.steps += 1
        if self.steps > WARM:
            self.left.append(gpu["allocated"])
        for name, line in (("leak", self._leak_line(gpu)), ("pieces", self._pieces_line(gpu))):
            if line and name not in self.told:
                self.told.add(name)
                yield line

    def _leak_line(self, gpu: Mapping[str, int]) -> str:
        slope, straight = fitted_line(self.left) if len(self.left) >= ENOUGH else (0.0, 0.0)
        if slope <= 0 or straight < STRAIGHT or slope * len(self.left) * WORTH_TELLING < gpu["room"]:
            return ""
        more = max(0, gpu["room"] - gpu["peak_reserved"])
        return (
            f"what outlives a step grows by {format_bytes(int(slope))} a step: tensors are kept from step to "
            f"step (a loss that is summed with its graph, outputs in a list); at this rate memory is full in "
            f"some {int(more / slope):,} steps"
        )

    def _pieces_line(self, gpu: Mapping[str, int]) -> str:
        reserved, idle = gpu["peak_reserved"], gpu["peak_reserved"] - gpu["peak_allocated"]
        full = reserved * NEARLY_FULL[1] >= gpu["room"] * NEARLY_FULL[0]
        if self.steps <= WARM or not full or idle < MIB or idle * PIECES[1] < reserved * PIECES[0]:
            return ""
        return (
            f"{format_bytes(idle)} of {format_bytes(reserved)} in segments hold no tensor even at the peak, "
            f"and the card is nearly full: memory lies in pieces; PYTORCH_CUDA_ALLOC_CONF="
            f"expandable_segments:True merges them"
        )
