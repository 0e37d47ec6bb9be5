"""The names that public examples use: kept as data, read from checkouts, never resolved to another model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from model_names import DATA, READ_OF, data_text, extracted, ids_in, is_resolved, resolved_name, table_lines

from laws import every

FILES = {name: DATA / f"{name}.json" for name in READ_OF}
HELD = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
FEWEST = {"model_names": 500, "other_model_names": 150, "third_model_names": 200, "fourth_model_names": 100}
LOOKED_AT = [row for held in HELD.values() for row in held["names"] if "of" in row]


@pytest.mark.parametrize("name", sorted(HELD))
def test_every_name_has_been_seen_somewhere(name: str) -> None:
    held = HELD[name]
    projects = {source["repository"] for source in held["sources"]}
    assert all(len(source["commit"]) == 40 for source in held["sources"])
    assert len(held["names"]) > FEWEST[name]
    assert len({row["name"] for row in held["names"]}) == len(held["names"])
    assert all(row["seen"] and set(row["seen"]) <= projects for row in held["names"])
    assert data_text(held) == FILES[name].read_text(encoding="utf-8")


@every("row", LOOKED_AT, ids=lambda row: row["name"])
def test_a_name_that_somebody_looked_at_is_of_that_model(row: dict) -> None:
    told = resolved_name(row["name"])
    assert (is_resolved(told), told.model) == (True, row["of"])


@pytest.mark.parametrize("name", sorted(HELD))
def test_the_table_counts_every_name_once(name: str) -> None:
    names = HELD[name]["names"]
    lines = list(table_lines(names))
    total = next(line for line in lines if line.startswith("resolved"))
    assert total.endswith(f"of {len(names)}")
    before = lines[1 : lines.index(total)]
    assert sum(int(line.split()[-1]) for line in before) == len(names)


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
    made = extracted(
        READ_OF["model_names"], [f"axolotl-ai-cloud/axolotl={tmp_path}@{'0' * 40}"], {"acme/a-1B": "gpt2"}
    )
    assert {row["name"]: row.get("of") for row in made["names"]}["acme/a-1B"] == "gpt2"
