"""What other rooms take of the server's code: each name listed is there; who points to it is on it."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from laws import every
from memsheet.engines.vllm.sources import READ_IN
from parsed_files import PACKAGE, files_with

RELEASE = re.compile(r"v\d+\.\d+\.\d+ |[0-9a-f]{7,40} |custom_allreduce_perf of ")


def pointing_names(file: Path) -> set[str]:
    """Functions and constants of a file whose own docstring says ``READ_IN``."""
    module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
    tree, found = ast.parse(file.read_text(encoding="utf-8")), set()
    for before, node in zip([None, *tree.body], tree.body, strict=False):
        if isinstance(node, ast.FunctionDef) and "``READ_IN``" in (ast.get_docstring(node) or ""):
            found.add(f"{module}.{node.name}")
        said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and str(node.value.value)
        if said and "``READ_IN``" in said and isinstance(before, ast.Assign | ast.AnnAssign):
            target = before.targets[0] if isinstance(before, ast.Assign) else before.target
            found.add(f"{module}.{ast.unparse(target)}")
    return found


def test_whoever_points_to_the_list_is_on_it() -> None:
    files = (
        path for path in files_with(("``READ_IN``",)) if "engines" not in path.relative_to(PACKAGE).parts
    )
    pointing = set().union(*map(pointing_names, files))
    assert pointing - {*READ_IN} == set()
    assert len(pointing) > 15


@every("name", sorted(READ_IN))
def test_what_is_listed_is_there_and_says_where_it_was_read(name: str) -> None:
    module, attribute = name.rsplit(".", 1)
    assert find_spec(f"memsheet.{module}") is not None
    assert hasattr(import_module(f"memsheet.{module}"), attribute) or find_spec(f"memsheet.{name}")
    assert READ_IN[name]
    assert all(RELEASE.match(source) for source in READ_IN[name])
