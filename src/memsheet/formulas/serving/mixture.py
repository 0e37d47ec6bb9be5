"""How many requests run at once when their lengths differ: what each takes of the pool, for as long as it
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memsheet.sheet import Bytes

MEDIAN, MOST = 0.5, 0.95


def request_mix_facts(
    sequences: Callable[[int], Bytes], requests: Sequence[tuple[int, int]], limit: int
) -> Mapping[str, Any]:
    """Facts of a mix of (prompt, answer) lengths. ``sequences``: how many of one length have room.

    A request takes a share of the pool, one over the number of its like that have room; it takes it for as
    many steps as its answer has tokens, and is half done on average. What runs at once is the whole pool over
    the mean share, weighted by steps (Little's law).
    """
    ends = sorted(prompt + answer for prompt, answer in requests)
    steps = [max(1, answer) for _, answer in requests]
    middles = [sequences(max(1, prompt + answer // 2)) for prompt, answer in requests]
    low, value = (
        _concurrent_requests([getattr(room, end) for room in middles], steps) for end in ("low", "value")
    )
    longest = int(sequences(max(1, ends[-1])).value)
    return {
        "requests": len(requests), "median_tokens": _length_percentile(ends, MEDIAN), "most_tokens": _length_percentile(ends, MOST), "longest_tokens": ends[-1],
        "expected": min(limit, value), "expected_low": min(limit, low), "worst": min(limit, longest), "limit": limit,
    }  # fmt: skip


def _concurrent_requests(rooms: Sequence[int], steps: Sequence[int]) -> int:
    """Requests at once where each kind has room for so many; none where one of them has room for none."""
    if not all(rooms):
        return 0
    return int(sum(steps) / sum(step / room for step, room in zip(steps, rooms, strict=True)))


def _length_percentile(ends: Sequence[int], share: float) -> int:
    """The length that so many requests do not exceed."""
    return ends[min(len(ends) - 1, int(share * len(ends)))]
