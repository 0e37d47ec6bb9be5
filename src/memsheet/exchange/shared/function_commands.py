"""Command lines that are made of a function's parameters: Fire, jsonargparse and tyro of their defaults,
Typer of options that stand in their place, Click of decorators. Text in, values out: nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from memsheet.exchange.shared.python_module import Module, attribute_path, call_sites

MAKERS = ("Fire", "CLI", "auto_cli")
"""Calls that make a command of a function (google/python-fire fire/core.py; omni-us/jsonargparse _cli.py)."""
MAKERS_BY_MODULE = (("typer", "run"), ("tyro", "cli"))
COMMANDS = ("command", "callback", "group")
"""Decorators that do (fastapi/typer main.py; pallets/click decorators.py)."""
OPTIONS, DECORATORS = (["Option"], ["Argument"]), (["option"], ["argument"])
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_command(module: Module, function: Function) -> bool:
    """Whether a command line is made of a function's parameters. What Fire is given that is no function's
    name may be any of the file's.
    """
    if any(path[-1:] and path[-1] in COMMANDS for path in map(_decorator_path, function.decorator_list)):
        return True
    made = _command_names(module.tree)
    return function.name in made or any(name not in module.functions for name in made)


@lru_cache(maxsize=2)
def _command_names(tree: ast.Module) -> frozenset[str]:
    """Names that a file makes commands of; an empty one for what is no name."""
    return frozenset(
        node.args[0].id if node.args and isinstance(node.args[0], ast.Name) else ""
        for node, path, _ in call_sites(tree)
        if path[-1] in MAKERS or path[-2:] in MAKERS_BY_MODULE
    )


def given_by_command(module: Module, function: Function) -> dict[str, Any]:
    """Parameters of a command that are given a value where it is started, by their names."""
    if not module.given or not is_command(module, function):
        return {}
    names = {flag: parameter for parameter, flags in _function_flags(function) for flag in flags}
    return {names[flag]: held for flag, held in module.given.items() if flag in names}


def option_default(default: ast.expr | None) -> ast.expr | None:
    """What an option that stands in a default's place defaults to; any other default as it is."""
    if not isinstance(default, ast.Call) or attribute_path(default.func)[-1:] not in OPTIONS:
        return default
    told = next((held.value for held in default.keywords if held.arg == "default"), None)
    told = told or next(iter(default.args), None)
    return None if isinstance(told, ast.Constant) and told.value is ... else told


def decorated_defaults(function: Function) -> Mapping[str, ast.expr]:
    """What Click's options of a function default to, by its parameters."""
    found: dict[str, ast.expr] = {}
    for node in function.decorator_list:
        if isinstance(node, ast.Call) and _decorator_path(node)[-1:] in DECORATORS:
            told = {held.arg: held.value for held in node.keywords}
            switch = isinstance(on := told.get("is_flag"), ast.Constant) and on.value is True
            default = told.get("default", ast.Constant(value=False) if switch else None)
            if default is not None and (name := _click_parameter(node)):
                found[name] = default
    return found


def _decorator_path(node: ast.expr) -> list[str]:
    return attribute_path(node.func if isinstance(node, ast.Call) else node)


def _click_parameter(node: ast.Call) -> str:
    """The parameter of an option: a name without dashes, else the first with two, else the first
    (pallets/click core.py, Option._parse_decls).
    """
    words = _command_words(node)
    plain = [word for word in words if not word.startswith("-")]
    long = [word.split("/")[0] for word in words if word.startswith("--")]
    return next(iter([*plain, *long, *words]), "").lstrip("-").replace("-", "_").lower()


def _function_flags(function: Function) -> Iterator[tuple[str, set[str]]]:
    """Parameters with the flags that they are given by, without dashes."""
    by_decorator = {
        _click_parameter(node): set(map(_as_name, _command_words(node)))
        for node in function.decorator_list
        if isinstance(node, ast.Call) and _decorator_path(node)[-1:] in DECORATORS
    }
    arguments = [*function.args.posonlyargs, *function.args.args]
    defaults = [*(None for _ in range(len(arguments) - len(function.args.defaults))), *function.args.defaults]
    for held, default in (
        *zip(arguments, defaults, strict=True),
        *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True),
    ):
        own = set(map(_as_name, _command_words(default))) if isinstance(default, ast.Call) else set[str]()
        yield held.arg, {held.arg, *own, *by_decorator.get(held.arg, ())}


def _command_words(node: ast.Call) -> list[str]:
    """Texts that a call is given as they stand, which of an option are its names."""
    return [
        held.value for held in node.args if isinstance(held, ast.Constant) and isinstance(held.value, str)
    ]


def _as_name(word: str) -> str:
    return word.split("/", maxsplit=1)[0].lstrip("-").replace("-", "_")
