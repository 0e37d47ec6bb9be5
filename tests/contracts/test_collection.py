"""Tests are found the same way by every worker."""

from __future__ import annotations

import re
from collections import Counter
from inspect import signature
from pathlib import Path
from traceback import format_exception

import pytest

from laws import Going, every

TESTS = Path(__file__).parents[1]


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their bare names."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert {name for name, count in names.items() if count > 1} == set()


def test_sweeps_that_are_spread_are_tests() -> None:
    """One that is named otherwise would run whole in the quick suite."""
    spread = re.findall(r'"(test_\w+\.py)::(test_\w+)": \d+', (TESTS / "conftest.py").read_text())
    files = {path.name: path.read_text() for path in TESTS.rglob("test_*.py")}
    assert spread
    assert [f"{file}::{name}" for file, name in spread if f"def {name}(" not in files[file]] == []


def test_a_law_over_many_cases_tells_every_one_that_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Going, "first", False)
    seen = []

    @every("number, square", [(n, n * n if n % 4 else -1) for n in range(1, 33)])
    def law(number: int, square: int) -> None:
        seen.append(number)
        assert square == number * number

    with pytest.raises(ExceptionGroup) as broken:
        law()
    assert seen == [*range(1, 33)]
    told = "".join(format_exception(broken.value))
    assert "8 of 32 cases fail" in told
    assert [n for n in range(1, 33) if f"the case: {n}, " in told] == [*range(4, 33, 4)]


def test_a_law_keeps_its_fixtures_and_is_skipped_where_all_its_cases_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Going, "first", False)

    @every("other", ["a", "b"])
    @every("one", [1, 2], ids=str)
    def law(one: int, other: str, tmp_path: Path) -> None:
        if tmp_path == TESTS:
            pytest.skip(f"{one}{other}")

    assert [*signature(law).parameters] == ["tmp_path"]
    law(tmp_path=Path())
    with pytest.raises(pytest.skip.Exception):
        law(tmp_path=TESTS)


def test_a_quick_run_takes_the_first_case_of_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Going, "first", True)
    seen = []

    @every("number", [1, 2])
    def law(number: int) -> None:
        seen.append(number)

    law()
    assert seen == [1]
