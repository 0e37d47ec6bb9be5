"""Servers in Python: engines that a script makes, and commands that it starts as lists of words. Read as
text through its syntax tree, never run.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from memsheet.exchange.servers.ray_serve import LOADING, engine_flag, llm_config_line
from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.notebook import NOTEBOOK
from memsheet.exchange.shared.serve_script import LAUNCHES
from memsheet.guard.budget import Budget, TooMuchError

MOST_TEXT, MOST_NODES, DEEPEST = 2**15, 20_000, 8
MOST_SERVERS, MOST_LAUNCH, MOST_HELD, MOST_WORD = 64, 4, 2**12, 2**12
_SERVES = re.compile(
    r"LLMConfig\(|\bLLM\(|EngineArgs\(|[\"']serve[\"']|vllm serve|launch_server|trtllm-serve"
)
_TRAINS = re.compile(r"Trainer\b|\.backward\(|GRPOConfig|SFTConfig|optimizer\.step")
_PINNED = re.compile(r"\b(?:vllm|sglang)==\d[\w.]{1,24}")
OF_VLLM = ("LLM", "AsyncEngineArgs", "EngineArgs")
OPEN = object()
"""What stands for a value that the text does not tell."""


def python_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The servers that a script makes or starts; none of one that trains, or that is no Python."""
    del parse
    if (
        not name.endswith((".py", NOTEBOOK))
        or len(text) > MOST_TEXT
        or not _SERVES.search(text)
        or _TRAINS.search(text)
    ):
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
    pinned = "".join(f": {one[0]}\n" for one in _PINNED.finditer(text))
    found = _servers_of(nodes) if len(nodes) <= MOST_NODES else ()
    return [replace(one, script=pinned + one.script) for one in islice(found, MOST_SERVERS)]


def _servers_of(nodes: list[ast.AST]) -> Iterator[NamedServer]:
    known, grown = _known_constants(nodes), _grown_lists(nodes)
    tensorrt = any(
        isinstance(one, ast.ImportFrom) and str(one.module).startswith("tensorrt_llm") for one in nodes
    )
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="LLMConfig") | ast.Attribute(attr="LLMConfig")):
                config = _expression_value(node, known)
                if isinstance(config, Mapping) and isinstance(config.get(LOADING), Mapping):
                    model, line = llm_config_line(_told_arguments(config))
                    yield from [NamedServer(model, line)] if model else []
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in OF_VLLM:
                yield from _made_engine(node, known, tensorrt=tensorrt)
            case ast.List() | ast.Tuple():
                first = tuple(_argument_word(one, known) for one in node.elts[:MOST_LAUNCH])
                if any(first[: len(one)] == one for one in LAUNCHES if len(one) > 1):
                    parts = [*node.elts, *grown.get(id(node), ())]
                    words = [_argument_word(one, known) for one in parts]
                    yield NamedServer("command", " ".join(map(_shell_word, words)))


def _made_engine(node: ast.Call, known: Mapping[str, Any], *, tensorrt: bool) -> Iterator[NamedServer]:
    """An engine that a script makes, as the server of the same arguments."""
    given = {one.arg: _expression_value(one.value, known) for one in node.keywords if one.arg}
    model = _expression_value(node.args[0], known) if node.args else given.pop("model", OPEN)
    if not isinstance(model, str):
        return
    options = _told_arguments(given)
    if tensorrt:
        told = shlex.quote(json.dumps(options, default=str))
        yield NamedServer(model, f"trtllm-serve serve {shlex.quote(model)} --override-engine-args {told}")
        return
    flags = [word for at, value in options.items() for word in engine_flag(str(at), value)]
    yield NamedServer(model, " ".join(map(_shell_word, ["vllm", "serve", model, *flags])))


def _known_constants(nodes: list[ast.AST]) -> dict[str, Any]:
    """Names that are given one value that the text tells; one that is given two is open."""
    found: dict[str, Any] = {}
    for node in nodes:
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
            value = _of_bounded_size(_expression_value(node.value, found))
            found[target.id] = value if found.get(target.id, value) == value else OPEN
    return found


def _of_bounded_size(value: Any) -> Any:
    """A value, or an open one where it is larger written out than a command's are."""
    try:
        Budget(MOST_HELD, "of a value").spend_size(value)
    except TooMuchError:
        return OPEN
    return value


def _expression_value(node: ast.AST, known: Mapping[str, Any], depth: int = 0) -> Any:
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
        case ast.Dict(keys=keys, values=values):
            pairs = [
                (_expression_value(at, known, depth + 1), _expression_value(held, known, depth + 1))
                for at, held in zip(keys, values, strict=True)
                if at
            ]
            return {at: held for at, held in pairs if isinstance(at, str)}
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_expression_value(one, known, depth + 1) for one in parts]
        case ast.IfExp(test=test, body=body, orelse=other):
            told = _expression_value(test, known, depth + 1)
            return OPEN if told is OPEN else _expression_value(body if told else other, known, depth + 1)
        case ast.JoinedStr(values=parts):
            texts = [
                _expression_value(one.value if isinstance(one, ast.FormattedValue) else one, known, depth + 1)
                for one in parts
            ]
            return OPEN if OPEN in texts else "".join(map(str, texts))[:MOST_WORD]
        case ast.Call(func=ast.Name(id="str" | "int" | "float"), args=[only]):
            return _expression_value(only, known, depth + 1)
        case ast.Call(func=ast.Attribute(attr="getenv" | "get"), args=[_, default]):
            return _expression_value(default, known, depth + 1)
        case ast.Call(args=[], keywords=keywords) if keywords:
            return {one.arg: _expression_value(one.value, known, depth + 1) for one in keywords if one.arg}
    return OPEN


def _told_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with what the text does not tell as a place that is left open."""
    return {
        str(at): _told_arguments(held)
        if isinstance(held, Mapping)
        else f"${{{at}}}"
        if held is OPEN
        else held
        for at, held in values.items()
    }


def _grown_lists(nodes: list[ast.AST]) -> Mapping[int, list[ast.expr]]:
    """What is added later to the names that lists are given, by the lists."""
    names, more = dict[int, str](), dict[str, list[ast.expr]]()
    for one in nodes:
        match one:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List() as held):
                names[id(held)] = name
            case ast.AugAssign(target=ast.Name(id=name), value=ast.List(elts=parts)):
                more.setdefault(name, []).extend(parts)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="extend"), args=[ast.List(elts=parts)]
            ):
                more.setdefault(name, []).extend(parts)
    return {held: more.get(name, []) for held, name in names.items()}


def _argument_word(node: ast.AST, known: Mapping[str, Any]) -> str:
    value = _expression_value(node, known)
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else "${open}"


def _shell_word(word: str) -> str:
    """A word as a shell has it; one that is left open stays a variable."""
    return word if re.fullmatch(r"(--[\w-]+=)?\$\{\w+\}", word) else shlex.quote(word)
