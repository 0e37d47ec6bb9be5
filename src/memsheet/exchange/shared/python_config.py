"""Configurations that are Python, read from their text: nothing of a file is imported or run.

What is read are plain values: literals, sums of whole numbers, names and arguments that were given such,
calls of functions of the same file, and the constructors of configurations. Anything else is ``UNSET``: the
engine gets something that the text does not say.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, TypeGuard

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.plain_values import (
    concatenate_text,
    evaluate_arithmetic,
    is_bounded_literal,
    plain_part,
)
from memsheet.frozen import dataclass
from memsheet.guard.budget import Budget, TooMuchError

Tree = dict[str, Any]
CLASS, BASE, LINE, WHOLE, SCOPE = (
    "class",
    "base",
    "lambda",
    "import",
    "def",
)  # no argument can be called by a word of the language
CONFIG = "Trainer.Config"  # what an imported function without arguments is taken to return
FACTORIES = ("model_registry", "default_adamw")  # functions that stand for what they are given, as classes do
PLACES = {"model_registry": ("flavor", "attn_backend")}  # arguments that are given without their names
MOST_LOOKS, STEPS_OF_LOOK = 24, 4000
"""Calls whose surroundings are read, and the steps of each."""
DEEPEST, MOST_STEPS = 24, 20_000
MOST_TEXT = 2**15
"""Characters of a file that is parsed: its tree takes a thousand bytes of memory for some of them."""


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
    steps: Budget = field(default_factory=lambda: Budget(MOST_STEPS, "steps"))


def read_module(text: str, bases: Mapping[str, Tree]) -> Module:
    """A file's own values and functions. ``bases``: what imported functions return, by their whole names.

    Raises ValueError for text that is no Python.
    """
    if len(text) > MOST_TEXT:
        raise TooMuchError(f"is longer than the {MOST_TEXT} characters that are read")
    parsed = _syntax_tree(text)
    functions = {held.name: held for held in parsed.body if isinstance(held, ast.FunctionDef)}
    module = Module(
        tree=parsed, functions=functions, names={}, imported={}, bases=bases, sites=tuple(_call_sites(parsed))
    )
    _evaluate_statements(module, parsed.body, module.names)
    return module


@lru_cache(maxsize=2)
def _syntax_tree(text: str) -> ast.Module:
    """The tree of a text, which several formats ask for; nobody changes it."""
    try:
        return ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"is no Python: {type(error).__name__}") from None


def returned_configs(module: Module) -> Iterator[tuple[str, Any]]:
    """What each function that no other one calls returns, in the order of the file."""
    called = {name for held in module.functions.values() for name in _called_function_names(held)}
    for name in module.functions:
        if name not in called:
            found = _function_return_value(module, name, 0)
            module.steps.spend_size(found)
            yield name, found


def named_calls(module: Module, names: Iterable[str], *, local: bool = False) -> Iterator[Tree]:
    """Every call of some names, wherever it stands: its arguments, and under words that no argument has its
    name, its whole name, its line and the line of the function around it (0 outside of any). Of the names
    around it only the file's own are known, or where ``local`` is said those of the functions around it, too.
    """
    looks = MOST_LOOKS if local else 0
    wanted = frozenset(names)
    for node, path, scope in module.sites:
        if path[-1] in wanted:
            told = {CLASS: path[-1], WHOLE: ".".join(path), LINE: node.lineno, SCOPE: scope}
            found = {
                **_call_arguments(
                    module, node, _names_at(module, node.lineno) if looks > 0 else module.names, 0
                ),
                **told,
            }
            module.steps.spend_size(found)
            yield found
            looks -= 1


def _names_at(module: Module, line: int) -> Mapping[str, Any]:
    """What names hold on a line; the file's own where that takes too many steps."""
    given: dict[str, Any] = {}
    try:
        _up_to(replace(module, steps=Budget(STEPS_OF_LOOK, "steps")), module.tree.body, line, given)
    except TooMuchError:
        return module.names
    return given


def _up_to(module: Module, body: Sequence[ast.stmt], line: int, given: dict[str, Any]) -> None:
    """Statements before a line, and of those around it the parts that it stands in."""
    for node in body:
        if node.lineno > line:
            return
        if (node.end_lineno or node.lineno) < line:
            _evaluate_statements(module, [node], given)
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given.update(module.names)
            given.update(_default_parameter_values(module, node, given, 0))
        for target in _block_targets(node):
            _assign_target(target, UNSET, given)
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None) or []
            if inner and inner[0].lineno <= line <= (inner[-1].end_lineno or 0):
                _up_to(module, inner, line, given)
        return


def _block_targets(node: ast.stmt) -> list[ast.expr]:
    """Names that a loop or a block of its own gives values."""
    if isinstance(node, ast.With | ast.AsyncWith):
        return [held.optional_vars for held in node.items if held.optional_vars is not None]
    return [node.target] if isinstance(node, ast.For | ast.AsyncFor) else []


def _call_sites(tree: ast.Module) -> Iterator[tuple[ast.Call, tuple[str, ...], int]]:
    """Level by level, as ``ast.walk`` goes."""
    level: list[tuple[ast.AST, int]] = [(tree, 0)]
    while level:
        below: list[tuple[ast.AST, int]] = []
        for node, scope in level:
            inside = node.lineno if isinstance(node, ast.FunctionDef) else scope
            if isinstance(node, ast.Call) and (path := _attribute_path(node.func)):
                yield node, tuple(path), scope
            below += [(child, inside) for child in ast.iter_child_nodes(node)]
        level = below


def flatten_constructor(value: Any) -> Any:
    """A constructor's arguments with its class beside them; deeper ones are their class alone."""
    return (
        {key: _class_name_or_value(held) for key, held in value.items()}
        if isinstance(value, dict)
        else _class_name_or_value(value)
    )


def _class_name_or_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_class_name_or_value(held) for held in value]
    return str(value.get(CLASS, UNSET)) if isinstance(value, dict) else value


def _called_function_names(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != function.name:
            yield node.func.id


def _function_return_value(module: Module, name: str, depth: int) -> Any:
    """What a function returns without arguments; its parameters are what they default to."""
    function = module.functions[name]
    given = {**module.names, **_default_parameter_values(module, function, module.names, depth)}
    return _evaluate_statements(module, function.body, given, depth)


def _default_parameter_values(
    module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef, given: Mapping[str, Any], depth: int
) -> dict[str, Any]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    defaults = [*(None for _ in range(len(arguments) - len(function.args.defaults))), *function.args.defaults]
    pairs = [
        *zip(arguments, defaults, strict=True),
        *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True),
    ]
    return {
        held.arg: _evaluate_expression(module, default, given, depth) if default is not None else UNSET
        for held, default in pairs
    }


def _evaluate_statements(module: Module, body: list[ast.stmt], given: dict[str, Any], depth: int = 0) -> Any:
    """What a list of statements returns; assignments go into ``given``, and what is not read makes nothing
    sure that it names.
    """
    for node in body:
        module.steps.spend()
        if isinstance(node, ast.Return):
            return _evaluate_expression(module, node.value, given, depth)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            module.imported.update(
                {held.asname or held.name: f"{node.module}.{held.name}" for held in node.names}
            )
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            value = (
                _evaluate_expression(module, node.value, given, depth) if node.value is not None else UNSET
            )
            for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
                _assign_target(target, value, given)
        elif isinstance(node, ast.With) or _is_main(node):
            for target in _block_targets(node):
                _assign_target(target, UNSET, given)
            if (value := _evaluate_statements(module, node.body, given, depth)) is not None:
                return value
        elif isinstance(
            node, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.AugAssign | ast.Match | ast.Delete
        ):
            for target in (
                held
                for held in ast.walk(node)
                if isinstance(held, ast.Attribute | ast.Name) and isinstance(held.ctx, ast.Store)
            ):
                _assign_target(target, UNSET, given)
    return None


def _is_main(node: ast.stmt) -> TypeGuard[ast.If]:
    """Whether it is what a file does where it is started itself."""
    match node:
        case ast.If(
            test=ast.Compare(
                left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]
            ),
            orelse=[],
        ):
            return True
    return False


def _assign_target(target: ast.expr, value: Any, given: dict[str, Any]) -> None:
    path = _attribute_path(target)
    if not path:
        return
    held: Any = given
    for name in path[:-1]:
        inner = held.get(name)
        if not isinstance(inner, dict):
            inner = held[name] = {}
        held = inner
    held[path[-1]] = value


def _attribute_path(node: ast.expr) -> list[str]:
    """``a.b.c`` as its names; nothing for any other place."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _evaluate_expression(module: Module, node: ast.expr | None, given: Mapping[str, Any], depth: int) -> Any:
    module.steps.spend()
    if depth > DEEPEST:
        raise TooMuchError("is nested too deeply")
    match node:
        case None:
            return None
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value if is_bounded_literal(value) else UNSET
        case ast.UnaryOp(op=ast.USub(), operand=held):
            value = _evaluate_expression(module, held, given, depth + 1)
            return -value if isinstance(value, int | float) and not isinstance(value, bool) else UNSET
        case ast.BinOp(left=left, op=op, right=right):
            return evaluate_arithmetic(
                op,
                _evaluate_expression(module, left, given, depth + 1),
                _evaluate_expression(module, right, given, depth + 1),
            )
        case ast.JoinedStr(values=held):
            return concatenate_text(
                [_evaluate_expression(module, plain_part(one), given, depth + 1) for one in held]
            )
        case ast.List(elts=held) | ast.Tuple(elts=held):
            return [_evaluate_expression(module, one, given, depth + 1) for one in held]
        case ast.Dict(keys=keys, values=held):
            return _evaluate_dict(module, keys, held, given, depth + 1)
        case ast.Name() | ast.Attribute():
            found = _looked_up(_attribute_path(node), given)
            module.steps.spend_size(found)  # a name may stand for all that other names hold
            return found
        case ast.Call(func=function):
            return _evaluate_call(module, node, ".".join(_attribute_path(function)), given, depth + 1)
    return UNSET


def _evaluate_dict(
    module: Module, keys: list[ast.expr | None], held: list[ast.expr], given: Mapping[str, Any], depth: int
) -> Any:
    words = [key.value if isinstance(key, ast.Constant) else None for key in keys]
    if not all(isinstance(word, str) for word in words):
        return UNSET
    return {
        word: _evaluate_expression(module, one, given, depth) for word, one in zip(words, held, strict=True)
    }


def _looked_up(path: list[str], given: Mapping[str, Any]) -> Any:
    held: Any = given
    if len(path) == 2 and path[0] == "torch" and "torch" not in given:  # a dtype's name
        return ".".join(path)
    for name in path:
        if not isinstance(held, Mapping) or name not in held:
            return UNSET
        held = held[name]
    return held if path else UNSET


def _evaluate_call(module: Module, node: ast.Call, name: str, given: Mapping[str, Any], depth: int) -> Any:
    """A constructor's arguments by name, under its class; a function of the file as what it returns."""
    if name in module.functions:
        found = _function_return_value(module, name, depth)
        module.steps.spend_size(found)
        return _copy_config_value(found)
    if name == "dict" and not node.args:
        return _call_arguments(module, node, given, depth)
    whole = module.imported.get(name, "")
    if whole in module.bases:
        return _copy_config_value({CLASS: CONFIG, BASE: whole, **module.bases[whole]})
    if whole and not node.args and not node.keywords:
        return {CLASS: CONFIG, BASE: whole}
    if not (name.rpartition(".")[2][:1].isupper() or name in FACTORIES):
        return UNSET
    return {**_call_arguments(module, node, given, depth), CLASS: name}


def _call_arguments(module: Module, node: ast.Call, given: Mapping[str, Any], depth: int) -> Tree:
    """Arguments of a call by name; those without one by their place, and what is not known to be given as
    ``**``.
    """
    places = PLACES.get(".".join(_attribute_path(node.func)), ())
    made: Tree = {}
    for number, held in enumerate(node.args):
        if isinstance(held, ast.Starred):
            made["**"] = UNSET
        else:
            made[places[number] if number < len(places) else str(number)] = _evaluate_expression(
                module, held, given, depth
            )
    for keyword in node.keywords:
        value = _evaluate_expression(module, keyword.value, given, depth)
        if keyword.arg is not None:
            made[keyword.arg] = value
        elif isinstance(value, dict) and CLASS not in value:
            made |= value
        else:
            made["**"] = UNSET
    return made


def _copy_config_value(value: Any) -> Any:
    return (
        {key: _copy_config_value(held) for key, held in value.items()}
        if isinstance(value, Mapping)
        else list(value)
        if isinstance(value, list)
        else value
    )
