"""Workers of NVIDIA Dynamo's graphs, whose engines take their own flags and Dynamo's beside them
(ai-dynamo/dynamo a843b4d5 recipes/deepseek-r1/trtllm/agg/b200/deploy.yaml; components of v1beta1 hold a pod's
template).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_pods import DOCUMENT_BREAK, MOST, command_line, starts_a_server, tree_of
from memsheet.frozen import replace

KIND = "DynamoGraphDeployment"
GPU_AT = "resources.limits.gpu"


def graph_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The workers of a graph that start engines, with the files of its config maps before them; none of texts
    of other kinds.
    """
    if KIND not in text:
        return []
    trees = [
        tree for one in DOCUMENT_BREAK.split(text)[:MOST] if (tree := tree_of(parse, name, one)) is not None
    ]
    files = "".join(map(_written_files, trees))
    found = [
        one
        for tree in trees
        if tree.get("kind") == KIND
        for one in _graph_workers(_inner_mapping(tree, "spec"))
    ]
    return [replace(one, script=files + one.script) for one in found]


def _written_files(tree: Mapping[str, Any]) -> str:
    """A config map's files as a script writes them."""
    data = _inner_mapping(tree, "data") if tree.get("kind") == "ConfigMap" else {}
    return "".join(f"cat > {at} <<CONFIGMAP\n{held}\nCONFIGMAP\n" for at, held in data.items())


def _graph_workers(spec: Mapping[str, Any]) -> Iterator[NamedServer]:
    for name, service in _graph_services(spec):
        container = _main_container(service)
        line = command_line(container)
        if starts_a_server(line):
            yield NamedServer(name, line, _gpu_count(service, container), GPU_AT)


def _graph_services(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, held in _inner_mapping(spec, "services").items():
        if isinstance(held, Mapping):
            yield str(name), held
    listed = spec.get("components")
    for held in listed if isinstance(listed, list) else ():
        if isinstance(held, Mapping):
            yield str(held.get("name")), held


def _main_container(service: Mapping[str, Any]) -> Mapping[str, Any]:
    own = _inner_mapping(service, "extraPodSpec", "mainContainer")
    held = _inner_mapping(service, "podTemplate", "spec").get("containers")
    pods = [one for one in held if isinstance(one, Mapping)] if isinstance(held, list) else []
    return own or next((one for one in pods if one.get("name") == "main"), pods[0] if pods else {})


def _gpu_count(service: Mapping[str, Any], container: Mapping[str, Any]) -> int | None:
    """Cards of a worker, over all of its nodes."""
    told = _inner_mapping(service, "resources", "limits").get("gpu")
    told = (
        told if told is not None else _inner_mapping(container, "resources", "limits").get("nvidia.com/gpu")
    )
    nodes = _inner_mapping(service, "multinode").get("nodeCount", 1)
    known = str(told).isdigit() and len(str(told)) < 8 and isinstance(nodes, int)
    return int(str(told)) * nodes if known else None


def _inner_mapping(tree: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    node: Any = tree
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}
