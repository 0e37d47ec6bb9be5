"""A training in a pod of Kubernetes or in a task of SkyPilot: what runs there, as a shell's script."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.launched_script import script_launches
from memsheet.exchange.shared.python_switches import SWITCHES
from memsheet.exchange.shared.serve_pods import (
    MOST,
    command_line,
    config_maps,
    container_gpu_limit,
    object_documents,
    pod_containers,
    starts_a_server,
    tree_of,
)
from memsheet.exchange.shared.shell_text import named_programs
from memsheet.exchange.shared.started_scripts import with_started_scripts
from memsheet.guard.budget import TooMuchError
from memsheet.patterns import late_pattern

OF_OTHERS = late_pattern(
    r"\b(?:swift|megatron) (?:sft|pt|rlhf)\b|\bverl\.trainer\.|\blitgpt (?:finetune|pretrain)"
)
"""Trainings that are no start of a script."""
COUNTED_JOBS = ("PyTorchJob", "TrainJob")
"""Kinds that give torchrun its nodes and processes as PET_* (formats/kubernetes.py, formats/trainjob.py)."""
TASKS = frozenset({"resources", "num_nodes", "setup", "workdir", "file_mounts"})
"""Of which a task of SkyPilot that runs something has one."""
SCRIPTS = (".sh", ".bash", ".py")
LAUNCHER = late_pattern(
    rf"\btorchrun(?=\s)|\bpython3?{SWITCHES}[ ]+-m torch\.distributed\.(?:run|launch)(?=\s)"
)
UNCOUNTED_MPI = late_pattern(r"\bmpirun\b(?!.*\s--?np?\s)")


def pod_training(
    name: str,
    text: str,
    parse: Callable[[str, str], Any],
    text_of: Callable[[str], str | None] = lambda _: None,
) -> str | None:
    """The script of the first training that an object of Kubernetes or a task of SkyPilot starts; None of any
    other text. ``text_of``: that of a shell script which a container starts, by its name, which may start a
    server, too.
    """
    if "apiVersion" not in text and "run:" in text:
        return _task_training(tree_of(parse, name, text) or {})
    if "apiVersion" not in text or ("containers" not in text and "TrainJob" not in text):
        return None
    trees, held_scripts = object_trees(name, text, parse), config_scripts(name, text, parse)
    for tree in trees:
        if "apiVersion" not in tree:
            continue
        containers = [*pod_containers(tree), *_trainer_of_job(tree)]
        lines = [named_programs(command_line(held)) for held in containers]
        script = (
            next(filter(_starts_training, lines), "")
            or _written_out(lines, lambda at: held_scripts.get(_base_name(at)) or text_of(at))
            or next((line for line in lines if _starts_any(line, held_scripts)), "")
        )
        if script:
            cards = max((container_gpu_limit(held) or 0 for held in containers), default=0)
            return _counted_script(script, tree, cards)
    return None


def object_trees(name: str, text: str, parse: Callable[[str, str], Any]) -> list[Mapping[str, Any]]:
    """The objects of a file, as many as are read."""
    return [tree for one in object_documents(text) if (tree := tree_of(parse, name, one))]


def config_scripts(name: str, text: str, parse: Callable[[str, str], Any]) -> dict[str, str]:
    """Scripts that ConfigMaps of a file hold, by their keys, which are their names where they are mounted
    (kubernetes.io/docs/concepts/configuration/configmap).
    """
    return {
        str(at): script
        for held in config_maps(object_trees(name, text, parse)).values()
        for at, script in held.items()
        if str(at).endswith(SCRIPTS) and isinstance(script, str)
    }


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


def _starts_any(line: str, scripts: Mapping[str, str]) -> bool:
    """Whether a command starts one of some scripts in Python."""
    try:
        return any(_base_name(one.script) in scripts for one in script_launches(line))
    except (ValueError, TooMuchError):
        return False


def _written_out(lines: Iterable[str], text_of: Callable[[str], str | None]) -> str:
    """The first command of containers that starts a script which trains or serves, with that as its function;
    nothing where a server is started beside.
    """
    if any(map(starts_a_server, lines)):
        return ""
    for line in lines:
        whole = named_programs(with_started_scripts(line, text_of))
        if whole != line and (starts_a_server(whole) or _starts_training(whole)):
            return whole
    return ""


def _task_training(task: Mapping[str, Any]) -> str | None:
    """What a task of SkyPilot runs, with its own variables and those that SkyPilot sets (0.14.1,
    skylet/constants.py: SKYPILOT_NUM_GPUS_PER_NODE, SKYPILOT_NUM_NODES, SKYPILOT_NODE_RANK).
    """
    run, told, nodes = task.get("run"), task.get("envs") or {}, task.get("num_nodes", 1)
    if not isinstance(run, str) or not isinstance(told, Mapping) or not TASKS & task.keys():
        return None
    cards = _task_cards(task.get("resources"))
    pairs = {at: held for at, held in told.items() if isinstance(held, str | int)}
    pairs |= {"SKYPILOT_NUM_NODES": nodes, "SKYPILOT_NODE_RANK": 0, "SKYPILOT_NODE_IPS": "127.0.0.1"}
    pairs |= {"SKYPILOT_NUM_GPUS_PER_NODE": cards} if cards else {}
    before = [f"export {at}={shlex.quote(str(held))}" for at, held in pairs.items()]
    if 0 < cards <= MOST:
        before.append(f"export CUDA_VISIBLE_DEVICES={','.join(map(str, range(cards)))}")
    script = "\n".join((*before, run))
    return script if _starts_training(script) else None


def _task_cards(resources: Any) -> int:
    """Cards of a node, where a task says one kind of them (``A100:8``, ``{A100: 8}``)."""
    held = resources.get("accelerators") if isinstance(resources, Mapping) else None
    if isinstance(held, Mapping) and len(held) == 1:
        held = ":".join(str(one) for one in next(iter(held.items())))
    count = str(held or "").rpartition(":")
    return int(count[2]) if count[1] and count[2].isdigit() else int(bool(held) and not count[1])


def _trainer_of_job(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The trainer of a TrainJob, which is called as a container is."""
    spec = tree.get("spec")
    held = spec.get("trainer") if isinstance(spec, Mapping) and tree.get("kind") == "TrainJob" else None
    if isinstance(held, Mapping):
        yield {**held, "resources": held.get("resourcesPerNode")}


def _starts_training(script: str) -> bool:
    """Whether a script starts a training that says more than a launcher's own counts."""
    try:
        if starts_a_server(script):
            return False
        return OF_OTHERS.search(script) is not None or any(
            one.arguments or one.left for one in script_launches(script)
        )
    except (ValueError, TooMuchError):
        return False


def starts_anything(script: str) -> bool:
    """Whether a script starts a training or a server."""
    return starts_a_server(script) or _starts_training(script)


def _counted_script(script: str, tree: Mapping[str, Any], cards: int) -> str:
    """The script with what its pod tells it: the cards that are visible, the processes of a job's pods."""
    pods = _pod_count(tree)
    if tree.get("kind") == "MPIJob":
        ranks = (_number_of(tree, "slotsPerWorker") or cards or 1) * pods
        return UNCOUNTED_MPI.sub(f"mpirun -np {ranks}", script)
    if not cards:
        return script
    if tree.get("kind") not in COUNTED_JOBS:
        return (
            f"export CUDA_VISIBLE_DEVICES={','.join(map(str, range(cards)))}\n{script}"
            if cards <= MOST
            else script
        )
    each = _number_of(tree, "nprocPerNode") or _number_of(tree, "numProcPerNode") or cards
    told = f"export PET_NNODES={pods}\nexport PET_NPROC_PER_NODE={each}\nexport WORLD_SIZE={pods}\n"
    flags = f"--nnodes={pods} --nproc-per-node={each}"  # in front of those of the command, which go before
    return told + LAUNCHER.sub(lambda found: f"{found[0]} {flags}", script)


def _number_of(tree: Any, key: str, depth: int = 0) -> int | None:
    """A number of that name, wherever it stands."""
    for at, held in tree.items() if isinstance(tree, Mapping) and depth < MOST else ():
        if at == key and str(held).isdigit() and len(str(held)) < 6:
            return int(held)
        if (found := _number_of(held, key, depth + 1)) is not None:
            return found
    return None


def _pod_count(tree: Mapping[str, Any]) -> int:
    """Pods that have cards: a job's nodes, or its replicas of both kinds."""
    if (nodes := _number_of(tree, "numNodes")) is not None:
        return nodes
    spec = tree.get("spec")
    groups = (
        [held for at, held in spec.items() if at.endswith("ReplicaSpecs")]
        if isinstance(spec, Mapping)
        else []
    )
    kinds = [one for held in groups if isinstance(held, Mapping) for one in held.values()]
    counts = [
        _number_of(one, "replicas") or 1
        for one in kinds
        if any(map(container_gpu_limit, pod_containers(one)))
    ]
    return sum(counts) or 1
