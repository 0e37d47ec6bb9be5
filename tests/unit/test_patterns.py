"""``memsheet.patterns.late_pattern`` does what ``re.compile`` does, later."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsheet
from memsheet.patterns import LatePattern, late_pattern

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


def test_a_text_without_what_matches_hold_is_answered_without_the_pattern() -> None:
    guarded, known = late_pattern("[a-z]+ ?sh", holds=("sh",)), re.compile("[a-z]+ ?sh")
    for text in ("nothing", "a shell sh", "SH"):
        assert guarded.findall(text) == known.findall(text)
        assert [found[0] for found in guarded.finditer(text)] == known.findall(text)
        assert guarded.sub("-", text) == known.sub("-", text)
        for ask in ("search", "match", "fullmatch"):
            assert bool(getattr(guarded, ask)(text)) == bool(getattr(known, ask)(text))
    assert late_pattern("(", holds=("sh",)).search("nothing") is None  # which no pattern could
    assert late_pattern("ray", re.IGNORECASE, holds=("ray",)).search("a RAY") is not None


def _guarded_patterns() -> Iterator[LatePattern]:
    """Every one of the package's."""
    root = Path(memsheet.__file__).parent
    for file in sorted(root.rglob("*.py")):
        if "holds=" in file.read_text(encoding="utf-8") and file.name != "patterns.py":
            import_module(".".join(("memsheet", *file.relative_to(root).with_suffix("").parts)))
    yield from (one for one in gc.get_objects() if type(one) is LatePattern and one.holds)


GUARDED = {one.said[0]: one for one in _guarded_patterns()}
TEXTS = [
    file.read_text(encoding="utf-8", errors="replace")
    for file in sorted((Path(__file__).parents[1] / "wild_configs").iterdir())
]


@pytest.mark.parametrize("pattern", sorted(GUARDED))
def test_whatever_matches_holds_what_the_pattern_says(pattern: str) -> None:
    guarded = GUARDED[pattern]
    known = re.compile(*guarded.said)
    for text in TEXTS:
        assert guarded.may_match(text) or known.search(text) is None
    if "*+" in pattern or "++" in pattern:
        return  # hypothesis makes no text of possessive repeats

    @settings(max_examples=50, deadline=None)
    @given(st.from_regex(known))
    def holds(text: str) -> None:
        assert guarded.may_match(text)

    holds()
