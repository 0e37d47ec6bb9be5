"""What an engine keeps on a rank through a step, however it divides states, and what it moves to the host."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.arith import Count
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Key, merge_moment
from memsheet.frozen import dataclass, field, replace
from memsheet.units import format_bytes

DUMMY_WGRAD = "dummy_wgrad"
"""The path of what modules' first backward leaves for good."""


@dataclass(frozen=True, slots=True)
class Host:
    """Host memory of one rank: pinned buffers one by one, and pageable bytes."""

    pinned: tuple[Count, ...] = ()
    pageable: Count = 0

    @property
    def bytes(self) -> Count:
        """As requested."""
        return sum(self.pinned) + self.pageable

    @property
    def high_bytes(self) -> int:
        """With every pinned buffer rounded up to a power of two, as torch's pinned allocator does
        (CachingHostAllocator.h:300-309).
        """
        return int(self.pageable) + sum(1 << (int(size) - 1).bit_length() for size in self.pinned if size)

    @property
    def notes(self) -> tuple[str, ...]:
        """A word on the rounding, where it costs something."""
        if not all(isinstance(size, int) for size in self.pinned) or self.high_bytes == self.bytes:
            return ()
        return (
            (
                "host memory is as requested; torch rounds pinned buffers up to powers of two: up to "
                f"{format_bytes(self.high_bytes)} a rank"
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResidentState:
    """``states``: at every instant. ``resident``: gradients (and their buffers) of earlier micro-batches
    while the next one runs. ``at_step``: gradients and scratch at the optimizer's step. ``ranges``: (low,
    high) of what was derived and is not exactly known. ``gradients``: those that are not among the states, as
    they stand when backward has ended: no instant's high-water mark need show them whole. ``paged``: states
    in memory that driver and host share, outside torch's allocator.
    """

    states: BytesByPath
    around: ShardingOverhead
    resident: BytesByPath
    at_step: BytesByPath
    gradients: BytesByPath = EMPTY
    host: Host = Host()
    paged: Count = 0
    ranges: Mapping[Key, tuple[Count, Count]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def with_hosted_activations(kept: ResidentState, stage: StageLayers) -> ResidentState:
    """With what waits for backward on the host, beside the states that lie there."""
    return replace(kept, host=replace(kept.host, pinned=(*kept.host.pinned, *stage.hosted())))


def with_added_states(kept: ResidentState, rows: BytesByPath) -> ResidentState:
    """With other rows beside the states: what a micro-batch is made of."""
    return replace(kept, states=merge_moment([(1, kept.states), (1, rows)]))
