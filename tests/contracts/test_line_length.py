"""Lines of code are at most 110 columns long; rows of tables that are laid out by hand may be longer."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
LONGEST = 110
HEADED = ast.FunctionDef | ast.ClassDef | ast.If | ast.For | ast.With | ast.Try
PRAGMA = re.compile(r"  # (noqa|type: ignore)\b.*$")


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks"])
def test_no_line_is_longer_but_in_a_table(folder: str) -> None:
    long = []
    for path in (path for path in FILES if path.is_relative_to(ROOT / folder)):
        source = path.read_text()
        if any(len(line) > LONGEST for line in source.split("\n")):
            tables = table_lines(source)
            long += [
                f"{path.relative_to(ROOT)}:{number}"
                for number, line in enumerate(source.split("\n"), 1)
                if number not in tables and len(PRAGMA.sub("", line)) > LONGEST
            ]
    assert long == []


def test_a_table_and_a_text_may_be_wide_and_a_call_may_not() -> None:
    source = 'A = {\n    1: 2,\n}  # fmt: skip\nB = """\nx"""\ndef c() -> None:\n    """One.\n    two"""\n    d(\n        1)\n'
    assert table_lines(source) == {1, 2, 3, 4, 5}


def table_lines(source: str) -> set[int]:
    """Lines of statements marked ``fmt: skip`` or of text in several lines that is no docstring."""
    lines, found = source.split("\n"), set[int]()
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    prose = {id(node.value) for node in nodes if type(node) is ast.Expr}
    skipped = {number for number, line in enumerate(lines, 1) if "# fmt: skip" in line}
    for node in nodes:
        ends = getattr(node, "end_lineno", None)
        marked = ends in skipped and isinstance(node, ast.expr | ast.stmt) and not isinstance(node, HEADED)
        words = isinstance(node, ast.JoinedStr) or (
            type(node) is ast.Constant and isinstance(node.value, str)
        )
        text = words and id(node) not in prose
        if marked or (
            text
            and ends > node.lineno
            and ('"""' in lines[node.lineno - 1] or "'''" in lines[node.lineno - 1])
        ):
            found |= set(range(node.lineno, ends + 1))
    marks = [number for number, line in enumerate(lines, 1) if line.strip() in ("# fmt: off", "# fmt: on")]
    for start, end in zip(marks[::2], marks[1::2], strict=True):
        found |= set(range(start, end))
    return found
