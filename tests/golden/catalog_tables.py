"""The tables of the catalogue as JSON, made of their TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import memsheet

CATALOG = Path(memsheet.__file__).parent / "catalog"
TABLES = ("devices", "overheads", "rates", "serving_rates")


def text(name: str) -> str:
    """One row a line, so that a device more is one line more."""
    table = tomllib.loads((CATALOG / f"{name}.toml").read_text(encoding="utf-8"))
    return "{\n" + ",\n".join(_lines(table)) + "\n}\n"


def _lines(table: dict[str, object]) -> Iterator[str]:
    for key, held in table.items():
        rows = held if isinstance(held, dict) else {}
        if rows and all(isinstance(row, dict) for row in rows.values()):
            inside = ",\n".join(
                f"  {json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items()
            )
            yield f" {json.dumps(key)}: {{\n{inside}\n }}"
        else:
            yield f" {json.dumps(key)}: {json.dumps(held, ensure_ascii=False)}"


def write() -> None:
    for name in TABLES:
        (CATALOG / "tables" / f"{name}.json").write_text(text(name), encoding="utf-8")
