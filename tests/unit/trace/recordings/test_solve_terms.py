"""Bytes as exact functions of sequences and tokens."""

from hypothesis import given
from hypothesis import strategies as st

from memsheet.trace.recordings.record import ONE, SEVERAL
from memsheet.trace.recordings.solve import POWERS, bytes_of, solve_terms

terms = st.lists(
    st.tuples(st.integers(1, 2**20), st.sampled_from(POWERS)),
    min_size=1,
    max_size=2,
    unique_by=lambda t: t[1],
)


@given(terms=terms, size=st.tuples(st.integers(2, 64), st.integers(1, 2**17)))
def test_a_sum_of_two_products_is_found_again_and_holds_everywhere(terms, size):
    asked = tuple((factor, *power) for factor, power in terms)
    found = solve_terms(SEVERAL, [bytes_of(asked, one) for one in SEVERAL])
    assert found is not None
    assert bytes_of(found, size) == bytes_of(asked, size)


@given(terms=terms, tokens=st.integers(1, 2**17))
def test_of_one_sequence_too(terms, tokens):
    asked = tuple((factor, *power) for factor, power in terms)
    found = solve_terms(ONE, [bytes_of(asked, one) for one in ONE])
    assert found is not None
    assert bytes_of(found, (1, tokens)) == bytes_of(asked, (1, tokens))


@given(step=st.integers(1, 2**16), over=st.sampled_from(range(len(SEVERAL))))
def test_what_is_off_at_any_one_size_is_no_such_function(step, over):
    sizes = [64 * b * s for b, s in SEVERAL]
    sizes[over] += step
    found = solve_terms(SEVERAL, sizes)
    assert found is None or len(found) > 1
