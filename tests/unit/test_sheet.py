"""The arithmetic of sizes with ranges."""

from __future__ import annotations

import pytest

from memsheet.sheet import Bytes


@pytest.mark.parametrize("left", [Bytes(0, 3, 9), Bytes(4, 4, 4), Bytes(0, 0, 0)])
@pytest.mark.parametrize("right", [Bytes(0, 5, 5), Bytes(2, 3, 8), Bytes(4, 4, 4)])
def test_the_larger_of_two_ranges_is_larger_at_either_end(left: Bytes, right: Bytes) -> None:
    """Whatever the two sizes are within their ranges, the larger is within the range, and the order does not
    matter.
    """
    found = left.max(right)
    assert found == right.max(left)
    assert found.low <= found.value <= found.high
    for one in (left.low, left.value, left.high):
        for other in (right.low, right.value, right.high):
            assert found.low <= max(one, other) <= found.high
