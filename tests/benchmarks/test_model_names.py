"""The names that public examples use: kept as data, read from checkouts, never resolved to another model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from model_names import DATA, data_text, extracted, ids_in, is_resolved, resolved_name, table_lines

HELD = json.loads(DATA.read_text(encoding="utf-8"))


def test_every_name_has_been_seen_somewhere() -> None:
    projects = {source["repository"] for source in HELD["sources"]}
    assert all(len(source["commit"]) == 40 for source in HELD["sources"])
    assert len(HELD["names"]) > 500
    assert len({row["name"] for row in HELD["names"]}) == len(HELD["names"])
    assert all(row["seen"] and set(row["seen"]) <= projects for row in HELD["names"])
    assert data_text(HELD) == DATA.read_text(encoding="utf-8")


@pytest.mark.parametrize("row", [row for row in HELD["names"] if "of" in row], ids=lambda row: row["name"])
def test_a_name_that_somebody_looked_at_is_of_that_model(row: dict) -> None:
    told = resolved_name(row["name"])
    assert (is_resolved(told), told.model) == (True, row["of"])


def test_the_table_counts_every_name_once() -> None:
    lines = list(table_lines(HELD["names"]))
    total = next(line for line in lines if line.startswith("resolved"))
    assert total.endswith(f"of {len(HELD['names'])}")
    before = lines[1 : lines.index(total)]
    assert sum(int(line.split()[-1]) for line in before) == len(HELD["names"])


def test_names_are_read_where_a_text_says_that_they_are_models(tmp_path: Path) -> None:
    text = """
base_model: org/a-1B
    --model_name_or_path "org/b-2B" \\
vllm serve org/c-3B:Q4_K_M --tp 8
model = AutoModel.from_pretrained('org/d-4B')
see docs/guide and tests/unit, dataset: org/e
model_name_or_path: saves/run1/checkpoint
"""
    # a placeholder's owner is none, so owners are spelt otherwise here
    text = text.replace("org/", "acme/")
    assert set(ids_in(text)) == {"acme/a-1B", "acme/b-2B", "acme/c-3B:Q4_K_M", "acme/d-4B"}
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "x.yaml").write_text(text)
    made = extracted([f"axolotl-ai-cloud/axolotl={tmp_path}@{'0' * 40}"], {"acme/a-1B": "gpt2"})
    assert {row["name"]: row.get("of") for row in made["names"]}["acme/a-1B"] == "gpt2"
