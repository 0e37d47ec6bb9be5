"""Servers in Python: engines that a script makes, and commands that it starts as lists of words. Read as
text through its syntax tree, never run.
"""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from memsheet.exchange.servers.python_names import (
    FURTHER,
    OPEN,
    assumptions_of,
    assumptions_of_names,
    call_keywords,
    expression_value,
    function_parameters,
    known_constants,
    parsed_flags,
)
from memsheet.exchange.servers.ray_serve import LOADING, engine_flag, llm_config_line, shell_word
from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.python_module import attribute_path
from memsheet.exchange.shared.script_places import NOTEBOOK
from memsheet.exchange.shared.serve_script import ENGINE_MODULE, LAUNCHES, OFFLINE_MODULE, UNTOLD
from memsheet.exchange.shared.visible_cards import python_exports
from memsheet.frozen import replace
from memsheet.guard.budget import is_long_script
from memsheet.patterns import late_pattern

MOST_NODES = 20_000
MOST_SERVERS, MOST_LAUNCH = 64, 4
_SERVES = late_pattern(
    r"EngineProcessorConfig\(|LLMConfig\(|\bLLM\(|EngineArgs\(|\b(?:Engine|Runtime)\("
    r"|lmdeploy|[\"']serve[\"']|vllm serve|vllm\.entrypoints|launch_server|trtllm-serve"
)
_TRAINS = late_pattern(r"Trainer\b|\.backward\(|GRPOConfig|SFTConfig|optimizer\.step")
_PINNED = late_pattern(r"\b(?:vllm|sglang)==\d[\w.]{1,24}")
PYTHON, _PYTHON = "python", late_pattern(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
MODELS_BESIDE = "models_beside"
OFFLINE_CLASS = "LLM"
LMDEPLOY = "lmdeploy"
OF_VLLM = (OFFLINE_CLASS, "AsyncEngineArgs", "EngineArgs")
OF_SERVER = ("OPENAI_API_SERVER", "build_async_engine_client", "build_async_engine_client_from_engine_args")
"""Names with which a script makes the engine as its server does (vllm-project/vllm v0.33.0
entrypoints/launchers/api_server/entry.py:38, 72: their usage context).
"""
PROCESSORS = {
    "vLLMEngineProcessorConfig": f"python -m {ENGINE_MODULE} --model",
    "SGLangEngineProcessorConfig": "python -m sglang.launch_server --model-path",
}
"""Ray Data's processors of a batch, whose engine takes its own arguments (ray-project/ray
python/ray/llm/_internal/batch/processor/vllm_engine_proc.py, sglang_engine_proc.py: engine_kwargs).
"""
OF_SGLANG = ("Engine", "Runtime")
"""Engines whose arguments are those of SGLang's server (sgl-project/sglang python/sglang/srt/entrypoints/
engine.py, Engine: ServerArgs(**kwargs)).
"""


def python_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The servers that a script makes or starts; none of one that trains, or that is no Python."""
    del parse
    if (
        not name.endswith((".py", NOTEBOOK))
        or is_long_script(text)
        or not _SERVES.search(text)
        or _TRAINS.search(text)
    ):
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
    pinned = "".join(f": {one[0]}\n" for one in _PINNED.finditer(text)) + python_exports(text)
    found = _servers_of(tree, nodes) if len(nodes) <= MOST_NODES else ()
    made = [*islice(found, MOST_SERVERS)]
    others = tuple(_models_beside(tree, nodes, {one.name for one in made})) if made else ()
    return [replace(one, script=pinned + one.script, left_out=(*one.left_out, *others)) for one in made]


LOADED = late_pattern(r"(?:Model|LM|For[A-Z]\w*)$")
"""Classes of models, as transformers calls them."""
SIZED_ID = late_pattern(r"[\w.-]{1,96}/[\w.-]*?\d+(?:\.\d+)?[bB](?![A-Za-z])[\w.-]*")
LOADS_NONE = late_pattern(
    r"Token|Processor|Config|Args|Params|Request|Client|OpenAI|Chat|Prompt|Template|Dataset|Path|Api|API"
    r"|Message|Field|Tool"
)
"""In the names of classes that are given a model's name and load none."""


def _models_beside(
    tree: ast.Module, nodes: list[ast.AST], served: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Models that a script with an engine loads itself on the same cards."""
    known = known_constants(nodes, parsed_flags(tree, nodes)[0])
    names = [
        (node, told) for node in nodes if isinstance(node, ast.Call) and (told := _loaded_beside(node, known))
    ]
    beside = dict.fromkeys(told for _, told in names if told not in served)
    if beside:
        yield MODELS_BESIDE, f"{', '.join(beside)}, loaded on the same cards"


def _loaded_beside(node: ast.Call, known: Mapping[str, Any]) -> str:
    """The model that a call loads, as far as it is named; nothing of a call that loads none."""
    path = attribute_path(node.func)
    called = path[-1] if path else ""
    loads = called == "from_pretrained" and len(path) > 1 and LOADED.search(path[-2]) is not None
    makes = called[:1].isupper() and not called.isupper() and LOADS_NONE.search(called) is None
    if not loads and (not makes or called in (*OF_VLLM, *OF_SGLANG)):
        return ""
    given = call_keywords(node, known)
    if str(given.get("device_map", given.get("device"))) == "cpu":
        return ""
    values = [expression_value(one, known) for one in node.args[:1]] + list(given.values())
    named = next((one for one in values if isinstance(one, str) and SIZED_ID.fullmatch(one)), "")
    return named or (f"a model of {'.'.join(path[:-1])}" if loads else "")


def _servers_of(tree: ast.Module, nodes: list[ast.AST]) -> Iterator[NamedServer]:
    flags, flag_notes = parsed_flags(tree, nodes)
    known, grown = known_constants(nodes, flags), _grown_lists(nodes)
    notes = assumptions_of_names(nodes, flag_notes)
    parameters = function_parameters(nodes, known, notes)
    modules = {part for node in nodes for part in _imported_modules(node)}
    served = any(getattr(node, at, None) in OF_SERVER for node in nodes for at in ("id", "attr"))
    asks = any(isinstance(node, ast.Attribute) and node.attr == "add_argument" for node in nodes)
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="LLMConfig") | ast.Attribute(attr="LLMConfig")):
                config = expression_value(node, known)
                if isinstance(config, Mapping) and isinstance(config.get(LOADING), Mapping):
                    model, line = llm_config_line(_literal_arguments(config))
                    told = assumptions_of(node, notes)
                    yield from [NamedServer(model, line, remarks=told)] if model else []
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in PROCESSORS:
                made = _made_processor(node, known, PROCESSORS[called])
                yield from [replace(made, remarks=assumptions_of(node, notes))] if made else []
            case ast.Call(func=ast.Name(id="pipeline") | ast.Attribute(attr="pipeline")) if (
                LMDEPLOY in modules
            ):
                yield from _pipeline_server(node, known)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
                if engine := _engine_called(called, modules):
                    around = (held for held in parameters if node.lineno in held[0])
                    _, given, more = [(range(0), {}, {}), *around][-1]
                    module = OFFLINE_MODULE if called == OFFLINE_CLASS else "" if served else ENGINE_MODULE
                    made = _constructed_engine(node, {**known, **given}, engine, module, asks=asks)
                    told = assumptions_of(node, {**notes, **more}) if made else ()
                    yield from [replace(made, remarks=told)] if made else []
            case ast.List() | ast.Tuple():
                first = tuple(_argument_word(one, known) for one in node.elts[:MOST_LAUNCH])
                first = (PYTHON, *first[1:]) if _PYTHON.fullmatch(first[0] if first else "") else first
                if any(first[: len(one)] == one for one in LAUNCHES if len(one) > 1):
                    parts = [*node.elts, *grown.get(id(node), ())]
                    words = [_argument_word(one, known) for one in parts]
                    told = tuple(dict.fromkeys(line for one in parts for line in assumptions_of(one, notes)))
                    yield NamedServer("command", " ".join(map(shell_word, words)), remarks=told)


def _made_processor(node: ast.Call, known: Mapping[str, Any], start: str) -> NamedServer | None:
    """The engine of a batch of Ray Data's, whose own arguments stand in a group."""
    given = call_keywords(node, known)
    model, options = given.get("model_source"), given.get("engine_kwargs")
    if not isinstance(model, str):
        return None
    held = _literal_arguments(options) if isinstance(options, Mapping) else {}
    flags = [word for at, value in held.items() for word in engine_flag(str(at), value)]
    return NamedServer(model, " ".join([start, shell_word(model), *map(shell_word, flags)]))


def _pipeline_server(node: ast.Call, known: Mapping[str, Any]) -> Iterator[NamedServer]:
    """LMDeploy's pipeline as the server of the same engine (lmdeploy/api.py, pipeline: its engine's
    configuration is a keyword or the second argument).
    """
    given = call_keywords(node, known)
    first = [expression_value(one, known) for one in node.args[:2]]
    model = first[0] if first else given.get("model_path")
    config = first[1] if len(first) > 1 else given.get("backend_config")
    if isinstance(model, str):
        options = _literal_arguments(config) if isinstance(config, Mapping) else {}
        flags = [word for at, value in options.items() for word in engine_flag(str(at), value)]
        words = ["lmdeploy", "serve", "api_server", model, *flags]
        yield NamedServer(model, " ".join(map(shell_word, words)))


def _imported_modules(node: ast.AST) -> list[str]:
    """The packages that a statement imports from."""
    if isinstance(node, ast.ImportFrom):
        return [str(node.module).partition(".")[0]]
    return [one.name.partition(".")[0] for one in node.names] if isinstance(node, ast.Import) else []


def _engine_called(called: str, modules: Collection[str]) -> str:
    """Whose engine a call makes, if any."""
    if called in OF_SGLANG:
        return "sglang" if "sglang" in modules else ""
    return "" if called not in OF_VLLM else "tensorrt-llm" if "tensorrt_llm" in modules else "vllm"


def _constructed_engine(
    node: ast.Call, known: Mapping[str, Any], engine: str, module: str, *, asks: bool
) -> NamedServer | None:
    """An engine that a script makes, as the server of the same arguments. ``module``: what stands for a
    vLLM engine that its server does not make; ``asks``: whether the script has flags, so that whoever starts
    it says the model that its text does not tell.
    """
    given = call_keywords(node, known)
    named = given.pop("model_path" if engine == "sglang" else "model", OPEN)
    model = expression_value(node.args[0], known) if node.args and engine != "sglang" else named
    if not isinstance(model, str):
        given_by = (
            node.args[0] if node.args else _keyword(node, "model_path" if engine == "sglang" else "model")
        )
        if given_by is None or not asks:
            return None
        model = f"${{{'_'.join(attribute_path(given_by)) or UNTOLD}}}"
    options = _literal_arguments(given)
    if engine == "tensorrt-llm":
        more = [str(options.pop(at)) for at in list(options) if at.startswith(FURTHER)]
        told = shlex.quote(json.dumps(options, default=str))
        line = ["trtllm-serve", "serve", shlex.quote(model), "--override-engine-args", told, *more]
        return NamedServer(model, " ".join(line))
    start = ["python", "-m", module, "--model", model] if module else ["vllm", "serve", model]
    if engine == "sglang":
        start = ["python", "-m", "sglang.launch_server", "--model-path", model]
        options = {at: value for at, value in options.items() if value is not False}  # it has no --no-…
    flags = [word for at, value in options.items() for word in engine_flag(str(at), value)]
    return NamedServer(model, " ".join(map(shell_word, [*start, *flags])))


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in node.keywords if one.arg == name), None)


def _literal_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with what the text does not tell as a place that is left open."""
    return {
        str(at): _literal_arguments(held)
        if isinstance(held, Mapping)
        else f"${{{str(at).removeprefix(FURTHER)}}}"
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
    value = expression_value(node, known)
    if isinstance(value, str):
        return value
    path = attribute_path(node) if isinstance(node, ast.expr) else []
    if path == ["sys", "executable"]:
        return PYTHON
    return str(value) if isinstance(value, int | float) else f"${{{'_'.join(path) or UNTOLD}}}"
