"""Configurations that are Python, read from their text: nothing of a file is imported or run.

What is read are plain values: literals, sums of whole numbers, names and arguments that were given such, calls of functions of the same file, and
the constructors of configurations. Anything else is ``UNSET``: the engine gets something that the text does not say.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from memsheet.frozen import dataclass
from memsheet.spec.exchange import UNSET

Tree = dict[str, Any]
CLASS, BASE, LINE, WHOLE, SCOPE = "class", "base", "lambda", "import", "def"  # no argument can be called by a word of the language
CONFIG = "Trainer.Config"  # what an imported function without arguments is taken to return
FACTORIES = ("model_registry", "default_adamw")  # functions that stand for what they are given, as classes do
PLACES = {"model_registry": ("flavor", "attn_backend")}  # arguments that are given without their names
DEEPEST, MOST_STEPS, LARGEST = 24, 4000, 2**62
_SUMS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b, ast.FloorDiv: lambda a, b: a // b if b else 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A file's functions, its own plain values, and what it imports from elsewhere."""

    tree: ast.Module
    functions: Mapping[str, ast.FunctionDef]
    names: dict[str, Any]
    imported: dict[str, str]
    bases: Mapping[str, Tree]
    left: list[int] = field(default_factory=lambda: [MOST_STEPS])  # steps that may still be taken


class TooMuchError(ValueError):
    """A text that asks for more than a configuration does."""


def read_module(text: str, bases: Mapping[str, Tree]) -> Module:
    """A file's own values and functions. ``bases``: what imported functions return, by their whole names.

    Raises ValueError for text that is no Python.
    """
    try:
        parsed = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"is no Python: {type(error).__name__}") from None
    functions = {held.name: held for held in parsed.body if isinstance(held, ast.FunctionDef)}
    module = Module(tree=parsed, functions=functions, names={}, imported={}, bases=bases)
    _statements(module, parsed.body, module.names)
    return module


def returned(module: Module) -> Iterator[tuple[str, Any]]:
    """What each function that no other one calls returns, in the order of the file."""
    called = {name for held in module.functions.values() for name in _called(held)}
    yield from ((name, _result(module, name, 0)) for name in module.functions if name not in called)


def calls(module: Module, names: Iterable[str]) -> Iterator[Tree]:
    """Every call of some names, wherever it stands: its arguments, and under words that no argument has its name, its whole name, its line and the
    line of the function around it (0 outside of any). Of the names around it only the file's own are known.
    """
    wanted = frozenset(names)
    inside = {id(node): held.lineno for held in ast.walk(module.tree) if isinstance(held, ast.FunctionDef) for node in ast.walk(held)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and (path := _path(node.func)) and path[-1] in wanted:
            told = {CLASS: path[-1], WHOLE: ".".join(path), LINE: node.lineno, SCOPE: inside.get(id(node), 0)}
            yield {**_given(module, node, module.names, 0), **told}


def flattened(value: Any) -> Any:
    """A constructor's arguments with its class beside them; deeper ones are their class alone."""
    return {key: _word(held) for key, held in value.items()} if isinstance(value, dict) else _word(value)


def _word(value: Any) -> Any:
    if isinstance(value, list):
        return [_word(held) for held in value]
    return str(value.get(CLASS, UNSET)) if isinstance(value, dict) else value


def _called(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != function.name:
            yield node.func.id


def _result(module: Module, name: str, depth: int) -> Any:
    """What a function returns without arguments; its parameters are what they default to."""
    function = module.functions[name]
    given = dict(module.names)
    arguments = [*function.args.posonlyargs, *function.args.args]
    defaults = [*(None for _ in range(len(arguments) - len(function.args.defaults))), *function.args.defaults]
    pairs = [*zip(arguments, defaults, strict=True), *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)]
    given.update({held.arg: _value(module, default, given, depth) if default is not None else UNSET for held, default in pairs})
    return _statements(module, function.body, given, depth)


def _statements(module: Module, body: list[ast.stmt], given: dict[str, Any], depth: int = 0) -> Any:
    """What a list of statements returns; assignments go into ``given``, and what is not read makes nothing sure that it names."""
    for node in body:
        _step(module)
        if isinstance(node, ast.Return):
            return _value(module, node.value, given, depth)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            module.imported.update({held.asname or held.name: f"{node.module}.{held.name}" for held in node.names})
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            value = _value(module, node.value, given, depth) if node.value is not None else UNSET
            for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
                _assign(target, value, given)
        elif isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.AugAssign | ast.Match | ast.Delete):
            for target in (
                held for held in ast.walk(node) if isinstance(held, ast.Attribute | ast.Name) and isinstance(held.ctx, ast.Store)
            ):
                _assign(target, UNSET, given)
    return None


def _step(module: Module) -> None:
    module.left[0] -= 1
    if module.left[0] < 0:
        raise TooMuchError("asks for more steps than a configuration has")


def _assign(target: ast.expr, value: Any, given: dict[str, Any]) -> None:
    path = _path(target)
    if not path:
        return
    held: Any = given
    for name in path[:-1]:
        inner = held.get(name)
        if not isinstance(inner, dict):
            inner = held[name] = {}
        held = inner
    held[path[-1]] = value


def _path(node: ast.expr) -> list[str]:
    """``a.b.c`` as its names; nothing for any other place."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _value(module: Module, node: ast.expr | None, given: Mapping[str, Any], depth: int) -> Any:
    _step(module)
    if depth > DEEPEST:
        raise TooMuchError("is nested too deeply")
    match node:
        case None:
            return None
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=held):
            value = _value(module, held, given, depth + 1)
            return -value if isinstance(value, int | float) and not isinstance(value, bool) else UNSET
        case ast.BinOp(left=left, op=op, right=right):
            return _sum(op, _value(module, left, given, depth + 1), _value(module, right, given, depth + 1))
        case ast.List(elts=held) | ast.Tuple(elts=held):
            return [_value(module, one, given, depth + 1) for one in held]
        case ast.Dict(keys=keys, values=held):
            return _dictionary(module, keys, held, given, depth + 1)
        case ast.Name() | ast.Attribute():
            return _looked_up(_path(node), given)
        case ast.Call(func=function):
            return _call(module, node, ".".join(_path(function)), given, depth + 1)
    return UNSET


def _dictionary(module: Module, keys: list[ast.expr | None], held: list[ast.expr], given: Mapping[str, Any], depth: int) -> Any:
    words = [key.value if isinstance(key, ast.Constant) else None for key in keys]
    if not all(isinstance(word, str) for word in words):
        return UNSET
    return {word: _value(module, one, given, depth) for word, one in zip(words, held, strict=True)}


def _sum(op: ast.operator, left: Any, right: Any) -> Any:
    made = _SUMS.get(type(op))
    whole = all(isinstance(held, int) and not isinstance(held, bool) for held in (left, right))
    found = made(left, right) if made and whole else None
    return found if found is not None and abs(found) < LARGEST else UNSET


def _looked_up(path: list[str], given: Mapping[str, Any]) -> Any:
    held: Any = given
    if len(path) == 2 and path[0] == "torch" and "torch" not in given:  # a dtype's name
        return ".".join(path)
    for name in path:
        if not isinstance(held, Mapping) or name not in held:
            return UNSET
        held = held[name]
    return held if path else UNSET


def _call(module: Module, node: ast.Call, name: str, given: Mapping[str, Any], depth: int) -> Any:
    """A constructor's arguments by name, under its class; a function of the file as what it returns."""
    if name in module.functions:
        return _copied(_result(module, name, depth))
    whole = module.imported.get(name, "")
    if whole in module.bases:
        return _copied({CLASS: CONFIG, BASE: whole, **module.bases[whole]})
    if whole and not node.args and not node.keywords:
        return {CLASS: CONFIG, BASE: whole}
    if not (name.rpartition(".")[2][:1].isupper() or name in FACTORIES):
        return UNSET
    return {**_given(module, node, given, depth), CLASS: name}


def _given(module: Module, node: ast.Call, given: Mapping[str, Any], depth: int) -> Tree:
    """Arguments of a call by name; those without one by their place, and what is not known to be given as ``**``."""
    places = PLACES.get(".".join(_path(node.func)), ())
    made: Tree = {}
    for number, held in enumerate(node.args):
        if isinstance(held, ast.Starred):
            made["**"] = UNSET
        else:
            made[places[number] if number < len(places) else str(number)] = _value(module, held, given, depth)
    for keyword in node.keywords:
        value = _value(module, keyword.value, given, depth)
        if keyword.arg is not None:
            made[keyword.arg] = value
        elif isinstance(value, dict) and CLASS not in value:
            made |= value
        else:
            made["**"] = UNSET
    return made


def _copied(value: Any) -> Any:
    return (
        {key: _copied(held) for key, held in value.items()}
        if isinstance(value, Mapping)
        else list(value)
        if isinstance(value, list)
        else value
    )
