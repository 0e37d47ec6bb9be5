"""``memsheet.patterns.late_pattern`` does what ``re.compile`` does, later."""

from __future__ import annotations

import re

import pytest

from memsheet.patterns import late_pattern

TEXT = "one 1, two 22, Three 333"


@pytest.mark.parametrize("flags", [0, re.IGNORECASE, re.MULTILINE | re.ASCII])
def test_it_answers_as_the_library_does(flags: int) -> None:
    late, known = (make(r"(?P<word>[a-z]+) (\d+)", flags) for make in (late_pattern, re.compile))
    for _ in range(2):  # the first time it is compiled
        assert late.findall(TEXT) == known.findall(TEXT)
        assert [found["word"] for found in late.finditer(TEXT)] == [
            found["word"] for found in known.finditer(TEXT)
        ]
        assert late.sub(r"\2", TEXT) == known.sub(r"\2", TEXT)
    assert (late.pattern, late.flags, dict(late.groupindex)) == (
        known.pattern,
        known.flags,
        dict(known.groupindex),
    )


def test_it_is_compiled_when_it_is_asked() -> None:
    wrong = late_pattern("(")
    with pytest.raises(re.error):
        wrong.search(TEXT)
