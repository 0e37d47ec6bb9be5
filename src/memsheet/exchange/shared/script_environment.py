"""The allocator's variable, as a Python script sets it at its own top level."""

from __future__ import annotations

import ast
import re

from memsheet.exchange.shared.allocator_env import ALLOCATOR, ALLOCATOR_CONF, OLDER


def script_allocator_key(tree: ast.Module) -> dict[str, str]:
    """What a script's own top level sets the variable to, the newer name first; nothing where it does not, or
    not to a plain text.
    """
    told = dict(filter(None, map(_environment_text, tree.body)))
    return next(({ALLOCATOR_CONF: told[name]} for name in (ALLOCATOR, OLDER) if name in told), {})


def script_variable(tree: ast.Module, name: str) -> str | None:
    """What a script's own top level sets a variable to, where that is a plain text, or the text of a cell
    that a notebook's export runs by a call.
    """
    told = dict(filter(None, map(_environment_text, tree.body))).get(name)
    place = rf"""^[ \t]*os\.environ\[["']{re.escape(name)}["']\]"""
    set_so = re.compile(rf"""{place}\s*=\s*["']([^"'\n]*)["']""", re.MULTILINE)
    cells = (
        one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )
    found = (set_so.search(cell) for cell in cells if name in cell) if told is None else ()
    return next((one[1] for one in found if one), told)


def _environment_text(line: ast.stmt) -> tuple[str, str] | None:
    """The variable's name and text of ``os.environ[NAME] = TEXT`` and of its ``setdefault``."""
    given: tuple[ast.expr, ...] = ()
    if isinstance(line, ast.Assign) and isinstance(place := line.targets[0], ast.Subscript):
        given, of = (place.slice, line.value), place.value
    elif isinstance(line, ast.Expr) and isinstance(call := line.value, ast.Call) and len(call.args) == 2:
        given, of = tuple(call.args), call.func
    if len(given) != 2 or not ast.unparse(of).removesuffix(".setdefault").endswith("environ"):
        return None
    name, text = (one.value if isinstance(one, ast.Constant) else None for one in given)
    return (name, text) if isinstance(name, str) and isinstance(text, str) else None
