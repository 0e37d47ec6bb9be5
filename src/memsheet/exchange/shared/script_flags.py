"""What a script's own flags come to where a command does not give them: ``add_argument("--batch_size",
type=int, default=4)``, and fields of the dataclasses that a parser fills, read from the text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.python_module import Module, attribute_path
from memsheet.frozen import NamedTuple

PARSES = (
    "parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_args_and_config", "parse",
)  # fmt: skip
"""Methods that read a command line (argparse; transformers hf_argparser.py; trl/scripts/utils.py)."""


NO_NAMES: Mapping[str, Any] = {}


class Flag(NamedTuple):
    """A flag of a script, what it is where nobody gives it, and the line that says so."""

    name: str
    default: Any
    line: int


def flags_in_call(module: Module, node: ast.Call | None) -> dict[str, Flag]:
    """Arguments of a call that are a flag's value as it stands (``args.batch_size``), by name; by their
    place where they have none.
    """
    known = known_flags(module)
    given = (
        [
            *((str(at), held) for at, held in enumerate(node.args)),
            *((held.arg, held.value) for held in node.keywords),
        ]
        if node is not None and known
        else []
    )
    return {
        name: known[held.attr]
        for name, held in given
        if name is not None
        and isinstance(held, ast.Attribute)
        and isinstance(held.value, ast.Name)
        and held.attr in known
    }


def known_flags(module: Module) -> Mapping[str, Flag]:
    """The flags that have a plain default, by the name that the script reads them by; none that are told
    twice, given in ``set_defaults``, or changed.
    """
    if not module.flags:
        changed = {
            node.attr
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
        told = {name: Flag(f"--{name}", held, 0) for name, held in module.given.items()}
        own = {**dict(_plain_flags(module)), **told}
        module.flags.append({name: flag for name, flag in own.items() if name not in changed})
    return module.flags[0]


def _plain_flags(module: Module) -> Iterator[tuple[str, Flag]]:
    found: dict[str, list[Flag]] = {}
    elsewhere: set[str | None] = set()
    for node, path, _ in module.sites:
        elsewhere |= {held.arg for held in node.keywords} if path[-1] == "set_defaults" else set()
        if path[-1] == "add_argument" and (flag := _parse_add_argument(node, module.names)) is not None:
            found.setdefault(_kept_as(node, flag), []).append(flag)
    for name, flag in _dataclass_fields(module):
        found.setdefault(name, []).append(flag)
    yield from (
        (name, held[0])
        for name, held in found.items()
        if len(held) == 1 and name not in elsewhere and held[0].default is not None
    )


def default_of_field(node: ast.Call) -> list[ast.expr]:
    """What a field of a dataclass is where nobody says it; nothing where the text does not tell."""
    made = [
        held.value.body
        for held in node.keywords
        if held.arg == "default_factory" and isinstance(held.value, ast.Lambda)
    ]
    return [held.value for held in node.keywords if held.arg == "default"] or made


def _dataclass_fields(module: Module) -> Iterator[tuple[str, Flag]]:
    """Fields of the file's dataclasses, which transformers' parser makes flags of."""
    for held in module.tree.body:
        if not isinstance(held, ast.ClassDef) or not any(map(_is_dataclass, held.decorator_list)):
            continue
        for node in held.body:
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.value is not None
            ):
                told = default_of_field(node.value) if isinstance(node.value, ast.Call) else [node.value]
                value = _plain_list(told[0], module.names) if told else None
                yield node.target.id, Flag(f"--{node.target.id}", value, node.lineno)


def _is_dataclass(node: ast.expr) -> bool:
    return attribute_path(node.func if isinstance(node, ast.Call) else node)[-1:] == ["dataclass"]


def _parse_add_argument(node: ast.Call, constants: Mapping[str, Any]) -> Flag | None:
    names = [
        held.value for held in node.args if isinstance(held, ast.Constant) and isinstance(held.value, str)
    ]
    long = next((name for name in names if name.startswith("--")), None)
    default = _constant_keyword(node, "default", constants)
    if default is None and _constant_keyword(node, "action") == "store_true":
        default = False
    return Flag(long, default, node.lineno) if long is not None else None


def _kept_as(node: ast.Call, flag: Flag) -> str:
    """The attribute of the result (argparse: ``dest``, else the first long name)."""
    return str(_constant_keyword(node, "dest") or flag.name.lstrip("-").replace("-", "_"))


def _constant_keyword(node: ast.Call, name: str, names: Mapping[str, Any] = NO_NAMES) -> Any:
    return _plain_constant(next((held.value for held in node.keywords if held.arg == name), None), names)


def _plain_list(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A list of literals, or one as it stands."""
    if not isinstance(node, ast.List):
        return _plain_constant(node, names)
    held = [_plain_constant(one, names) for one in node.elts]
    return None if None in held else held


def _plain_constant(node: ast.expr | None, names: Mapping[str, Any] = NO_NAMES) -> Any:
    """A literal, or a name of the file that holds one."""
    match node:
        case ast.Name(id=name) | ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
            held = names.get(name)
            return held if isinstance(held, bool | int | float | str) and held != UNSET else None
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    return None
