"""What statements and expressions of a Python file come to where they are plain; ``UNSET`` elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from memsheet.exchange.shared.file_format import KEYWORDS, UNSET
from memsheet.exchange.shared.function_commands import (
    decorated_defaults,
    given_by_command,
    option_default,
)
from memsheet.exchange.shared.linear_names import listed_linear_names
from memsheet.exchange.shared.plain_values import (
    compare_values,
    concatenate_text,
    evaluate_arithmetic,
    is_bounded_literal,
    joined_path,
    plain_part,
)
from memsheet.exchange.shared.python_module import Module, Tree, asks_command_line, attribute_path
from memsheet.exchange.shared.script_flags import PARSES, default_of_field, known_flags
from memsheet.exchange.shared.script_places import CLASS, OF_ENVIRONMENT
from memsheet.exchange.shared.settings_files import KEPT, LOADERS, OPEN, OPENED, settings_of
from memsheet.guard.budget import TooMuchError
from memsheet.patterns import late_pattern

BASE, PARSED = "base", "parse_args"
CONFIG = "Trainer.Config"  # what an imported function without arguments is taken to return
FACTORIES = ("model_registry", "default_adamw")  # functions that stand for what they are given, as classes do
PLACES = {"model_registry": ("flavor", "attn_backend")}  # arguments that are given without their names
CONFIG_LOADS = late_pattern(r"Config\.from_pretrained$")
"""What loads a model's configuration alone, which is read as a constructor of it."""
ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
"""What reads a variable of the environment, with what it is where nobody set it."""
ENVIRONMENTS = (["os", "environ"], ["environ"])
ASKS_BF16 = (
    "is_bfloat16_supported",
    "is_bf16_supported",
    "is_torch_bf16_gpu_available",
    "is_torch_bf16_available",
    "get_device_capability",
)
CARD_FACTS: Mapping[str, Any] = {**dict.fromkeys(ASKS_BF16, True), "get_device_capability": [8, 0]}
"""What scripts ask of the card that they start on, and what a card with bf16 answers."""
BACKENDS: Mapping[str, bool] = {"cuda": True, "mps": False, "xpu": False, "npu": False, "hpu": False}
"""What a program asks whether there is, and what it is told where NVIDIA's or AMD's cards are (torch
cuda/__init__.py, is_available; a build for ROCm answers to the same name).
"""
IS_THERE = "is_available"
NUMBERS: Mapping[str, type] = {"int": int, "float": float, "str": str}
PATHS = frozenset({"os.path.join", "Path", "pathlib.Path", "os.path.expanduser", "os.path.abspath"})
"""What makes a path of its arguments."""
NAMED_CONSTANTS = ("torch", "ShardingStrategy", "BackwardPrefetch")
"""What holds dtypes and other constants that are read by their names."""
DEEPEST, LONGEST_NUMBER = 24, 64


def evaluate_statements(module: Module, body: list[ast.stmt], given: dict[str, Any], depth: int = 0) -> Any:
    """What a list of statements returns; assignments go into ``given``, and what is not read makes nothing
    sure that it names.
    """
    for node in body:
        module.steps.spend()
        if isinstance(node, ast.Return):
            return evaluate_expression(module, node.value, given, depth)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            module.imported.update(
                {held.asname or held.name: f"{node.module}.{held.name}" for held in node.names}
            )
        elif isinstance(node, ast.ClassDef):
            given[node.name] = class_fields(module, node, given, depth)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            value = evaluate_expression(module, node.value, given, depth) if node.value is not None else UNSET
            for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
                assign_target(target, value, given)
        elif isinstance(node, ast.With) or (taken := _decided_branch(module, node, given, depth)) is not None:
            for target, value in block_values(module, node, given, depth):
                assign_target(target, value, given)
            inner = node.body if isinstance(node, ast.With) else taken
            if (value := evaluate_statements(module, inner or [], given, depth)) is not None:
                return value
        elif isinstance(
            node, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.AugAssign | ast.Match | ast.Delete
        ):
            for target in (
                held
                for held in ast.walk(node)
                if isinstance(held, ast.Attribute | ast.Name) and isinstance(held.ctx, ast.Store)
            ):
                assign_target(target, UNSET, given)
    return None


def class_fields(module: Module, node: ast.ClassDef, given: Mapping[str, Any], depth: int) -> Tree:
    """What the fields of a class of the file are where nobody says otherwise, in their order."""
    made: Tree = {}
    for held in node.body:
        targets = (
            held.targets
            if isinstance(held, ast.Assign)
            else [held.target]
            if isinstance(held, ast.AnnAssign)
            else []
        )
        value = getattr(held, "value", None)
        for target in targets:
            if isinstance(target, ast.Name):
                found = evaluate_expression(module, value, given, depth + 1) if value is not None else UNSET
                field = isinstance(found, dict) or (isinstance(value, ast.Call) and found == UNSET)
                made[target.id] = _field_default(module, value, given, depth + 1) if field else found
    return made


def _field_default(module: Module, node: ast.expr | None, given: Mapping[str, Any], depth: int) -> Any:
    """The default of ``field(default=…)``, or of ``field(default_factory=lambda: …)``."""
    if not isinstance(node, ast.Call) or attribute_path(node.func)[-1:] != ["field"]:
        return UNSET
    found = default_of_field(node)
    return evaluate_expression(module, found[0], given, depth) if found else UNSET


def _decided_branch(
    module: Module, node: ast.stmt, given: Mapping[str, Any], depth: int
) -> list[ast.stmt] | None:
    """The statements that a condition leads to, where the text decides it."""
    if _is_main(node):
        return node.body
    if not isinstance(node, ast.If):
        return None
    decided = _evaluate_condition(module, node.test, given, depth)
    return None if decided is None else node.body if decided else node.orelse


def _evaluate_condition(module: Module, test: ast.expr, given: Mapping[str, Any], depth: int) -> bool | None:
    """What a switch that the file itself sets says, a comparison of its values, or several of them; None of
    anything else.
    """
    if isinstance(test, ast.BoolOp):
        parts = [_evaluate_condition(module, one, given, depth + 1) for one in test.values]
        decides = isinstance(test.op, ast.Or)
        return decides if decides in parts else None if None in parts else not decides
    held = evaluate_expression(module, test, given, depth + 1)
    return held if isinstance(held, bool) else None


def condition_value(module: Module, test: ast.expr, given: Mapping[str, Any]) -> bool | None:
    """What a condition comes to with what names hold; None where the text does not say. Raises TooMuchError
    past its bounds.
    """
    decided = _evaluate_condition(module, test, given, 0)
    if decided is not None or not isinstance(test, ast.Name | ast.Attribute | ast.Subscript):
        return decided
    held = evaluate_expression(module, test, given, 0)
    return bool(held) if isinstance(held, int | float | str) and held != UNSET else None


def _started_with(module: Module, name: Any) -> Any:
    """What a variable of the environment is where a command starts the script; None where nothing sets it."""
    return module.given.get(f"{OF_ENVIRONMENT}{name}") if isinstance(name, str) else None


def _evaluate_comparison(module: Module, node: ast.Compare, given: Mapping[str, Any], depth: int) -> Any:
    """Whether two plain values are alike, or which of two numbers is more."""
    if len(node.ops) != 1:
        return UNSET
    left, right = (evaluate_expression(module, one, given, depth) for one in (node.left, node.comparators[0]))
    return compare_values(node.ops[0], left, right)


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


def assign_target(target: ast.expr, value: Any, given: dict[str, Any]) -> None:
    if isinstance(target, ast.Tuple | ast.List):
        _assign_each(target.elts, value, given)
        return
    path = attribute_path(target)
    if not path:
        return
    held: Any = given
    for name in path[:-1]:
        inner = held.get(name)
        if not isinstance(inner, dict):
            inner = held[name] = {}
        held = inner
    held[path[-1]] = value


def _assign_each(targets: Sequence[ast.expr], value: Any, given: dict[str, Any]) -> None:
    """Several targets at once: of a list each its own, of a parsed command line each all of it."""
    if isinstance(value, list) and len(value) == len(targets):
        for target, held in zip(targets, value, strict=True):
            assign_target(target, held, given)
        return
    whole = value if isinstance(value, dict) and value.get(CLASS) == PARSED else UNSET
    for target in targets:
        assign_target(target.value if isinstance(target, ast.Starred) else target, whole, given)


def evaluate_expression(module: Module, node: ast.expr | None, given: Mapping[str, Any], depth: int) -> Any:
    """What an expression comes to with what names hold, or ``UNSET``. Raises TooMuchError past its bounds."""
    module.steps.spend()
    if depth > DEEPEST:
        raise TooMuchError("is nested too deeply")
    match node:
        case None:
            return None
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value if is_bounded_literal(value) else UNSET
        case ast.UnaryOp(op=ast.Not()) | ast.BoolOp() | ast.Compare():
            return _evaluate_switch(module, node, given, depth + 1)
        case ast.UnaryOp(op=ast.USub(), operand=held):
            value = evaluate_expression(module, held, given, depth + 1)
            return -value if isinstance(value, int | float) and not isinstance(value, bool) else UNSET
        case ast.BinOp(left=left, op=op, right=right):
            return evaluate_arithmetic(
                op,
                evaluate_expression(module, left, given, depth + 1),
                evaluate_expression(module, right, given, depth + 1),
            )
        case ast.JoinedStr(values=held):
            return concatenate_text(
                [evaluate_expression(module, plain_part(one), given, depth + 1) for one in held]
            )
        case ast.Subscript(value=whole, slice=ast.expr() as place) if attribute_path(whole) in ENVIRONMENTS:
            told = _started_with(module, evaluate_expression(module, place, given, depth + 1))
            return UNSET if told is None else told
        case ast.Subscript(value=whole, slice=ast.expr() as place) if not isinstance(place, ast.Slice):
            held = evaluate_expression(module, whole, given, depth + 1)
            return _evaluate_element(held, evaluate_expression(module, place, given, depth + 1))
        case ast.List(elts=held) | ast.Tuple(elts=held):
            return [evaluate_expression(module, one, given, depth + 1) for one in held]
        case ast.Dict(keys=keys, values=held):
            return _evaluate_dict(module, keys, held, given, depth + 1)
        case ast.Name() | ast.Attribute():
            found = value_of_path(attribute_path(node), given)
            module.steps.spend_size(found)  # a name may stand for all that other names hold
            return found
        case ast.IfExp(orelse=other) if asks_command_line(node):
            return evaluate_expression(module, other, given, depth + 1)
        case ast.IfExp(test=test, body=body, orelse=other):
            taken = _evaluate_condition(module, test, given, depth + 1)
            ways = (body, other) if taken is None else (body,) if taken else (other,)
            found = [evaluate_expression(module, one, given, depth + 1) for one in ways]
            return found[0] if found[0] == found[-1] else UNSET
        case ast.Call(func=ast.Attribute(value=whole, attr="get"), args=[key, *rest]) if _is_table(
            table := evaluate_expression(module, whole, given, depth + 1)
        ):
            usual = evaluate_expression(module, rest[0], given, depth + 1) if rest else None
            word = evaluate_expression(module, key, given, depth + 1)
            return table.get(word, usual) if _is_known_word(word) else UNSET
        case ast.Call(func=function):
            return _evaluate_call(module, node, _called_name(function), given, depth + 1)
    return UNSET


def _is_table(value: Any) -> bool:
    """Whether it is a table of words, and no object."""
    return isinstance(value, dict) and CLASS not in value


def _is_known_word(value: Any) -> TypeGuard[str]:
    """Whether it is a text that is known."""
    return isinstance(value, str) and value != UNSET


def _evaluate_element(held: Any, place: Any) -> Any:
    """What stands at a place of a list, or under a word of a table."""
    if isinstance(held, dict):
        return held.get(place, UNSET) if _is_known_word(place) else UNSET
    whole = isinstance(place, int) and not isinstance(place, bool)
    return held[place] if isinstance(held, list) and whole and -len(held) <= place < len(held) else UNSET


def _evaluate_switch(module: Module, node: ast.expr, given: Mapping[str, Any], depth: int) -> Any:
    """A condition as a value."""
    if isinstance(node, ast.Compare):
        return _evaluate_comparison(module, node, given, depth)
    if isinstance(node, ast.UnaryOp):
        held = _evaluate_condition(module, node.operand, given, depth)
        return UNSET if held is None else not held
    decided = _evaluate_condition(module, node, given, depth)
    if decided is not None or not isinstance(node, ast.BoolOp):
        return UNSET if decided is None else decided
    return _first_deciding(module, node, given, depth)


def _first_deciding(module: Module, node: ast.BoolOp, given: Mapping[str, Any], depth: int) -> Any:
    """The plain value that ``a or b`` or ``a and b`` comes to, of those before it which the text tells."""
    stops = isinstance(node.op, ast.Or)
    held: Any = UNSET
    for one in node.values:
        held = evaluate_expression(module, one, given, depth + 1)
        if held == UNSET or not isinstance(held, bool | int | float | str | None):
            return UNSET
        if bool(held) is stops:
            break
    return held


def _evaluate_dict(
    module: Module, keys: list[ast.expr | None], held: list[ast.expr], given: Mapping[str, Any], depth: int
) -> Any:
    words = [key.value if isinstance(key, ast.Constant) else None for key in keys]
    if not all(isinstance(word, str) for word in words):
        return UNSET
    return {
        word: evaluate_expression(module, one, given, depth) for word, one in zip(words, held, strict=True)
    }


def value_of_path(path: list[str], given: Mapping[str, Any]) -> Any:
    held: Any = given
    for name in path:
        if not isinstance(held, Mapping) or name not in held:
            return ".".join(path[-2:]) if len(path) > 1 and path[-2] in NAMED_CONSTANTS else UNSET
        held = held[name]
    return held if path else UNSET


def _evaluate_call(module: Module, node: ast.Call, name: str, given: Mapping[str, Any], depth: int) -> Any:
    """A constructor's arguments by name, under its class; a function of the file as what it returns."""
    if name in module.functions:
        if (every := listed_linear_names(module.functions[name])) is not None:
            return every
        found = function_return_value(module, name, depth, call_arguments(module, node, given, depth))
        module.steps.spend_size(found)
        return _copy_config_value(found)
    if module.settings and (found := _settings_call(module, node, name, given, depth)) is not None:
        return found
    if name == "dict" and not node.args:
        return call_arguments(module, node, given, depth)
    if name.rpartition(".")[2] in PARSES and (flags := known_flags(module)):
        return {CLASS: PARSED, **{at: flag.default for at, flag in flags.items()}}
    if name.rpartition(".")[2] in CARD_FACTS:
        return CARD_FACTS[name.rpartition(".")[2]]
    if (asked := name.split("."))[-1] == IS_THERE and asked[-2:-1] and asked[-2] in BACKENDS:
        return BACKENDS[asked[-2]]
    if name in ENVIRONMENT and node.args:
        told = _started_with(module, evaluate_expression(module, node.args[0], given, depth))
        if told is not None or len(node.args) == 1:
            return UNSET if told is None else told
        return evaluate_expression(module, node.args[1], given, depth)
    if name in PATHS and node.args and not node.keywords:
        return joined_path([evaluate_expression(module, one, given, depth) for one in node.args])
    if name in NUMBERS and len(node.args) == 1 and not node.keywords:
        return _as_number(NUMBERS[name], evaluate_expression(module, node.args[0], given, depth))
    whole = module.imported.get(name, "")
    if whole in module.bases:
        return _copy_config_value({CLASS: CONFIG, BASE: whole, **module.bases[whole]})
    if whole and not node.args and not node.keywords:
        return {CLASS: CONFIG, BASE: whole}
    if isinstance(own := given.get(name), dict) and CLASS not in own:
        return {
            **_copy_config_value(own),
            **_by_field(call_arguments(module, node, given, depth), own),
            CLASS: name,
        }
    if not (name.rpartition(".")[2][:1].isupper() or name in FACTORIES or CONFIG_LOADS.search(name)):
        return UNSET
    return {**call_arguments(module, node, given, depth), CLASS: name}


def _settings_call(
    module: Module, node: ast.Call, name: str, given: Mapping[str, Any], depth: int
) -> Any | None:
    """A file that is opened, what one of settings says, or such settings under other access; None of any
    other call.
    """
    opens, loads = name in OPEN or name.endswith(".open"), name in LOADERS
    if not node.args and not name.endswith(".read"):
        return None
    if name.endswith((".read", ".read_text")):
        return value_of_path(attribute_path(node.func)[:-1], given)
    if not opens and not loads and name not in KEPT:
        return None
    held = evaluate_expression(module, node.args[0], given, depth)
    if opens:
        return {CLASS: OPENED, "0": held} if isinstance(held, str) else None
    if not loads:
        return _copy_config_value(held) if isinstance(held, dict) and CLASS not in held else None
    path = held.get("0") if isinstance(held, dict) and held.get(CLASS) == OPENED else held
    return _copy_config_value(settings_of(path, module.settings))


def _by_field(arguments: Tree, fields: Mapping[str, Any]) -> Tree:
    """Arguments without a name by the fields that they are."""
    names = tuple(fields)
    return {
        names[int(at)] if at.isdecimal() and int(at) < len(names) else at: held
        for at, held in arguments.items()
    }


def _called_name(function: ast.expr) -> str:
    """The name that is called; of a parser that is made and asked at once, what it is asked."""
    path = attribute_path(function)
    if not path and isinstance(function, ast.Attribute) and function.attr in PARSES:
        return function.attr
    return ".".join(path)


def _as_number(kind: type, value: Any) -> Any:
    if value == UNSET or not isinstance(value, int | float | str) or len(str(value)) > LONGEST_NUMBER:
        return UNSET
    try:
        made = kind(value)
    except (ValueError, OverflowError):
        return UNSET
    return made if is_bounded_literal(made) else UNSET


def call_arguments(module: Module, node: ast.Call, given: Mapping[str, Any], depth: int) -> Tree:
    """Arguments of a call by name; those without one by their place, and what is not known to be given as
    ``**``.
    """
    places = PLACES.get(".".join(attribute_path(node.func)), ())
    made: Tree = {}
    for number, held in enumerate(node.args):
        if isinstance(held, ast.Starred):
            made[KEYWORDS] = UNSET
        else:
            made[places[number] if number < len(places) else str(number)] = evaluate_expression(
                module, held, given, depth
            )
    for keyword in node.keywords:
        value = evaluate_expression(module, keyword.value, given, depth)
        if keyword.arg is not None:
            made[keyword.arg] = value
        elif isinstance(value, dict) and CLASS not in value:
            made |= value
        else:
            made[KEYWORDS] = UNSET
    return made


def _copy_config_value(value: Any) -> Any:
    return (
        {key: _copy_config_value(held) for key, held in value.items()}
        if isinstance(value, Mapping)
        else list(value)
        if isinstance(value, list)
        else value
    )


def given_parameters(function: ast.FunctionDef, arguments: Mapping[str, Any]) -> Tree:
    """Arguments of a call by the parameters that they are; of one with ``**`` that nobody knows, those that
    stand there.
    """
    places = [held.arg for held in (*function.args.posonlyargs, *function.args.args)]
    names = {*places, *(held.arg for held in function.args.kwonlyargs)}
    named = {
        places[int(at)] if at.isdecimal() and int(at) < len(places) else at: held
        for at, held in arguments.items()
    }
    return {at: held for at, held in named.items() if at in names}


def function_return_value(
    module: Module, name: str, depth: int, arguments: Mapping[str, Any] | None = None
) -> Any:
    """What a function returns; its parameters are what it is given, or what they default to."""
    function = module.functions[name]
    usual = default_parameter_values(module, function, module.names, depth)
    given = {**module.names, **usual, **given_parameters(function, arguments or {})}
    return evaluate_statements(module, function.body, given, depth)


def default_parameter_values(
    module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef, given: Mapping[str, Any], depth: int
) -> dict[str, Any]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    defaults = [*(None for _ in range(len(arguments) - len(function.args.defaults))), *function.args.defaults]
    pairs = [
        *zip(arguments, defaults, strict=True),
        *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True),
    ]
    decorated = decorated_defaults(function)
    usual = {held.arg: decorated.get(held.arg, option_default(default)) for held, default in pairs}
    told = given_by_command(module, function)
    return {
        name: told[name]
        if name in told
        else evaluate_expression(module, default, given, depth)
        if default is not None
        else UNSET
        for name, default in usual.items()
    }


def block_values(
    module: Module, node: ast.stmt, given: Mapping[str, Any], depth: int = 0
) -> list[tuple[ast.expr, Any]]:
    """Names that a loop or a block of its own gives values, with the file that is opened; of anything else
    nothing is known.
    """
    if isinstance(node, ast.With | ast.AsyncWith):
        return [
            (held.optional_vars, _opened_file(module, held.context_expr, given, depth))
            for held in node.items
            if held.optional_vars is not None
        ]
    return [(node.target, UNSET)] if isinstance(node, ast.For | ast.AsyncFor) else []


def _opened_file(module: Module, node: ast.expr, given: Mapping[str, Any], depth: int) -> Any:
    found = evaluate_expression(module, node, given, depth + 1) if module.settings else UNSET
    return found if isinstance(found, dict) and found.get(CLASS) == OPENED else UNSET
