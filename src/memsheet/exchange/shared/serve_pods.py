"""A server in a pod of Kubernetes: the container's command as the line of a script, which the engine's format
then reads.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from memsheet.errors import input_error
from memsheet.exchange.shared.file_format import Container
from memsheet.exchange.shared.named_server import FOREIGN, NO_SERVER, RESOURCES, NamedServer
from memsheet.exchange.shared.serve_script import (
    ALONE,
    IMAGES,
    LAUNCHES,
    named_image,
    pinned_release,
    script_lines,
    server_flags_index,
    split_line_commands,
)
from memsheet.patterns import late_pattern

KINDS = frozenset(
    {
        "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Pod", "Job", "CronJob", "LeaderWorkerSet", "JobSet", "RayCluster", "RayService",
        "Rollout", "LLMInferenceService", "LLMInferenceServiceConfig", "InferenceService", "ServingRuntime", "ClusterServingRuntime",
    }
)  # fmt: skip
"""Kinds whose containers are of the core pod template (kubernetes.io/docs/concepts/workloads), or hold such
ones (LeaderWorkerSet, JobSet, KServe, Ray, Argo).
"""
CONFIG_MAP = "ConfigMap"
GROUP, GROUP_SIZE = "LeaderWorkerSet", "LWS_GROUP_SIZE"
"""A kind of which each replica is one server on several pods, its leader's before its workers', and the
variable by which each of them knows how many they are (kubernetes-sigs/lws, api/leaderworkerset/v1
leaderworkerset_types.go).
"""
JOBS = frozenset({"PyTorchJob", "TrainJob"})
"""Kinds that have formats of their own."""
MOST, MOST_NAMED, MOST_GROUP = 16, 120, 10_000
DOCUMENT_BREAK = late_pattern(r"^---[ \t]*$", re.MULTILINE)
_VALUE = late_pattern(r"(\$\(\w+\))")


def pod_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The servers of pods, each with the GPUs of its container; none of texts that are no objects of
    Kubernetes, or jobs.

    Raises InputError for pods without one, and for objects of kinds that are not read.
    """
    if "apiVersion" not in text or "kind" not in text:
        return []
    found, seen, foreign, jobs = list[NamedServer](), list[str](), list[str](), False
    trees = [tree for one in object_documents(text) if (tree := tree_of(parse, name, one))]
    maps = config_maps(trees)
    for tree in trees:
        if "apiVersion" not in tree or "kind" not in tree:
            continue
        kind = str(tree["kind"])
        jobs = jobs or kind in JOBS
        if kind not in KINDS:
            foreign += [] if kind in JOBS else [f"{kind} of {tree['apiVersion']}"[:MOST_NAMED]]
            continue
        seen.append(kind)
        size, shares = _group_size(tree) if kind == GROUP else None, "hostIPC" in str(tree)
        own = [
            NamedServer(
                _object_name(tree),
                f"export {GROUP_SIZE}={size}\n{line}" if size else line,
                gpus * (size or 1) if (gpus := container_gpu_limit(held)) else gpus,
                at=card_resource(held),
                together=gpus is None,
                remarks=_image_remarks(held),
                container=Container(
                    host_bytes=container_memory_limit(held), small_shm=not shares and not _mounts_shm(held)
                ),
            )
            for held in (with_config_values(one, maps) for one in pod_containers(tree))
            if (line := command_line(held)) and starts_a_server(line)
        ]
        found += own[:1] if size else own
    if found:
        return found
    if seen:
        raise input_error(
            "file",
            name,
            f"is {_indefinite_article(seen[0])} {seen[0]} {NO_SERVER}",
            "the script that its container runs",
        )
    if foreign and not jobs:
        known = f"the script that it runs; kinds that are read: {', '.join(sorted(KINDS | JOBS))}"
        raise input_error(
            "file", name, f"is {_indefinite_article(foreign[-1])} {foreign[-1]}, {FOREIGN}", known
        )
    return []


def object_documents(text: str) -> list[str]:
    """The documents of a file of objects, as many as are read."""
    return DOCUMENT_BREAK.split(text)[:MOST]


def _group_size(tree: Mapping[str, Any]) -> int | None:
    """Pods of a group, the leader with them."""
    size = _inner(tree.get("spec"), "leaderWorkerTemplate").get("size", 1)
    return size if type(size) is int and 0 < size < MOST_GROUP else None


def config_maps(trees: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """ConfigMaps of a file by their names: what they hold by key."""
    return {
        _object_name(tree): tree["data"]
        for tree in trees
        if tree.get("kind") == CONFIG_MAP and isinstance(tree.get("data"), Mapping)
    }


def with_config_values(
    container: Mapping[str, Any], maps: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any]:
    """A container with the variables that it takes of ConfigMaps among its own, which go before them
    (kubernetes.io/docs/tasks/configure-pod-container/configure-pod-configmap).
    """
    if not maps:
        return container
    found: dict[str, Mapping[str, Any]] = {}
    for one in _mappings(container.get("envFrom")):
        held = maps.get(str(_inner(one, "configMapRef").get("name")), {})
        before = str(one.get("prefix") or "")
        found |= {f"{before}{at}": {"name": f"{before}{at}", "value": value} for at, value in held.items()}
    for one in _mappings(container.get("env")):
        key = _inner(one.get("valueFrom"), "configMapKeyRef")
        held = maps.get(str(key.get("name")), {})
        told = held.get(str(key.get("key")))
        name = str(one.get("name"))
        found[name] = {"name": name, "value": told} if told is not None else one
    return {**container, "env": [*found.values()]}


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (one for one in value if isinstance(one, Mapping)) if isinstance(value, list) else ()


def _inner(tree: Any, key: str) -> Mapping[str, Any]:
    held = tree.get(key) if isinstance(tree, Mapping) else None
    return held if isinstance(held, Mapping) else {}


def _object_name(tree: Mapping[str, Any]) -> str:
    held = tree.get("metadata")
    named = held.get("name") or held.get("generateName") if isinstance(held, Mapping) else None
    return str(named or tree.get("kind"))[:MOST_NAMED]


def _indefinite_article(word: str) -> str:
    return "an" if word[:1] in tuple("AEIOU") else "a"


def tree_of(parse: Callable[[str, str], Any], name: str, text: str) -> Mapping[str, Any] | None:
    try:
        held = parse(text, name)
    except ValueError:  # InputError is one
        return None
    return held if isinstance(held, Mapping) else None


def pod_containers(tree: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Containers of a pod template, however deep it stands in its kind."""
    for key, held in tree.items() if isinstance(tree, Mapping) and depth < MOST else ():
        if key == "containers" and isinstance(held, list):
            yield from (one for one in held if isinstance(one, Mapping))
        else:
            groups = held if isinstance(held, list) else [held]  # tasks, replicas of a kind
            yield from (found for one in groups[:MOST] for found in pod_containers(one, depth + 1))


def command_line(container: Mapping[str, Any], quoted: Callable[[str], str] | None = None) -> str:
    """What the container runs: a shell's text as it is, else its words, after the image, which may start the
    server itself. ``quoted``: a word as a shell has it, where a container's own variables are not what stands
    in it.
    """
    words = [str(word) for key in ("command", "args") for word in scalar_list(container.get(key))]
    image, as_word = str(container.get("image") or ""), quoted or _quoted_word
    plain = [
        f"{key}={as_word(value) or shlex.quote(value)}" for key, value in _container_env_pairs(container)
    ]
    versions = ((package, pinned_release(package, [image])) for package in IMAGES)
    before = "\n".join(
        [
            *(f"export {one}" for one in plain),
            *(f": {package}=={told}" for package, told in versions if told),
        ]
    )
    if (
        len(words) > 1
        and words[0].rpartition("/")[2] in ("sh", "bash")
        and words[1].startswith("-")
        and words[1].endswith("c")
    ):
        return f"{before}\n" + "\n".join(words[2:])
    told = " ".join(as_word(word) or "''" for word in words)
    own = is_own_vllm_image(container)
    alone = own or (named_image(image) in ALONE and not scalar_list(container.get("command")))
    program = IMAGES["vllm"] if own else shlex.quote(image)
    return f"{before}\n{program} {told}" if alone else f"{before}\n{told}"


OWN_VLLM = late_pattern(r"(?<![a-z])vllm(?![a-z]|-?(?:omni|router|gateway|proxy|exporter))", re.IGNORECASE)
"""In the name of a container or its image: vLLM's server, and none of the programs around it."""
MODEL_FLAG = late_pattern(r"--model(?:=.+)?")


def is_own_vllm_image(container: Mapping[str, Any]) -> bool:
    """Whether a container of an image that somebody made is given a model and flags alone, and is called for
    vLLM, whose own image starts its server with them (vllm-project/vllm 0000977 docker/Dockerfile,
    ENTRYPOINT).
    """
    words = [str(word) for word in scalar_list(container.get("args"))]
    image = str(container.get("image") or "")
    if not words or not words[0].startswith("--") or scalar_list(container.get("command")):
        return False
    called = OWN_VLLM.search(f"{container.get('name')} {image.rpartition('/')[2]}") is not None
    known = named_image(image) in IMAGES.values()
    return called and not known and any(MODEL_FLAG.fullmatch(word) for word in words)


def _image_remarks(container: Mapping[str, Any]) -> tuple[str, ...]:
    """That an image of somebody's own is taken for vLLM's."""
    name = str(container.get("image"))[:MOST_NAMED]
    told = f"image = {name}, which is taken for vLLM's own by what it is given"
    return (told,) if is_own_vllm_image(container) else ()


def _quoted_word(word: str) -> str:
    return "".join(_quote_container_word(piece) for piece in _VALUE.split(word))


def _quote_container_word(piece: str) -> str:
    """A piece of a word as a shell has it, where $(NAME) is a variable of the container's."""
    return f'"${{{piece[2:-1]}}}"' if _VALUE.fullmatch(piece) else shlex.quote(piece) if piece else ""


def scalar_list(value: Any) -> list[Any]:
    return [word for word in value if isinstance(word, str | int | float)] if isinstance(value, list) else []


def _container_env_pairs(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Variables with a value of their own; those of secrets are not in the text."""
    held = container.get("env")
    for one in held if isinstance(held, list) else ():
        if (
            isinstance(one, Mapping)
            and str(one.get("name") or "").isidentifier()
            and isinstance(one.get("value"), str | int)
        ):
            yield str(one["name"]), str(one["value"])


def starts_a_server(text: str) -> bool:
    return any(
        server_flags_index(part, LAUNCHES, ALONE) is not None
        for line in script_lines(text)
        for part in split_line_commands(line)
    )


SHM = "/dev/shm"  # noqa: S108


def container_memory_limit(container: Mapping[str, Any]) -> int | None:
    """Bytes of the limit of memory, above which a container is stopped; None where none is said
    (kubernetes.io/docs/concepts/configuration/manage-resources-containers, Memory units).
    """
    limits = _inner(_inner(container, "resources"), "limits")
    told = _QUANTITY.fullmatch(str(limits.get("memory", "")))
    return int(float(told[1]) * _UNITS[told[2]]) if told else None


_QUANTITY = late_pattern(r"(\d{1,15}(?:\.\d{1,6})?)(|k|M|G|T|Ki|Mi|Gi|Ti)")
_UNITS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip


def _mounts_shm(container: Mapping[str, Any]) -> bool:
    mounts = container.get("volumeMounts")
    return any(
        str(one.get("mountPath")).rstrip("/") == SHM
        for one in (mounts if isinstance(mounts, list) else ())
        if isinstance(one, Mapping)
    )


def card_resource(container: Mapping[str, Any]) -> str:
    """What its limits call the cards that a container has."""
    limits = _inner(_inner(container, "resources"), "limits")
    return next((name for name in RESOURCES if name in limits), RESOURCES[0])


def container_gpu_limit(container: Mapping[str, Any]) -> int | None:
    limits = _inner(_inner(container, "resources"), "limits")
    count = str(limits.get(card_resource(container), ""))
    return int(count) if count.isdigit() and len(count) < 8 else None
