"""A path of ours that a page or a docstring names is there, and so is a module."""

from __future__ import annotations

import re
from pathlib import Path

from laws import every

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "memsheet"
PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
OURS = frozenset(
    path.name
    for path in (*ROOT.glob("*"), *SOURCE.glob("*"), *(SOURCE / "formulas").glob("*"))
    if path.is_dir()
)
NAMES = frozenset(
    path.name
    for folder in ("src", "tests", "benchmarks", "docs", "examples")
    for path in (ROOT / folder).rglob("*.py")
)
PEOPLES = frozenset(
    {
        "train.py",
        "step.py",
        "numpy.py",
        "training_args.py",
        "train_unsloth.py",
        "torchtitan_config.py",
        "pretrain_gpt.py",
        "mine.py",
        "job.py",
    }
)
"""What files of people's own are called where a page shows one."""
OTHERS = frozenset({"src"})
"""Folders that other projects have as well."""
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/?)`")
MODULE = re.compile(r"\bmemsheet((?:\.[a-z_0-9]+)+)")


def named_paths(text: str) -> set[str]:
    """Paths in backticks that can only be ours: below one of our folders, or a Python file."""
    found = {match.removeprefix("src/memsheet/") for match in PATH.findall(text)}
    return {
        path
        for path in found
        if ("/" not in path and path.endswith(".py")) or ("/" in path and path.split("/")[0] in OURS - OTHERS)
    } - PEOPLES


def is_there(path: str, beside: Path) -> bool:
    if "/" not in path:
        return path in NAMES
    return any((base / path).exists() for base in (ROOT, SOURCE, SOURCE / "formulas", beside.parent))


def module_is_there(dotted: str) -> bool:
    """Whether a module, or a name in one: ``memsheet.sheet.Bytes``."""
    parts = dotted.strip(".").split(".")
    homes = [SOURCE.joinpath(*parts[:length]) for length in (len(parts), len(parts) - 1)]
    return len(parts) == 1 or any(home.is_dir() or home.with_suffix(".py").exists() for home in homes)


@every("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_on_pages_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.name == "CHANGELOG.md":  # says what was
        return
    assert {path for path in named_paths(text) if not is_there(path, page)} == set()
    assert {name for name in MODULE.findall(text) if not module_is_there(name)} == set()


def test_paths_and_modules_in_our_own_words_are_there() -> None:
    lost = {}
    for file in sorted(SOURCE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        gone = {path for path in named_paths(text) if not is_there(path, file)} | {
            m for m in MODULE.findall(text) if not module_is_there(m)
        }
        if gone:
            lost[str(file.relative_to(SOURCE))] = gone
    assert lost == {}
