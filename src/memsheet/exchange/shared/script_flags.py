"""What a script's own flags come to where a command does not give them: ``add_argument("--batch_size",
type=int, default=4)``, read from the text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.python_config import CLASS, LINE, Module


class Flag(NamedTuple):
    """A flag of a script, what it is where nobody gives it, and the line that says so."""

    name: str
    default: Any
    line: int


def flags_in_call(module: Module, call: Mapping[str, Any]) -> dict[str, Flag]:
    """Arguments of a call that are a flag's value as it stands (``args.batch_size``), by name. ``call``: one
    that ``script.calls`` found.
    """
    known = dict(_argparse_flags(module))
    changed = {
        node.attr
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    node = next(
        (node for node, path, _ in module.sites if path[-1] == call[CLASS] and node.lineno == call[LINE]),
        None,
    )
    return {
        held.arg: known[held.value.attr]
        for held in (node.keywords if node is not None else ())
        if held.arg is not None
        and call.get(held.arg) == UNSET
        and isinstance(held.value, ast.Attribute)
        and isinstance(held.value.value, ast.Name)
        and held.value.attr in known
        and held.value.attr not in changed
    }


def _argparse_flags(module: Module) -> Iterator[tuple[str, Flag]]:
    """The flags that have a plain default, by the name that the script reads them by; none that are told
    twice, or given in ``set_defaults``.
    """
    found: dict[str, list[Flag]] = {}
    elsewhere: set[str | None] = set()
    for node, path, _ in module.sites:
        elsewhere |= {held.arg for held in node.keywords} if path[-1] == "set_defaults" else set()
        if path[-1] == "add_argument" and (flag := _parse_add_argument(node)) is not None:
            found.setdefault(_kept_as(node, flag), []).append(flag)
    yield from (
        (name, held[0])
        for name, held in found.items()
        if len(held) == 1 and name not in elsewhere and held[0].default is not None
    )


def _parse_add_argument(node: ast.Call) -> Flag | None:
    names = [
        held.value for held in node.args if isinstance(held, ast.Constant) and isinstance(held.value, str)
    ]
    long = next((name for name in names if name.startswith("--")), None)
    default = _constant_keyword(node, "default")
    if default is None and _constant_keyword(node, "action") == "store_true":
        default = False
    return Flag(long, default, node.lineno) if long is not None else None


def _kept_as(node: ast.Call, flag: Flag) -> str:
    """The attribute of the result (argparse: ``dest``, else the first long name)."""
    return str(_constant_keyword(node, "dest") or flag.name.lstrip("-").replace("-", "_"))


def _constant_keyword(node: ast.Call, name: str) -> Any:
    held = next((held.value for held in node.keywords if held.arg == name), None)
    return (
        held.value
        if isinstance(held, ast.Constant) and isinstance(held.value, bool | int | float | str)
        else None
    )
