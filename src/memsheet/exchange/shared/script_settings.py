"""What a Python script says of a training that another file runs: constants, fields of classes, flags and
keywords of calls, as the groups of a file of settings. Text in, values out: nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.function_commands import is_command
from memsheet.exchange.shared.python_config import read_module
from memsheet.exchange.shared.python_module import Module, attribute_path
from memsheet.exchange.shared.python_values import default_parameter_values
from memsheet.exchange.shared.script_flags import known_flags
from memsheet.guard.budget import TooMuchError, is_long_script
from memsheet.patterns import late_pattern

MOST_GROUPS = 64
"""Classes and calls of a script that are looked at."""
_TRAINS = late_pattern(r"train|\bepochs?\b|learning_rate|\blr\b", re.IGNORECASE)
_WORDS = late_pattern(r"(?<=[a-z0-9])(?=[A-Z])")
_DECLARES = frozenset(
    {"add_argument", "option", "argument", "Option", "Argument", "field", "Field", "print", "setdefault"}
)
"""Calls whose keywords are no settings, or are read as flags."""


def script_settings(text: str) -> Mapping[str, Any]:
    """The values of a script by the names that it gives them, in groups by its classes and calls; nothing of
    a text that is no Python or names no training.
    """
    if is_long_script(text) or not _TRAINS.search(text):
        return {}
    try:
        module = read_module(text, {})
    except (ValueError, TooMuchError):
        return {}
    named = {name.lower(): held for name, held in module.names.items() if _is_plain(held)}
    flags = {name.lower(): flag.default for name, flag in known_flags(module).items()}
    for function in module.functions.values():
        if is_command(module, function):
            usual = default_parameter_values(module, function, module.names, 0)
            flags |= {name.lower(): held for name, held in usual.items() if _is_plain(held)}
    groups: dict[str, dict[str, Any]] = {}
    for name, values in [*_classes_of(module), *_setting_calls(module)][:MOST_GROUPS]:
        groups.setdefault(name, {}).update(
            {at: held for at, held in values.items() if at not in groups[name]}
        )
    return {**named, **flags, **{name: held for name, held in groups.items() if held}}


def _classes_of(module: Module) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef):
            held = (_setting_field(module, one) for one in node.body)
            yield _group_name(node.name), {name: value for name, value in held if value is not None}


def _setting_field(module: Module, node: ast.stmt) -> tuple[str, Any]:
    match node:
        case (
            ast.AnnAssign(target=ast.Name(id=name), value=value)
            | ast.Assign(targets=[ast.Name(id=name)], value=value)
        ) if value is not None:
            return name.lower(), _plain_value(module, value)
    return "", None


def _setting_calls(module: Module) -> Iterator[tuple[str, dict[str, Any]]]:
    for node, path, _ in module.sites:
        if node.keywords and path[-1] not in _DECLARES:
            held = ((one.arg, _plain_value(module, one.value)) for one in node.keywords)
            yield (
                _group_name(path[-1]),
                {name.lower(): value for name, value in held if name and value is not None},
            )


def _group_name(name: str) -> str:
    """A class's name in the words that people give groups: ``TrainConfig`` as train_config."""
    return _WORDS.sub("_", name).lower()


def _plain_value(module: Module, node: ast.expr) -> Any:
    """A literal, or a name or flag that holds one."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name):
            held = module.names.get(name)
            return held if _is_plain(held) else None
        case ast.Attribute():
            flag = known_flags(module).get(attribute_path(node)[-1] if attribute_path(node) else "")
            return flag.default if flag is not None else None
        case ast.Call(keywords=told, args=args) if attribute_path(node.func)[-1:] in (["field"], ["Field"]):
            default = next((one.value for one in told if one.arg == "default"), next(iter(args), None))
            return _plain_value(module, default) if default is not None else None
    return None


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) and value != UNSET
