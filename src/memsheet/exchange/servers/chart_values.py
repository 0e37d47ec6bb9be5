"""Values of charts that anybody wrote for one container: an image of a server's, its words (``command``,
``args``, ``extraArgs``) and the model beside them, read as the container that such a chart makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_pods import (
    command_line,
    container_gpu_limit,
    scalar_list,
    starts_a_server,
    tree_of,
)
from memsheet.exchange.shared.serve_script import ALONE, named_image

NAMES_ENDS = tuple(image.rpartition("/")[2] for image in ALONE)
"""Of images by their own names, in whosever registry."""
DEEPEST = 3
"""Groups that an image's values stand in."""
OTHERS = frozenset({"apiVersion", "kind", "services", "servingEngineSpec", "jobs", "on"})
"""Keys at the top of files that are no chart's values."""
WORDS = ("command", "args", "extraArgs", "additionalArgs", "serverArgs", "vllmArgs", "engineArgs")
NAMED = ("model", "modelName", "modelId", "model_id", "modelID", "hfModel", "modelUri")
MODEL_FLAG = ("--model", "--model-id", "--model-path")


def values_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The containers of servers' images in a chart's values; none of files of other kinds."""
    if not name.endswith((".yaml", ".yml")) or not any(end in text for end in NAMES_ENDS):
        return []
    tree = tree_of(parse, name, text)
    if tree is None or OTHERS & tree.keys():
        return []
    return list(_servers_of("image", tree, DEEPEST))


def _servers_of(name: str, held: Mapping[str, Any], depth: int) -> Iterator[NamedServer]:
    image = _image_of(held.get("image"))
    if image is not None and named_image(image) in ALONE:
        container = _container_of(image, held)
        if starts_a_server(line := command_line(container)):
            yield NamedServer(name, line, container_gpu_limit(container))
        return
    for at, inner in held.items() if depth else ():
        if isinstance(inner, Mapping):
            yield from _servers_of(str(at), inner, depth - 1)


def _image_of(image: Any) -> str | None:
    if isinstance(image, str):
        return image
    if not isinstance(image, Mapping) or not isinstance(image.get("repository"), str):
        return None
    registry = image.get("registry")
    return "/".join(filter(None, (registry, image["repository"]))) + f":{image.get('tag') or 'latest'}"


def _container_of(image: str, held: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container, with a model that is told beside its words as the flag that names one."""
    words = [str(word) for key in WORDS[1:] for word in _words_of(held.get(key))]
    command = [str(word) for word in _words_of(held.get("command"))]
    said = any(str(word).partition("=")[0] in MODEL_FLAG for word in [*command, *words])
    plain = command[1:2] == ["serve"] and (len(command) > 2 or (words[:1] and not words[0].startswith("-")))
    model = next((str(told) for key in NAMED if (told := _model_in_value(held.get(key)))), "")
    flag = "--model-id" if "text-generation" in image else "--model"
    more = [flag, model] if model and not said and not plain else []
    return {
        **held,
        "image": image,
        "command": command,
        "args": [*words, *more],
        "env": _chart_variables(held.get("env")),
    }


def _words_of(value: Any) -> list[Any]:
    if isinstance(value, str):
        return value.split()
    if isinstance(value, Mapping):  # {max-model-len: 8192}
        return [f"--{at}={told}" for at, told in value.items() if isinstance(told, str | int | float)]
    return scalar_list(value)


def _model_in_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return next(
            (str(value[key]) for key in ("name", "id", "repo", "uri") if isinstance(value.get(key), str)), ""
        )
    return value.removeprefix("hf://") if isinstance(value, str) else ""


def _chart_variables(env: Any) -> Any:
    """Variables as a container has them, where the values are a mapping of them."""
    return [{"name": str(at), "value": told} for at, told in env.items()] if isinstance(env, Mapping) else env
