"""The tests of parts mirror the source tree, and no room of either is crowded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE, UNIT = ROOT / "src" / "memsheet", ROOT / "tests" / "unit"
MOST = 20
"""Python files of one folder."""


def folders_of_tests(unit: Path) -> Iterator[Path]:
    """Folders below ``unit`` that hold tests, themselves or further down."""
    for file in unit.rglob("*.py"):
        yield from (folder for folder in file.relative_to(unit).parents if folder.name)


def crowded_folders(root: Path) -> dict[str, int]:
    """How many Python files each folder has that has too many."""
    counts = {
        folder: len(list(folder.glob("*.py"))) for folder in (root, *root.rglob("*")) if folder.is_dir()
    }
    return {str(folder.relative_to(root)): count for folder, count in counts.items() if count > MOST}


def folders_without_source(unit: Path, source: Path) -> set[str]:
    """Folders of tests that are named as no folder of the source."""
    return {str(folder) for folder in folders_of_tests(unit) if not (source / folder).is_dir()}


@pytest.mark.parametrize("root", [UNIT, SOURCE / "report"], ids=["tests", "report"])
def test_no_folder_is_crowded(root: Path) -> None:
    assert crowded_folders(root) == {}


def test_every_folder_of_tests_is_one_of_the_source() -> None:
    assert set(folders_of_tests(UNIT)) != set()
    assert folders_without_source(UNIT, SOURCE) == set()


def test_the_law_finds_what_breaks_it(tmp_path: Path) -> None:
    unit, source = tmp_path / "unit", tmp_path / "source"
    for folder in (source / "search", unit / "search", unit / "report" / "json"):
        folder.mkdir(parents=True)
    (unit / "report" / "json" / "test_page.py").touch()
    for number in range(MOST + 1):
        (unit / "search" / f"test_{number}.py").touch()
    assert folders_without_source(unit, source) == {"report", "report/json"}
    assert crowded_folders(unit) == {"search": MOST + 1}
