"""Variables of the environment that a Python script reads with a default, which holds where nothing sets
them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from memsheet.exchange.shared.python_module import attribute_path
from memsheet.exchange.shared.python_values import ENVIRONMENT


def environment_default(node: ast.AST) -> tuple[str, Any] | None:
    """The name and the default of a variable of the environment that an expression reads
    (``os.getenv("MODEL", "a/b")``, ``os.environ.get("MODEL") or "a/b"``).
    """
    match node:
        case ast.Call(func=function, args=[ast.Constant(value=str() as name), ast.Constant(value=default)]):
            return (name, default) if ".".join(attribute_path(function)) in ENVIRONMENT else None
        case ast.BoolOp(
            op=ast.Or(),
            values=[
                ast.Call(func=function, args=[ast.Constant(value=str() as name)]),
                ast.Constant(value=default),
            ],
        ):
            return (name, default) if ".".join(attribute_path(function)) in ENVIRONMENT else None
    return None


def environment_words(node: ast.AST, name: str, default: Any) -> str:
    """What is taken for granted of a variable, as it is told."""
    return f"line {getattr(node, 'lineno', 0)}: {name} = {default} (nothing sets it in the environment)"


def environment_defaults(text: str) -> Iterator[tuple[str, Any, str]]:
    """Variables of a script by name, each with its default and the words that tell it; none of a text that is
    no Python.
    """
    if "environ" not in text and "getenv" not in text:
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if (said := environment_default(node)) is not None:
            yield said[0], said[1], environment_words(node, *said)
