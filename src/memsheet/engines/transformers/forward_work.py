"""What a forward of a generation works on."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.frozen import dataclass
from memsheet.plan.workload import PassShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One forward: ``tokens`` of each of ``sequences`` enter; ``cached`` lie in each one's cache, these
    included; 0 while prompts are read.

    ``memory``: tokens that cross-attention reads; ``growing``: with the copy of a layer's cache that its
    growth takes.
    """

    sequences: Count
    tokens: Count
    cached: Count = 0
    memory: Count = 0
    growing: bool = False

    @property
    def shape(self) -> PassShape:
        """What enters the layers."""
        return PassShape(sequences=self.sequences, tokens=self.tokens)
