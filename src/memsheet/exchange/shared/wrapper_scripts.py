"""A script that only calls a function of another module (LLaVA's ``train_mem``): what then runs is that
module's text.
"""

from __future__ import annotations

import ast
import re

from memsheet.frozen import NamedTuple
from memsheet.patterns import late_pattern

LONGEST_WRAPPER = 4096
"""Characters: what is longer does something itself."""
SEARCH_PATH = frozenset({"sys.path.append", "sys.path.insert"})
"""Calls that say where modules lie."""
STARTED_ALONE = late_pattern(
    r"^if __name__ == [\"']__main__[\"']:[^\n]*(?:\n(?:[ \t][^\n]*)?)*(?=\n|\Z)", re.MULTILINE
)
"""What a module does where it is started itself, and not where it is imported."""


class WrappedCall(NamedTuple):
    """``file``: of the module that has the function (``llava/train/train.py``); ``call``: what is called, as
    that module names it.
    """

    file: str
    call: str


def wrapped_call(text: str) -> WrappedCall | None:
    """The one call of an imported function that a script makes, with nothing but plain values; None of one
    that does anything else.
    """
    if len(text) > LONGEST_WRAPPER:
        return None
    try:
        return _one_call(ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _one_call(statements: list[ast.stmt]) -> WrappedCall | None:
    imported = {
        held.asname or held.name: (str(node.module), held.name)
        for node in statements
        if isinstance(node, ast.ImportFrom) and not node.level
        for held in node.names
    }
    calls = [call for node in statements for call in _calls(node)]
    called = [call for call in calls if call is None or ast.unparse(call.func) not in SEARCH_PATH]
    call = called[0] if len(called) == 1 else None
    if call is None:
        return None
    module, name = imported.get(ast.unparse(call.func), ("", ""))
    given = (*call.args, *(word.value for word in call.keywords))
    if not module or not all(isinstance(value, ast.Constant) for value in given):
        return None
    call.func = ast.Name(name)
    return WrappedCall(f"{module.replace('.', '/')}.py", ast.unparse(call))


def text_of_call(text: str, call: str) -> str:
    """The text of a module that is imported, and the call of its function behind it."""
    imported = STARTED_ALONE.sub(lambda found: "\n" * found[0].count("\n"), text)
    return f"{imported}\n{call}\n"


def _calls(node: ast.stmt) -> list[ast.Call | None]:
    """The calls of a statement; None for whatever else it does."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return []
        case ast.Expr(value=ast.Call() as call):
            return [call]
        case ast.If(test=test, body=body, orelse=[]) if "__name__" in ast.unparse(test):
            return [call for one in body for call in _calls(one)]
        case _:
            return [None]
