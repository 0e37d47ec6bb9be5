"""Configurations that are Python, read from their text: nothing of a file is imported or run.

What is read are plain values: literals, sums of whole numbers, names and arguments that were given such,
calls of functions of the same file, and the constructors of configurations. Anything else is ``UNSET``: the
engine gets something that the text does not say.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.python_module import Module, Tree, call_sites, syntax_tree
from memsheet.exchange.shared.python_values import (
    assign_target,
    block_values,
    call_arguments,
    default_parameter_values,
    evaluate_expression,
    evaluate_statements,
    function_return_value,
    given_parameters,
)
from memsheet.exchange.shared.script_places import CLASS, LINE, SCOPE, WHOLE
from memsheet.exchange.shared.settings_files import held_settings
from memsheet.frozen import replace
from memsheet.guard.budget import MOST_SCRIPT, Budget, TooMuchError, is_long_script

MOST_LOOKS, STEPS_OF_LOOK = 24, 4000
"""Calls whose surroundings are read, and the steps of each."""
MOST_CALLS, MOST_SITES = 3, 4
"""Calls of the file's own functions in one another that are followed, and places that call one of them."""


def read_module(text: str, bases: Mapping[str, Tree], given: Mapping[str, Any] | None = None) -> Module:
    """A file's own values and functions. ``bases``: what imported functions return, by their whole names;
    ``given``: the flags of the command that starts it.

    Raises ValueError for text that is no Python.
    """
    if is_long_script(text):
        raise TooMuchError(f"is longer than the {MOST_SCRIPT} characters that are read")
    parsed = syntax_tree(text)
    functions = {held.name: held for held in parsed.body if isinstance(held, ast.FunctionDef)}
    module = Module(
        tree=parsed,
        functions=functions,
        names={},
        imported={},
        bases=bases,
        sites=tuple(call_sites(parsed)),
        given=given or {},
    )
    if (held := held_settings(parsed)) is not None:
        found = evaluate_expression(module, held, {}, 0)
        module.settings.update(found if isinstance(found, dict) else {})
    evaluate_statements(module, parsed.body, module.names)
    return module


def returned_configs(module: Module) -> Iterator[tuple[str, Any]]:
    """What each function that no other one calls returns, in the order of the file."""
    called = {name for held in module.functions.values() for name in _called_function_names(held)}
    for name in module.functions:
        if name not in called:
            found = function_return_value(module, name, 0)
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
                **call_arguments(
                    module, node, values_at_line(module, node.lineno) if looks > 0 else module.names, 0
                ),
                **told,
            }
            module.steps.spend_size(found)
            yield found
            looks -= 1


def call_node(module: Module, call: Mapping[str, Any]) -> ast.Call | None:
    """Where a call that ``named_calls`` found stands in the file."""
    return next(
        (node for node, path, _ in module.sites if path[-1] == call[CLASS] and node.lineno == call[LINE]),
        None,
    )


def values_at_line(module: Module, line: int, calls: int = 0) -> Mapping[str, Any]:
    """What names hold on a line; the file's own where that takes too many steps. ``calls``: through how many
    calls of the file's own functions it was come to.
    """
    given: dict[str, Any] = {}
    try:
        _up_to(replace(module, steps=Budget(STEPS_OF_LOOK, "steps")), module.tree.body, line, given, calls)
    except TooMuchError:
        return module.names
    return given


def _called_with(module: Module, function: ast.FunctionDef, calls: int) -> dict[str, Any]:
    """What the file calls one of its functions with, or makes objects of one of its classes with, where all
    its calls agree; nothing of parameters that none gives.
    """
    within = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    name = _returned_class(module, function) if function.name == "__init__" else function.name
    sites = [node for node, path, _ in module.sites if path == (name,) and node.lineno not in within]
    if calls >= MOST_CALLS or not sites or len(sites) > MOST_SITES:
        return {}
    own = int(function.name == "__init__")  # the object that is made
    told = [
        given_parameters(
            function,
            _moved_places(
                call_arguments(module, node, values_at_line(module, node.lineno, calls + 1), 0), own
            ),
        )
        for node in sites
    ]
    usual = default_parameter_values(module, function, module.names, 0)
    found: dict[str, Any] = {}
    for name in {name for one in told for name in one}:
        values = [one.get(name, usual.get(name, UNSET)) for one in told]
        found[name] = values[0] if all(value == values[0] for value in values) else UNSET
    return found


def _returned_class(module: Module, function: ast.FunctionDef) -> str:
    """The class of the file whose objects a function makes."""
    held = (one for one in module.tree.body if isinstance(one, ast.ClassDef) and function in one.body)
    return next((one.name for one in held), "")


def _moved_places(arguments: Tree, by: int) -> Tree:
    """Arguments without a name further on by as many places."""
    return {str(int(at) + by) if at.isdecimal() else at: held for at, held in arguments.items()}


def _up_to(
    module: Module, body: Sequence[ast.stmt], line: int, given: dict[str, Any], calls: int = 0
) -> None:
    """Statements before a line, and of those around it the parts that it stands in."""
    for node in body:
        if node.lineno > line:
            return
        if (node.end_lineno or node.lineno) < line:
            evaluate_statements(module, [node], given)
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given.update(module.names)
            given.update(default_parameter_values(module, node, given, 0))
            own = module.functions.get(node.name) is node or node.name == "__init__"
            if isinstance(node, ast.FunctionDef) and own:
                given.update(_called_with(module, node, calls))
        for target, value in block_values(module, node, given):
            assign_target(target, value, given)
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None) or []
            if inner and inner[0].lineno <= line <= (inner[-1].end_lineno or 0):
                _up_to(module, inner, line, given, calls)
        return


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
