"""A training in a pod of Kubernetes: what its container runs, as a shell's script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.launched_script import script_launches
from memsheet.exchange.shared.python_switches import SWITCHES
from memsheet.exchange.shared.serve_pods import (
    DOCUMENT_BREAK,
    MOST,
    command_line,
    container_gpu_limit,
    pod_containers,
    starts_a_server,
    tree_of,
)
from memsheet.guard.budget import TooMuchError

COMMAND = "command"
"""Behind a file's name, the script of its container."""
OF_OTHERS = re.compile(
    r"\b(?:swift|megatron) (?:sft|pt|rlhf)\b|\bverl\.trainer\.|\blitgpt (?:finetune|pretrain)"
)
"""Trainings that are no start of a script."""
COUNTED_JOBS = ("PyTorchJob", "TrainJob")
"""Kinds that give torchrun its nodes and processes as PET_* (formats/kubernetes.py, formats/trainjob.py)."""
LAUNCHER = re.compile(
    rf"\btorchrun(?=\s)|\bpython3?{SWITCHES}[ ]+-m torch\.distributed\.(?:run|launch)(?=\s)"
)
UNCOUNTED_MPI = re.compile(r"\bmpirun\b(?!.*\s--?np?\s)")


def pod_training(name: str, text: str, parse: Callable[[str, str], Any]) -> str | None:
    """The script of the first training that an object of Kubernetes starts; None of any other text."""
    if "apiVersion" not in text or ("containers" not in text and "TrainJob" not in text):
        return None
    for document in DOCUMENT_BREAK.split(text)[:MOST]:
        tree = tree_of(parse, name, document)
        if tree is None or "apiVersion" not in tree:
            continue
        containers = [*pod_containers(tree), *_trainer_of_job(tree)]
        script = next((line for held in containers if _starts_training(line := command_line(held))), "")
        if script:
            cards = max((container_gpu_limit(held) or 0 for held in containers), default=0)
            return _counted_script(script, tree, cards)
    return None


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
