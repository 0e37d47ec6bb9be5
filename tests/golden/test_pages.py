"""Pages whose numbers are computed say what the package says today."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from slow_cases import first_quick

DOCS = Path(__file__).parents[2] / "docs"


PAGES = [
    "reference/worked_examples.md",
    "concepts/recompute.md",
    "concepts/parallelism.md",
    "guides/first-minute.md",
    "guides/serve.md",
    "guides/jobs.md",
    "guides/diagnose.md",
    "../README.md",
    *sorted(f"messages/{path.name}" for path in (DOCS / "messages").glob("*.md")),
    "guides/plan.md",  # whole searches
]


def generator() -> ModuleType:
    found = importlib.util.spec_from_file_location("generate_pages", DOCS / "generate.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", first_quick(PAGES, len(PAGES) - 1))
def test_a_page_has_not_drifted(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == generator().PAGES[name](), (
        "make regold writes it again"
    )


def test_every_generated_page_is_watched() -> None:
    assert set(generator().PAGES) == set(PAGES)


def test_recompute_keeps_inputs_and_one_segment() -> None:
    rows = {name: (kept, worst) for name, kept, worst, _, _ in generator().recompute_rows()}
    start = 4 * 2048 * 4096 * 2
    assert rows["every layer"][0] == 32 * start
    assert rows["every 4 layers"][0] == 8 * start
    assert rows["√32 ≈ 6 segments"][0] == 6 * start
    layer = rows["none"][0] // 32
    assert rows["every layer"][1] == 32 * start + layer
    assert rows["every 4 layers"][1] == 8 * start + 4 * layer
