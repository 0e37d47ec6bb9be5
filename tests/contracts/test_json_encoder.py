"""JSON is written by ``json.dumps``: ``json.dump`` has no encoder in C, and takes many times as long."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"


def test_nothing_is_encoded_piece_by_piece() -> None:
    slow = [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in sorted(SOURCES.rglob("*.py"))
        if "json.dump(" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "json.dump"
    ]
    assert slow == []
