"""The text of a Python file as a tree, with its functions, the values that it gives names, and its calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from memsheet.frozen import dataclass, field
from memsheet.guard.budget import Budget
from memsheet.patterns import late_pattern

Tree = dict[str, Any]
MOST_STEPS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A file's functions, its own plain values, and what it imports from elsewhere."""

    tree: ast.Module
    functions: Mapping[str, ast.FunctionDef]
    names: dict[str, Any]
    imported: dict[str, str]
    bases: Mapping[str, Tree]
    sites: tuple[
        tuple[ast.Call, tuple[str, ...], int], ...
    ]  # every call of a name, its path, and the line of the function around it
    given: Mapping[str, Any] = field(default_factory=dict)  # flags of the command that starts it
    settings: dict[str, Any] = field(default_factory=dict)  # what files beside it say, by their names
    flags: list[Mapping[str, Any]] = field(default_factory=list)  # of its command line, once somebody asks
    steps: Budget = field(default_factory=lambda: Budget(MOST_STEPS, "steps"))


@lru_cache(maxsize=2)
def syntax_tree(text: str) -> ast.Module:
    """The tree of a text, which several formats ask for; nobody changes it."""
    try:
        return _parsed_tree(text)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"is no Python: {type(error).__name__}") from None


MOST_QUOTED = 64
"""Lines of a script with an f-string that holds its own quotes."""
OPENED = late_pattern(r"""\b[rR]?[fF][rR]?(["'])""")
PLACES = late_pattern(r"\{[^{}]*\}")


def _parsed_tree(text: str) -> ast.Module:
    """The tree, where an f-string's places hold the quotes around it, too, as Python takes them since 3.12
    (PEP 701) and older ones do not.
    """
    for _ in range(MOST_QUOTED):
        try:
            return ast.parse(text)
        except SyntaxError as error:
            lines = text.splitlines(keepends=True)
            at = (error.lineno or 0) - 1
            if not 0 <= at < len(lines) or (plain := _with_other_quotes(lines[at])) == lines[at]:
                raise
            text = "".join([*lines[:at], plain, *lines[at + 1 :]])
    return ast.parse(text)


def _with_other_quotes(line: str) -> str:
    """A line whose f-strings have the other quotes in their places."""
    opened = OPENED.search(line)
    if opened is None:
        return line
    other = "'" if opened[1] == '"' else '"'
    return PLACES.sub(lambda place: place[0].replace(opened[1], other), line)


def call_sites(tree: ast.Module) -> Iterator[tuple[ast.Call, tuple[str, ...], int]]:
    """Level by level, as ``ast.walk`` goes."""
    level: list[tuple[ast.AST, int]] = [(tree, 0)]
    while level:
        below: list[tuple[ast.AST, int]] = []
        for node, scope in level:
            inside = node.lineno if isinstance(node, ast.FunctionDef) else scope
            if isinstance(node, ast.Call) and (path := attribute_path(node.func)):
                yield node, tuple(path), scope
            below += [(child, inside) for child in ast.iter_child_nodes(node)]
        level = below


def attribute_path(node: ast.expr) -> list[str]:
    """``a.b.c`` as its names; nothing for any other place."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def asks_command_line(node: ast.IfExp) -> bool:
    """Whether a choice is of an argument where the command gives one."""
    test, body = ast.walk(node.test), ast.walk(node.body)
    return all(
        any(isinstance(one, ast.Attribute) and attribute_path(one) == ["sys", "argv"] for one in part)
        for part in (test, body)
    )


def argument_remarks(text: str) -> tuple[str, ...]:
    """Where a script is read as of a command without arguments, in words; nothing of what is no Python."""
    if "sys.argv" not in text:
        return ()
    try:
        nodes = list(ast.walk(syntax_tree(text)))
    except ValueError:
        return ()
    asked = sorted(one.lineno for one in nodes if isinstance(one, ast.IfExp) and asks_command_line(one))
    return tuple(f"line {line}: the command gives no argument" for line in asked)
