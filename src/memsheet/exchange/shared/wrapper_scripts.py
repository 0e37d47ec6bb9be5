"""A script that only calls a function of another module (LLaVA's ``train_mem.py``): whose text that module's
is.
"""

from __future__ import annotations

import ast

LONGEST_WRAPPER = 4096
"""Characters: what is longer does something itself."""
SEARCH_PATH = frozenset({"sys.path.append", "sys.path.insert"})
"""Calls that say where modules lie."""


def wrapped_module(text: str) -> str:
    """The file of the module of which a script calls one imported function, without arguments, and nothing
    else (``llava/train/train.py``); nothing of any other script.
    """
    if len(text) > LONGEST_WRAPPER:
        return ""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    imported = {
        held.asname or held.name: str(node.module)
        for node in statements
        if isinstance(node, ast.ImportFrom) and not node.level
        for held in node.names
    }
    calls = [call for node in statements for call in _called_names(node)]
    called = [name for name in calls if name not in SEARCH_PATH]
    if len(called) != 1 or called[0] not in imported:
        return ""
    return f"{imported[called[0]].replace('.', '/')}.py"


def _called_names(node: ast.stmt) -> list[str]:
    """What a statement calls; of one that does anything else, what no import has."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return []
        case ast.Expr(value=ast.Call(func=function, args=arguments, keywords=words)):
            name = ast.unparse(function)
            return [name] if name in SEARCH_PATH or not (arguments or words) else [""]
        case ast.If(test=test, body=body, orelse=[]) if "__name__" in ast.unparse(test):
            return [name for one in body for name in _called_names(one)]
        case _:
            return [""]
