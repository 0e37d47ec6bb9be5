"""A pipeline stage before its pool is made: what stands on a rank, and what a token takes there."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.engines.sglang.pool import NO_CELL, Cell
from memsheet.engines.sglang.states import States
from memsheet.frozen import dataclass
from memsheet.sheet import Bytes, Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A rank of a pipeline stage before its pool is made. ``room``: bytes for the pool (None without a card);
    ``free``: what was free before loading.
    """

    items: tuple[Item, ...]
    cell: Cell
    states: States
    room: Bytes | None
    free: Bytes
    weights: Bytes
    draft: Cell = NO_CELL  # of who drafts, which has a pool of its own
    largest: Count = 0  # sequences of the largest graph
