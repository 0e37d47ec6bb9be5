"""Servers of llm-d: values of its modelservice chart, and objects of the ModelService that came before it, as
the commands that their controllers make of them.

Facts from llm-d-incubation/llm-d-modelservice 024c0f2d charts/llm-d-modelservice/templates/_helpers.tpl
(argsByProtocol, vllmServeModelCommand, imageDefaultModelCommand, customModelCommand, parallelismEnv).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_pods import (
    DOCUMENT_BREAK,
    MOST,
    command_line,
    container_gpu_limit,
    scalar_list,
    starts_a_server,
    tree_of,
)

ARTIFACTS = "modelArtifacts"
ROLES = ("decode", "prefill")
MOUNTED = "/model-cache"
VARIABLES = {"TP_SIZE": "tensor", "DP_SIZE": "data", "DP_SIZE_LOCAL": "dataLocal"}
"""What containers are given of their role's degrees."""


def model_service_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The servers of each role, with the GPUs of its container; none of texts of other kinds."""
    if ARTIFACTS not in text:
        return []
    trees = [tree for one in DOCUMENT_BREAK.split(text)[:MOST] if (tree := tree_of(parse, name, one))]
    found: list[NamedServer] = []
    for tree in trees:
        held = _inner_values(tree, "spec") if tree.get("kind") == "ModelService" else tree
        if isinstance(_inner_values(held, ARTIFACTS).get("uri"), str):
            found += [one for role in ROLES for one in _role_servers(role, held)]
    return found


def _role_servers(role: str, values: Mapping[str, Any]) -> Iterator[NamedServer]:
    held, model = _inner_values(values, role), _served_model(_inner_values(values, ARTIFACTS))
    containers = held.get("containers")
    if held.get("create") is False or held.get("replicas") == 0 or not isinstance(containers, list):
        return
    degrees = _degrees(_inner_values(held, "parallelism"))
    for container in containers:
        if isinstance(container, Mapping):
            made = _as_started(container, model, degrees)
            if starts_a_server(line := command_line(made)):
                yield NamedServer(role, line, container_gpu_limit(made))


def _as_started(container: Mapping[str, Any], model: str, degrees: Mapping[str, int]) -> Mapping[str, Any]:
    """The container with the command and the variables that the chart gives it."""
    own = container.get("env")
    told = [{"name": at, "value": degrees[key]} for at, key in VARIABLES.items()]
    given = {**container, "env": [*told, *(own if isinstance(own, list) else [])]}
    custom = container.get("modelCommand", "custom") == "custom" and bool(container.get("command"))
    if custom:
        return given
    flags = [
        word
        for key, flag in (("tensor", "--tensor-parallel-size"), ("data", "--data-parallel-size"))
        if degrees[key] > 1
        for word in (flag, str(degrees[key]))
    ]
    return {
        **given,
        "command": ["vllm", "serve"],
        "args": [model, *flags, *scalar_list(container.get("args"))],
    }


def _degrees(parallelism: Mapping[str, Any]) -> dict[str, int]:
    """Ranks of tensors, replicas in all and on one worker, by what the others leave open."""

    def said_count(key: str) -> int:
        value = parallelism.get(key)
        return value if type(value) is int and value > 0 else 0

    workers = said_count("workers") or 1
    data = said_count("data") or (said_count("dataLocal") or 1) * workers
    return {
        "tensor": said_count("tensor") or 1,
        "data": data,
        "dataLocal": said_count("dataLocal") or max(1, data // workers),
    }


def _served_model(artifacts: Mapping[str, Any]) -> str:
    """The model of a uri: of a hub its id, of a volume the one that ends its path or stands beside."""
    protocol, _, path = str(artifacts["uri"]).partition("://")
    if protocol == "pvc+hf":
        return "/".join(path.split("/")[-2:])
    if protocol == "hf":
        return path
    return str(artifacts.get("name") or f"{MOUNTED}/{path.partition('/')[2]}")


def _inner_values(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    held = tree.get(key)
    return held if isinstance(held, Mapping) else {}
