"""A name of a module is bound once: the second binding would silently win over the first."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from parsed_files import PACKAGE, package_trees


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Functions, classes and constants of a module's own level; overloads and branches of an ``if`` are not
    in it.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not any("overload" in ast.unparse(decorator) for decorator in node.decorator_list):
                yield node.name
        elif isinstance(node, ast.Assign):
            yield from (
                name.id
                for target in node.targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name) and name.id.isupper()
            )
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_the_search_finds_a_second_binding() -> None:
    assert Counter(bound_names(ast.parse("A = 1\nB = 2\nA = 3\n"))) == {"A": 2, "B": 1}


def test_no_module_binds_a_name_twice() -> None:
    counts = {file: Counter(bound_names(tree)) for file, tree in package_trees().items()}
    assert {
        f"{file.relative_to(PACKAGE)}: {name}"
        for file, names in counts.items()
        for name, n in names.items()
        if n > 1
    } == set()


# ---- names say what a function does ------------------------------------------------------------------------

MOST_ONE_WORD, MOST_TWICE = 0.03, 0.08
"""Shares of all module-level functions. They only go down."""
INTERFACE = frozenset({"read"})
"""Functions that every module of a kind has under one name: a family's reader (readers/registry.py)."""


def function_names() -> list[str]:
    return [
        node.name
        for tree in package_trees().values()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name not in INTERFACE
    ]


def test_few_functions_have_a_name_of_one_word() -> None:
    names = function_names()
    assert sum("_" not in name.strip("_") for name in names) <= MOST_ONE_WORD * len(names)


def test_few_names_stand_for_two_functions() -> None:
    counts = Counter(function_names())
    assert sum(n for n in counts.values() if n > 1) <= MOST_TWICE * sum(counts.values())
