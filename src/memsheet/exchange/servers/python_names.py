"""What the names of a Python script hold that makes or starts a server: constants, flags of its command line
and parameters of functions, with what is taken for granted of them. Read through its syntax tree, never run.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.exchange.shared.environment_defaults import environment_default, environment_words
from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.plain_values import joined_path
from memsheet.exchange.shared.python_module import Module, asks_command_line, attribute_path, call_sites
from memsheet.exchange.shared.python_values import PATHS
from memsheet.exchange.shared.script_flags import PARSES, known_flags
from memsheet.guard.budget import Budget, TooMuchError

DEEPEST, MOST_HELD, MOST_WORD = 8, 2**12, 2**12
OPEN = object()
"""What stands for a value that the text does not tell."""
FURTHER = "**"
"""How keys begin that stand for arguments which nobody can tell."""
CHANGES = ("update", "pop", "setdefault", "clear", "popitem")
USUAL = ("args",)
"""What a parsed command line is called where a function is given it."""
MOST_CALLS = 16
"""Calls of a function that are looked at."""
Notes = Mapping[str, tuple[str, ...]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


FROM_LINE = "parse_args_into_dataclasses"
"""What makes objects of a command line (huggingface/transformers hf_argparser.py)."""


class ConstructorArguments(dict[str, Any]):
    """What a constructor was given, which is no mapping of arguments itself."""


class Fields(dict[str, Any]):
    """The fields of a dataclass, at their defaults."""


class Instance(ConstructorArguments):
    """An object of a dataclass: what its fields hold."""


class Parser(list[Instance]):
    """A parser of dataclasses: what it makes where the command says nothing."""


def _own_constants(tree: ast.Module) -> dict[str, Any]:
    """Texts and numbers that a module gives names at its top."""
    found: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=held)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as held)
            ):
                value = expression_value(held, found)
                found |= {name: value} if isinstance(value, str | int | float) else {}
    return found


def parsed_flags(tree: ast.Module, nodes: Sequence[ast.AST]) -> tuple[dict[str, Any], Notes]:
    """Places of a parsed command line (``args.model``) at the defaults that the script gives its flags, and
    what to say of each.
    """
    names = _own_constants(tree)
    module = Module(
        tree=tree, functions={}, names=names, imported={}, bases={}, sites=tuple(call_sites(tree))
    )
    flags = known_flags(module)
    holders = {*USUAL, *(name for node in nodes for name in _parsed_names(node))} if flags else set()
    told = {f"{name}.{at}": flag for name in holders for at, flag in flags.items()}
    notes = {
        at: (f"{flag.name} = {flag.default} (line {flag.line}: its default)",) for at, flag in told.items()
    }
    return {at: flag.default for at, flag in told.items()}, notes


def _parsed_names(node: ast.AST) -> list[str]:
    """Names that are given a parsed command line."""
    match node:
        case ast.Assign(targets=[target], value=ast.Call(func=ast.Attribute(attr=attr))) if attr in PARSES:
            first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
            return [first.id] if isinstance(first, ast.Name) else []
    return []


def assumptions_of_names(nodes: Sequence[ast.AST], notes: Notes) -> Notes:
    """What is taken for granted of places, and of the names that are given them."""
    found = dict(notes)
    for node in nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                found[name] = tuple(dict.fromkeys((*found.get(name, ()), *assumptions_of(value, found))))
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=value):
                told = assumptions_of(value, found)
                found |= {
                    one.id: (*found.get(one.id, ()), *told) for one in names if isinstance(one, ast.Name)
                }
    return found


def assumptions_of(node: ast.AST, notes: Notes) -> tuple[str, ...]:
    """What is taken for granted where an expression is read."""
    told: dict[str, None] = {}
    for one in ast.walk(node):
        path = ".".join(attribute_path(one)) if isinstance(one, ast.Name | ast.Attribute) else ""
        told |= dict.fromkeys(notes.get(path, ()))
        if isinstance(one, ast.IfExp) and asks_command_line(one):
            told[f"line {one.lineno}: the command gives no argument"] = None
        if isinstance(one, ast.Attribute) and one.attr == FROM_LINE:
            told[f"line {one.lineno}: the command gives no flag of a dataclass"] = None
        if (said := environment_default(one)) is not None:
            told[environment_words(one, *said)] = None
    return tuple(told)


def function_parameters(
    nodes: Sequence[ast.AST], known: Mapping[str, Any], notes: Notes
) -> list[tuple[range, dict[str, Any], Notes]]:
    """Of each function its lines, what its parameters hold, and what is taken for granted of them: what the
    file's own calls give them, or their defaults; open where that differs. Those that it
    changes are left out.
    """
    calls: dict[str, list[ast.Call]] = {}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            calls.setdefault(node.func.id, []).append(node)
    functions = [one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    counts = Counter(one.name for one in functions)
    return [
        (range(one.lineno, (one.end_lineno or 0) + 1), *_parameters_held(one, own, known, notes))
        for one in functions
        if counts[one.name] == 1 and len(own := calls.get(one.name, [])) <= MOST_CALLS
    ]


def _parameters_held(
    function: Function, calls: Sequence[ast.Call], known: Mapping[str, Any], notes: Notes
) -> tuple[dict[str, Any], Notes]:
    stored = {
        one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    found: dict[str, Any] = {}
    told: dict[str, tuple[str, ...]] = {}
    for place, name, default in _parameters_of(function):
        given = [_given_value(one, place, name, default) for one in calls] or [default]
        if name in stored or not any(given):
            continue
        values = [expression_value(one, known) if one is not None else OPEN for one in given]
        found[name] = values[0] if all(one == values[0] for one in values) else OPEN
        own = f"{name} = {found[name]} (line {function.lineno}: its default)"
        inner = (line for one in given if one is not None for line in assumptions_of(one, notes))
        told[name] = (*((own,) if default in given else ()), *inner)
    return found, told


def _parameters_of(
    function: Function,
) -> Iterator[tuple[int | None, str, ast.expr | None]]:
    """Each parameter: its place (None where it has to be named), its name and its default."""
    placed = [*function.args.posonlyargs, *function.args.args]
    defaults = [None] * (len(placed) - len(function.args.defaults)) + [*function.args.defaults]
    for at, (one, default) in enumerate(zip(placed, defaults, strict=True)):
        yield at, one.arg, default
    for one, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        yield None, one.arg, default


def _given_value(call: ast.Call, place: int | None, name: str, default: ast.expr | None) -> ast.expr | None:
    """What a call gives a parameter; nothing where the call leaves that open."""
    if any(isinstance(one, ast.Starred) for one in call.args) or any(
        one.arg is None for one in call.keywords
    ):
        return None
    if place is not None and place < len(call.args):
        return call.args[place]
    return next((one.value for one in call.keywords if one.arg == name), default)


def call_keywords(node: ast.Call, known: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Arguments of a call by name, those of ``**`` among them."""
    found: dict[str, Any] = {}
    for one in node.keywords:
        value = expression_value(one.value, known, depth)
        found |= {one.arg: value} if one.arg else _further_arguments(one.value, value)
    return found


def _further_arguments(node: ast.expr, value: Any) -> dict[str, Any]:
    """What ``**`` adds: a mapping's keys, else one key that stands for them all."""
    if isinstance(value, Mapping) and not isinstance(value, ConstructorArguments):
        return dict(value)
    return {f"{FURTHER}{'_'.join(attribute_path(node)) or 'further_arguments'}": OPEN}


def known_constants(nodes: Sequence[ast.AST], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Names that are given one value that the text tells; one that is given two is open, as an object is that
    is changed later. ``flags``: what the places of a parsed command line hold.
    """
    found: dict[str, Any] = {**flags}
    for node in nodes:
        if isinstance(node, ast.ClassDef) and _is_dataclass(node):
            found[node.name] = _fields_of(node, found)
        if isinstance(node, ast.ClassDef):
            for at, value in _class_values(node, found):
                found[at] = value if found.get(at, value) == value else OPEN
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            for name, value in _unpacked_values(node.targets[0], expression_value(node.value, found)):
                found[name] = value if found.get(name, value) == value else OPEN
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign) and len(node.targets) == 1
            else node.target
            if isinstance(node, ast.AnnAssign) and node.value is not None
            else None
        )
        if (
            isinstance(target, ast.Name)
            and isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
        ):
            value = _of_bounded_size(expression_value(node.value, found))
            found[target.id] = value if found.get(target.id, value) == value else OPEN
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr, ctx=ast.Store()):
                if isinstance(held := found.get(name), Instance):
                    found[name] = Instance({**held, attr: OPEN})
                if f"{name}.{attr}" in found and f"{name}.{attr}" not in flags:
                    found[f"{name}.{attr}"] = OPEN
    changed = {name for node in nodes for name in _changed_names(node)}
    return {
        at: OPEN if at in changed and isinstance(held, Mapping | list) else held for at, held in found.items()
    }


def _class_values(node: ast.ClassDef, known: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a class gives names of its own, by the place at which its methods read them (``self.model``)."""
    for one in node.body:
        target = one.targets[0] if isinstance(one, ast.Assign) else getattr(one, "target", None)
        if isinstance(one, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and one.value:
            yield f"self.{target.id}", _default_of_field(one.value, known)


FIELDS = ("field", "Field", "parameter")
"""Calls that say what a field is where nobody gives it (dataclasses; pydantic fields.py; modal cls.py)."""
MODELS = (["BaseModel"], ["BaseSettings"], ["NamedTuple"])
HOLDERS = ("use_arguments",)
"""What makes an object of a class of arguments of what a command gives (bentoml _internal/utils/args.py)."""
NAMED_BY = ("HuggingFaceModel",)
"""What stands for the model that it is given (bentoml _internal/bento/… models/huggingface.py)."""


def _is_dataclass(node: ast.ClassDef) -> bool:
    """Whether a class stands under ``@dataclass``, called or not, and is made of no other, or is one of
    pydantic's.
    """
    bases = [attribute_path(one)[-1:] for one in node.bases]
    if bases and all(base in MODELS for base in bases):
        return True
    marks = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    return not node.bases and any(
        isinstance(one, ast.Name | ast.Attribute) and attribute_path(one)[-1:] == ["dataclass"]
        for one in marks
    )


def _fields_of(node: ast.ClassDef, known: Mapping[str, Any]) -> Fields:
    """Fields in their order; open without a plain default."""
    return Fields(
        (one.target.id, OPEN if one.value is None else _default_of_field(one.value, known))
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    )


def _default_of_field(node: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Call) and (attribute_path(node.func) or [""])[-1] in FIELDS:
        first = expression_value(node.args[0], known) if node.args else OPEN
        return call_keywords(node, known).get("default", OPEN if first is ... else first)
    return expression_value(node, known)


def _dataclass_instance(node: ast.Call, fields: Fields, known: Mapping[str, Any], depth: int) -> Instance:
    placed = (expression_value(one, known, depth) for one in node.args)
    return Instance(
        {**fields, **dict(zip(fields, placed, strict=False)), **call_keywords(node, known, depth)}
    )


def _unpacked_values(target: ast.Tuple, value: Any) -> Iterator[tuple[str, Any]]:
    """Names of a tuple that is assigned to, with what each gets."""
    same = isinstance(value, list) and len(value) == len(target.elts)
    for at, one in enumerate(target.elts):
        if isinstance(one, ast.Name):
            yield one.id, value[at] if same else OPEN


def _held_at(held: Any, at: Any) -> Any:
    """What a mapping or a list has in a place."""
    if isinstance(held, Mapping):
        return held.get(at, OPEN) if isinstance(at, str) else OPEN
    inside = isinstance(held, list) and type(at) is int and -len(held) <= at < len(held)
    return held[at] if inside else OPEN


def _changed_names(node: ast.AST) -> list[str]:
    """Names of objects that a statement gives further keys."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in CHANGES:
            return [name]
        case ast.AugAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _of_bounded_size(value: Any) -> Any:
    """A value, or an open one where it is larger written out than a command's are."""
    try:
        Budget(MOST_HELD, "of a value").spend_size(value)
    except TooMuchError:
        return OPEN
    return value


def _joined_parts(parts: Sequence[ast.expr], known: Mapping[str, Any], depth: int) -> Any:
    """A path of its parts, as far as they are known from its end on."""
    held = [expression_value(one, known, depth) for one in parts]
    found = joined_path([UNSET if one is OPEN else one for one in held])
    return OPEN if found == UNSET else found


def expression_value(node: ast.AST, known: Mapping[str, Any], depth: int = 0) -> Any:
    """What an expression comes to, as far as the text tells."""
    if depth > DEEPEST:
        return OPEN
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(id=name):
            return known.get(name, OPEN)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            held = known.get(name)
            return known.get(f"{name}.{attr}", held.get(attr, OPEN) if isinstance(held, Instance) else OPEN)
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=name), attr=attr):
            return known.get(f"{name}.{attr}", OPEN)
        case ast.Subscript(value=holder, slice=place):
            whole = expression_value(holder, known, depth + 1)
            return _held_at(whole, expression_value(place, known, depth + 1))
        case ast.Call(func=ast.Name(id=name)) if isinstance(known.get(name), Fields):
            return _dataclass_instance(node, known[name], known, depth + 1)
        case ast.Call(func=ast.Attribute(attr=attr), args=[only]) if attr in HOLDERS:
            fields = known.get(only.id) if isinstance(only, ast.Name) else None
            return Instance(fields) if isinstance(fields, Fields) else OPEN
        case ast.Call(func=ast.Attribute(attr=attr), args=[first, *_]) if attr in NAMED_BY:
            return expression_value(first, known, depth + 1)
        case ast.Call(
            func=ast.Attribute(value=holder, attr="lower" | "strip" as change), args=[], keywords=[]
        ):
            text = expression_value(holder, known, depth + 1)
            return getattr(text, change)() if isinstance(text, str) else OPEN
        case ast.Call(func=ast.Name(id="HfArgumentParser"), args=[only]):
            named = only.elts if isinstance(only, ast.Tuple | ast.List) else [only]
            classes = [known.get(one.id) if isinstance(one, ast.Name) else None for one in named]
            fields = [one for one in classes if isinstance(one, Fields)]
            return Parser(map(Instance, fields)) if len(fields) == len(classes) else OPEN
        case ast.Call(func=ast.Attribute(value=parser, attr=attr)) if attr == FROM_LINE:
            parsed = expression_value(parser, known, depth + 1)
            return list(parsed) if isinstance(parsed, Parser) else OPEN
        case ast.Dict(keys=keys, values=values):
            found: dict[str, Any] = {}
            for named_at, held in zip(keys, values, strict=True):
                value = expression_value(held, known, depth + 1)
                key = expression_value(named_at, known, depth + 1) if named_at is not None else None
                found |= _further_arguments(held, value) if named_at is None else {}
                found |= {key: value} if isinstance(key, str) else {}
            return found
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [expression_value(one, known, depth + 1) for one in parts]
        case ast.IfExp(orelse=other) if asks_command_line(node):
            return expression_value(other, known, depth + 1)
        case ast.IfExp(test=test, body=body, orelse=other):
            told = expression_value(test, known, depth + 1)
            return OPEN if told is OPEN else expression_value(body if told else other, known, depth + 1)
        case ast.JoinedStr(values=parts):
            texts = [
                expression_value(one.value if isinstance(one, ast.FormattedValue) else one, known, depth + 1)
                for one in parts
            ]
            return OPEN if OPEN in texts else "".join(map(str, texts))[:MOST_WORD]
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _joined_parts([left, right], known, depth + 1)
        case ast.Call(func=function, args=[_, *_] as parts, keywords=[]) if (
            ".".join(attribute_path(function)) in PATHS
        ):
            return _joined_parts(parts, known, depth + 1)
        case ast.Call(func=ast.Name(id="str" | "int" | "float"), args=[only]):
            return expression_value(only, known, depth + 1)
        case ast.Call(func=ast.Attribute(attr="getenv" | "get"), args=[_, default]):
            return expression_value(default, known, depth + 1)
        case ast.BoolOp() if (told := environment_default(node)) is not None:
            return told[1]
        case ast.Call(args=[], keywords=[_, *_], func=function):
            made = ConstructorArguments if attribute_path(function)[-1:] != ["dict"] else dict
            return made(call_keywords(node, known, depth + 1))
    return OPEN
