"""Servers that stand in no container's command: values of charts and services of KServe, as the container
that their controller makes of them.

Facts from vllm-project/production-stack a6c01db0 helm/templates/deployment-vllm-multi.yaml (containers),
vllm-project/vllm 082c713e examples/online_serving/chart-helm/templates/deployment.yaml (image, resources and
the volume of the model, which extraInit.s3modelpath fills) and kserve/kserve
aaac4e29: charts/kserve-runtime-configs/files/llmisvcconfigs/resources.yaml:167 and
config/llmisvcconfig/config-llm-template.yaml:176 (the command, VLLM_ADDITIONAL_ARGS),
pkg/apis/serving/v1alpha2/llm_inference_service_types.go:738-758 (parallelism),
python/huggingfaceserver/huggingfaceserver/__main__.py:87,172 (arguments that are vLLM's).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.named_server import GPU, NamedServer
from memsheet.exchange.shared.serve_pods import (
    DOCUMENT_BREAK,
    MOST,
    card_resource,
    command_line,
    container_gpu_limit,
    scalar_list,
    starts_a_server,
    tree_of,
)
from memsheet.frozen import replace
from memsheet.patterns import late_pattern

CHART = "requestGPU"
DOWNLOADED = "/data"
"""Where vLLM's own chart mounts what ``extraInit.s3modelpath`` names."""
_MARKS = (
    "servingEngineSpec",
    "repository",
    "LLMInferenceService",
    "InferenceService",
    "VLLMRuntime",
    "kubeai.org",
    "resourceProfile",
)
_CAMEL = late_pattern(r"(?<=[a-z0-9])(?=[A-Z])")
CHART_OPTIONS = (
    "enableChunkedPrefill", "enablePrefixCaching", "maxModelLen", "dtype", "tensorParallelSize", "maxNumSeqs", "gpuMemoryUtilization", "maxLoras",
    "runner", "convert",
)  # fmt: skip
"""Keys of ``vllmConfig`` that the chart makes flags of; ``extraArgs`` come as they are."""
CACHED_ELSEWHERE = ["--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1"}']
"""What the chart and the operator add where LMCache is on (helm/templates/deployment-vllm-multi.yaml:204-214;
vllmruntime_controller.go:564).
"""
RUNTIME_OPTIONS = {
    "enableLoRA": ("--enable-lora", None), "enableChunkedPrefill": ("--enable-chunked-prefill", "--no-enable-chunked-prefill"),
    "enablePrefixCaching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
}  # fmt: skip
RUNTIME_SIZES = {
    "maxModelLen": "--max-model-len", "dtype": "--dtype", "tensorParallelSize": "--tensor-parallel-size", "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization", "maxLoras": "--max-loras",
}  # fmt: skip
"""What the operator makes of an object's switches, on and off, and of its sizes where they are no zero
(vllm-project/production-stack a6c01db0 operator/internal/controller/vllmruntime_controller.go:442-512).
"""
PARALLEL_OPTIONS = {
    "tensor": "--tensor-parallel-size", "pipeline": "--pipeline-parallel-size", "data": "--data-parallel-size",
    "dataLocal": "--data-parallel-size-local", "expert": "--enable-expert-parallel",
}  # fmt: skip
"""Keys of a service's ``parallelism`` by the server's flags."""
RUNTIMES = frozenset({"ServingRuntime", "ClusterServingRuntime"})
SERVED = "kserve-container"
_MOUNTED = late_pattern(r"(?<=^)/mnt/models(?=$)|(?<==)/mnt/models(?=$)")
"""Where KServe puts the model that ``storageUri`` names (kserve/kserve aaac4e29 pkg/constants/constants.go,
DefaultModelLocalMountPath)."""
MORE_ARGS = "VLLM_ADDITIONAL_ARGS"


def chart_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The servers of a file, in their order, each with the GPUs of its container; none of texts of other
    kinds.
    """
    if not any(mark in text for mark in _MARKS):
        return []
    found: list[NamedServer] = []
    trees = [tree for one in DOCUMENT_BREAK.split(text)[:MOST] if (tree := tree_of(parse, name, one))]
    runtimes = {_name_of(tree): tree for tree in trees if tree.get("kind") in RUNTIMES}
    for tree in trees:
        found += [*_values_servers(tree), *_image_server(tree), *_service_servers(tree, runtimes)]
        found += [*_catalog_servers(tree)]
    return found


def _values_servers(tree: Mapping[str, Any]) -> Iterator[NamedServer]:
    spec = _mapping(tree.get("servingEngineSpec"))
    held = spec.get("modelSpec")
    for one in held if isinstance(held, list) else ():
        model = _mapping(one)
        if not isinstance(model.get("modelURL"), str):
            continue
        options = _mapping(model.get("vllmConfig"))
        flags = [_flag(_kebab(key), options[key]) for key in CHART_OPTIONS if _is_option(options.get(key))]
        flags += ["--enable-lora"] if model.get("enableLoRA") is True else []
        flags += CACHED_ELSEWHERE if _mapping(model.get("lmcacheConfig")).get("enabled") is True else []
        words = ["vllm", "serve", model["modelURL"], *flags, *scalar_list(options.get("extraArgs"))]
        image = f"{model.get('repository')}:{model.get('tag')}"
        limits = {"limits": {GPU: model.get(CHART)}}
        container = {"image": image, "command": words, "env": model.get("env"), "resources": limits}
        yield _container_server(str(model.get("name") or model["modelURL"]), container)


def _image_server(tree: Mapping[str, Any]) -> Iterator[NamedServer]:
    """The container of vLLM's own chart, whose command stands beside its image."""
    image = _mapping(tree.get("image"))
    words = [*scalar_list(image.get("command")), *scalar_list(image.get("args"))]
    if not words:  # they stand elsewhere, in a chart of somebody's own
        return
    stored = str(_mapping(tree.get("extraInit")).get("s3modelpath") or "").strip("/")
    folder = next((word for word in words if str(word).rstrip("/") == DOWNLOADED), "") if stored else ""
    container = {
        **image, "image": f"{image.get('repository')}:{image.get('tag')}", "resources": tree.get("resources"),
        "command": [stored if folder and word == folder else word for word in words],
        "args": None,
    }  # fmt: skip
    if not isinstance(image.get("repository"), str) or not starts_a_server(command_line(container)):
        return
    told = (f"model = {stored} (extraInit.s3modelpath, which fills {folder})",) if folder else ()
    yield replace(_container_server(stored.rpartition("/")[2] or "image", container), remarks=told)


def _container_server(name: str, container: Mapping[str, Any]) -> NamedServer:
    at = card_resource(container)
    return NamedServer(name, command_line(container), container_gpu_limit(container), at)


def _name_of(tree: Mapping[str, Any]) -> str:
    return str(_mapping(tree.get("metadata")).get("name") or "service")


def _runtime_container(
    service: str, held: Mapping[str, Any], runtimes: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any]:
    """The container of the runtime that a predictor names, or of the only one of its format, with the
    predictor's arguments behind its own and the model that is downloaded in its folder's place; empty where
    the file has no such runtime.
    """
    wanted, form = held.get("runtime"), _mapping(held.get("modelFormat")).get("name")
    serving = [
        tree
        for at, tree in runtimes.items()
        if at == wanted
        or (
            wanted is None
            and form
            in [
                _mapping(one).get("name")
                for one in _sequence(_mapping(tree.get("spec")).get("supportedModelFormats"))
            ]
        )
    ]
    containers = [
        _mapping(one)
        for tree in serving[:1]
        for one in _sequence(_mapping(tree.get("spec")).get("containers"))
    ]
    own = next((one for one in containers if one.get("name") == SERVED), containers[0] if containers else {})
    uri = str(held.get("storageUri") or "").removeprefix("hf://")
    args = [*scalar_list(own.get("args")), *scalar_list(held.get("args"))]
    put = {word: _MOUNTED.sub(uri, str(word)) if uri else str(word) for word in args}
    return {
        **own, "args": [put[word].replace("{{.Name}}", service) for word in args],
        "env": [*_sequence(own.get("env")), *_sequence(held.get("env"))], "resources": held.get("resources") or own.get("resources"),
    } if own else {}  # fmt: skip


def _service_servers(
    tree: Mapping[str, Any], runtimes: Mapping[str, Mapping[str, Any]]
) -> Iterator[NamedServer]:
    spec, name = _mapping(tree.get("spec")), _name_of(tree)
    match tree.get("kind"):
        case "LLMInferenceService":
            held = _mapping(spec.get("model"))
            uri = str(held.get("uri") or "")  # a volume's says nothing, and its name what is served
            model = uri.removeprefix("hf://") if uri.startswith("hf://") else str(held.get("name") or uri)
            template = _mapping(spec.get("template"))
            containers = [_mapping(one) for one in _sequence(template.get("containers"))]
            parallel = _mapping(spec.get("parallelism"))
            flags = [
                flag if parallel[key] is True else f"{flag}={parallel[key]}"
                for key, flag in PARALLEL_OPTIONS.items()
                if _is_option(parallel.get(key)) and parallel[key] is not False
            ]
            more = [word for one in containers for word in _environment_words(one)]
            if model and not any(one.get("command") for one in containers):
                own = containers[0] if containers else {}
                command = ["vllm", "serve", model, *flags, *more]
                yield _container_server(name, {**own, "command": command})
        case "VLLMRuntime":
            yield from _runtime_object(name, spec)
        case "Model" if str(tree.get("apiVersion")).startswith("kubeai.org/"):
            yield from _profiled_model(name, spec)
        case "InferenceService":
            held = _mapping(_mapping(spec.get("predictor")).get("model"))
            container = _runtime_container(name, held, runtimes)
            if container and starts_a_server(command_line(container)):
                yield _container_server(name, container)
                return
            args = [str(word) for word in scalar_list(held.get("args"))]
            named = [
                word.partition("=")[2] for word in args if word.startswith(("--model_id=", "--model-id="))
            ]
            uri = str(held.get("storageUri") or "")
            model = named[0] if named else uri.removeprefix("hf://") if uri.startswith("hf://") else ""
            rest = [word for word in args if not word.startswith(("--model_", "--model-", "--backend"))]
            if model and _mapping(held.get("modelFormat")).get("name") == "huggingface":
                container = {**held, "command": ["vllm", "serve", model], "args": rest}
                yield _container_server(name, container)
        case _:
            return


def _runtime_object(name: str, spec: Mapping[str, Any]) -> Iterator[NamedServer]:
    """The container that the production stack's operator makes of its own object; in the objects' first
    versions the server's options stood beside the model.
    """
    model, options = _mapping(spec.get("model")), _mapping(spec.get("vllmConfig")) or spec
    if not isinstance(model.get("modelURL"), str):
        return
    said = {**model, **{at: held for at, held in options.items() if at not in model}}
    flags = [on if said.get(at) is True else off for at, (on, off) in RUNTIME_OPTIONS.items()]
    sizes = [f"{flag}={said[at]}" for at, flag in RUNTIME_SIZES.items() if said.get(at) not in (None, "", 0)]
    sizes += CACHED_ELSEWHERE if _mapping(spec.get("lmCacheConfig")).get("enabled") is True else []
    words = ["vllm", "serve", model["modelURL"], *filter(None, flags), *sizes]
    cards = _mapping(_mapping(spec.get("deploymentConfig")).get("resources")).get("gpu")
    container = {
        "command": [*words, *scalar_list(options.get("extraArgs"))],
        "env": options.get("env"),
        "resources": {"limits": {GPU: cards}},
    }
    yield _container_server(name, container)


def _profiled_model(name: str, spec: Mapping[str, Any]) -> Iterator[NamedServer]:
    """The pod that KubeAI makes of a model for vLLM on cards; its profile's name counts them, one each as the
    chart has its profiles (kubeai-project/kubeai f442a2cd internal/modelcontroller/engine_vllm.go:15-62,
    charts/kubeai/values.yaml: resourceProfiles).
    """
    scheme, _, model = str(spec.get("url") or "").partition("://")
    profile, _, count = str(spec.get("resourceProfile") or "").rpartition(":")
    if str(spec.get("engine")).upper() != "VLLM" or not model or "gpu" not in profile:
        return
    own = model.partition("?")[0] if scheme == "hf" else f"{scheme}://{model}"
    held = spec.get("env")
    container = {
        "command": ["vllm", "serve", own],
        "args": [*scalar_list(spec.get("args")), *(["--enable-lora"] if spec.get("adapters") else [])],
        "env": [{"name": at, "value": told} for at, told in held.items()]
        if isinstance(held, Mapping)
        else None,
        "resources": {"limits": {GPU: count}},
    }
    yield _container_server(name, container)


def _catalog_servers(tree: Mapping[str, Any]) -> Iterator[NamedServer]:
    """Models of KubeAI in the values of its chart of models."""
    for name, held in _mapping(tree.get("catalog")).items():
        yield from _profiled_model(str(name), _mapping(held))


def _environment_words(container: Mapping[str, Any]) -> list[str]:
    """Flags that a container's environment adds."""
    told = (_mapping(one) for one in _sequence(container.get("env")))
    values = [str(one.get("value")) for one in told if one.get("name") == MORE_ARGS]
    try:
        return [word for value in values for word in shlex.split(value)]
    except ValueError:
        return []


def _is_option(value: Any) -> bool:
    return isinstance(value, str | int | float) and str(value) != ""


def _flag(name: str, value: Any) -> str:
    return f"--{name}={value}" if not isinstance(value, bool) else f"--{'' if value else 'no-'}{name}"


def _kebab(key: str) -> str:
    return _CAMEL.sub("-", key).lower()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()
