"""The page on JSON names every key of every published schema, under the schema's own name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
SCHEMAS = sorted(REFERENCE.glob("*.schema.json"))


def sections() -> dict[str, str]:
    parts = re.split(r"^## (\S+)$", (REFERENCE / "json.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("path", SCHEMAS, ids=[path.name for path in SCHEMAS])
def test_every_key_is_named(path: Path) -> None:
    schema = json.loads(path.read_text())
    name = f"memsheet/{path.name.removesuffix('.schema.json')}/1"
    section = sections()[name]
    assert [key for key in schema["properties"] if f"`{key}`" not in section] == []
    assert path.name in section


def test_no_key_is_named_that_is_none() -> None:
    for name, section in sections().items():
        schema = json.loads((REFERENCE / f"{name.split('/')[1]}.schema.json").read_text())
        first = {
            key
            for line in section.splitlines()
            if line.startswith("| `")
            for key in re.findall(r"`(\w+)`", line.split("|")[1])
        }
        assert first <= set(schema["properties"])


def test_what_stands_inside_a_rank_is_named() -> None:
    assert "`states`" in sections()["memsheet/sheet/1"]
