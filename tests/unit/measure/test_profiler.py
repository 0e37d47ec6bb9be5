"""What a processor's profiler heard, as high-water marks."""

from hypothesis import given
from hypothesis import strategies as st

from memsheet.measure.profiler import _Allocation, _peaks_between_marks
from memsheet.sheet import Instant

MARKS = [(0, Instant.LOAD.value), (100, Instant.FORWARD.value), (200, "end")]


@given(
    lives=st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99), st.integers(1, 10**9)), max_size=20),
    strays=st.lists(st.tuples(st.integers(1, 199), st.integers(1, 10**9)), max_size=5),
)
def test_what_was_there_before_counts_neither_while_it_stays_nor_when_it_goes(lives, strays):
    """Garbage of an earlier run is collected at any moment of this one."""
    own = [
        event
        for number, (start, length, size) in enumerate(lives)
        for event in (
            _Allocation(start, size, number, "aten::add"),
            _Allocation(start + length, -size, number, ""),
        )
    ]
    others = [_Allocation(at, -size, -1 - number, "") for number, (at, size) in enumerate(strays)]

    def peaks(allocations):
        return _peaks_between_marks(sorted(allocations, key=lambda one: one.at), MARKS)

    assert peaks([*own, *others]).tops == peaks(own).tops
    assert peaks([*own, *others]).instants.items() >= peaks(own).instants.items()
    assert all(size >= 0 for size in peaks([*own, *others]).instants.values())


def test_a_place_given_anew_holds_what_was_put_there_last():
    heard = [_Allocation(1, 8, 7, "aten::add"), _Allocation(2, 4, 7, "aten::mul"), _Allocation(3, -4, 7, "")]
    found = _peaks_between_marks(heard, MARKS)
    assert found.instants == {Instant.LOAD.value: 8}
    assert found.tops == {Instant.LOAD.value: (("aten::add", 8),)}
