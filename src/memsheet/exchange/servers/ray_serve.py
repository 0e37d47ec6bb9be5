"""Servers of Ray Serve: what its LLMConfig gives the engine, as the engine's command
(ray-project/ray fce2fc41 doc/source/serve/llm/quick-start.md; python/ray/llm/_internal/serve/core/configs/
llm_config.py, LLMConfig: engine_kwargs are the engine's own arguments).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_pods import DOCUMENT_BREAK, MOST, tree_of
from memsheet.patterns import late_pattern

LOADING, ENGINE = "model_loading_config", "engine_kwargs"
_WORDS = late_pattern(r"^ *(?:- *)?[\"']?model_loading_config[\"']?\s*:", re.MULTILINE)
DEEPEST = 12
OF_SAMPLE = "MODEL_ID"
VARIABLES = {
    "TENSOR_PARALLELISM": "--tensor-parallel-size",
    "PIPELINE_PARALLELISM": "--pipeline-parallel-size",
}
"""Variables by which KubeRay's sample of vLLM, and what is made of it, is told its engine's arguments
(ray-project/kuberay 0438cd6 ray-operator/config/samples/vllm/serve.py, ray-service.vllm.yaml).
"""


def ray_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The models of a Serve configuration, or of a RayService that holds one; none of other texts."""
    if not _WORDS.search(text) and f"{OF_SAMPLE}:" not in text:
        return []
    found: list[NamedServer] = []
    for one in DOCUMENT_BREAK.split(text)[:MOST]:
        tree = tree_of(parse, name, one)
        if tree is not None:
            inner = _text_at(tree.get("spec"), "serveConfigV2")
            nested = tree_of(parse, name, inner) if inner else None
            found += [*llm_config_servers(tree), *(llm_config_servers(nested) if nested else ())]
            found += _sample_servers(nested or tree)
    return found


def _sample_servers(tree: Mapping[str, Any]) -> Iterator[NamedServer]:
    """Applications of somebody's own that vLLM serves, told their model by a variable; what else their text
    gives the engine nobody says.
    """
    applications = tree.get("applications")
    for one in applications if isinstance(applications, list) else ():
        own = one if isinstance(one, Mapping) else {}
        made = own.get("runtime_env")
        told = made.get("env_vars") if isinstance(made, Mapping) else None
        model = told.get(OF_SAMPLE) if isinstance(told, Mapping) else None
        path = str(own.get("import_path") or "")
        if isinstance(told, Mapping) and isinstance(model, str) and "vllm" in f"{path} {made}".lower():
            given = [word for at, flag in VARIABLES.items() if at in told for word in (flag, str(told[at]))]
            beside = (("import_path", f"{path}, whose text may give the engine more"),)
            line = " ".join(map(shell_word, ["vllm", "serve", model, *given]))
            yield NamedServer(str(own.get("name") or model), line, left_out=beside)


def llm_config_servers(tree: Any, depth: int = 0) -> Iterator[NamedServer]:
    """Every configuration with a model in it, however deep it stands."""
    if isinstance(tree, Mapping) and isinstance(tree.get(LOADING), Mapping):
        model, line = llm_config_line(tree)
        if model:
            yield NamedServer(model, line)
        return
    inner: Iterable[Any] = (
        tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
    )
    for held in inner if depth < DEEPEST else ():
        yield from llm_config_servers(held, depth + 1)


def llm_config_line(config: Mapping[str, Any]) -> tuple[str, str]:
    """A configuration's name, and the command that it comes to."""
    loading = config[LOADING]
    source, named = loading.get("model_source"), loading.get("model_id")
    model = source if isinstance(source, str) else named
    if not isinstance(model, str):
        return "", ""
    options = config.get(ENGINE)
    given = options if isinstance(options, Mapping) else {"**": options} if _is_open(options) else {}
    if "sglang" in str(config.get("server_cls") or ""):
        words = ["python", "-m", "sglang.launch_server", "--model-path", model]
    else:
        words = ["vllm", "serve", model]
    flags = [word for at, value in given.items() for word in engine_flag(str(at), value)]
    return str(named or model), " ".join(map(shell_word, [*words, *flags]))


def engine_flag(name: str, value: Any) -> list[str]:
    """An engine's argument as its flag."""
    if name.startswith("**"):
        return [str(value)]
    at = f"--{name.replace('_', '-')}"
    if value is None:
        return []
    if isinstance(value, bool):
        return [at] if value else [f"--no-{at[2:]}"]
    if isinstance(value, Mapping | list):
        return [f"{at}={json.dumps(value, default=str)}"]
    return [f"{at}={value}"]


def _is_open(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\$\{\w+\}", value) is not None


def shell_word(word: str) -> str:
    """A word as a shell has it; one that is left open stays a variable."""
    return word if re.fullmatch(r"(--[\w-]+=)?\$\{\w+\}", word) else shlex.quote(word)


def _text_at(tree: Any, key: str) -> str:
    held = tree.get(key) if isinstance(tree, Mapping) else None
    return held if isinstance(held, str) else ""
