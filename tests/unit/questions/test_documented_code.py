"""The Python that README and the guides show runs, and says what it is said to say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"\b(torch|transformers|trainer|Trainer)\b|\.\.\.|…")
"""Blocks that need what a reader has and a test has not."""


def documented() -> dict[str, list[str]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = {page: BLOCK.findall(page.read_text(encoding="utf-8")) for page in pages}
    return {
        page.relative_to(ROOT).as_posix(): found
        for page, found in blocks.items()
        if any(not NEEDS.search(one) for one in found)
    }


def test_the_search_finds_the_pages() -> None:
    assert {"README.md", "docs/guides/python.md"} <= set(documented())


@pytest.mark.parametrize("page", sorted(documented()))
def test_the_code_of_a_page_runs(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in documented()[page]:
        if not NEEDS.search(block):
            exec(compile(block, page, "exec"), names)
