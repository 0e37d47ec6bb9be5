"""The smallest device on which a timeline's allocations survive."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.allocator.replay import DEFAULT, NOTHING_HELD, Death, replay_timeline
from memsheet.allocator.settings import Settings
from memsheet.frozen import dataclass
from memsheet.timeline import Timeline
from memsheet.units import MIB

STEP = 2 * MIB
"""The sizes of segments and pages are multiples of it by default: a capacity between two multiples serves no
more than the lower.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The allocations survive in ``bytes``; in 2 MiB less they die of ``below``, which is None if they need
    nothing at all.
    """

    bytes: int
    below: Death | None


def smallest_capacity(
    timeline: Timeline, settings: Settings = DEFAULT, *, held: Mapping[int, int] = NOTHING_HELD
) -> Capacity:
    """A capacity, in multiples of 2 MiB, that suffices while 2 MiB less does not, found by bisection.

    It lies between the bytes asked for at the peak, below which nothing can survive, and what an allocator
    reserves that is never short of memory, from where on nothing can die. Between the two, survival is not
    monotone: what is returned to the device, and so where later blocks lie, depends on when memory first runs
    out. A still smaller capacity may then suffice, and one between the found and the largest may not; the two
    facts reported were both replayed.
    """
    free = replay_timeline(timeline, settings, held=held)
    low = (free.requested_peak_bytes - 1) // STEP  # in steps: at ``low`` it dies, at ``high`` it survives
    high = -(-free.reserved_peak_bytes // STEP)
    while replay_timeline(
        timeline, settings, high * STEP, held=held
    ).died:  # a memory fraction leaves less than the device has
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if replay_timeline(timeline, settings, middle * STEP, held=held).died:
            low = middle
        else:
            high = middle
    return Capacity(
        bytes=high * STEP,
        below=replay_timeline(timeline, settings, low * STEP, held=held).died if high else None,
    )
