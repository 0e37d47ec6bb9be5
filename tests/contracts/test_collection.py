"""Tests are found the same way by every worker."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

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
