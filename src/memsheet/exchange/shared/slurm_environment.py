"""Variables that Slurm gives a job by the options that it is submitted with (sbatch(1), OUTPUT ENVIRONMENT
VARIABLES).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_CARDS_OF_NODE = re.compile(
    r"--(?:gres|gpus-per-node)[= ](?:gpu:)?(?:[a-zA-Z]\w*:)?(?P<count>\d{1,4})(?![\w.])"
)
_COUNT = {
    "nodes": r"(?:-N|--nodes)[= ]*",
    "ntasks": r"(?:-n|--ntasks)[= ]*",
    "ntasks-per-node": r"--ntasks-per-node[= ]+",
    "gpus": r"(?:-G|--gpus)[= ]*(?:[a-zA-Z]\w*:)?",
    "gpus-per-node": r"--gpus-per-node[= ]+",
    "gpus-per-task": r"--gpus-per-task[= ]+(?:[a-zA-Z]\w*:)?",
}
_OPTIONS = {
    name: re.compile(rf"(?<!\S){words}(?P<count>\d{{1,6}})(?:-(?P<most>\d{{1,6}}))?(?![\w.:])")
    for name, words in _COUNT.items()
}


def slurm_variables(options: Iterable[str]) -> list[str]:
    """SLURM_GPUS_ON_NODE by the options of any command, as an assignment."""
    cards = [told["count"] for one in options if (told := _CARDS_OF_NODE.search(one))]
    return [f"SLURM_GPUS_ON_NODE={cards[-1]}"] if cards else []


def submitted_variables(directives: Iterable[str]) -> list[str]:
    """What a batch script's directives give its variables, as assignments: nodes, tasks and cards. A range of
    nodes, and what Slurm chooses itself, gives none.
    """
    lines = [*directives]
    told = [
        (name, found) for line in lines for name, option in _OPTIONS.items() if (found := option.search(line))
    ]
    open_ones = {name for name, found in told if found["most"] not in (None, found["count"])}
    held = {name: int(found["count"]) for name, found in told if name not in open_ones}
    nodes = held.get("nodes") or (1 if not {"nodes", "ntasks", "gpus"} & {name for name, _ in told} else None)
    per_node = held.get("ntasks-per-node")
    tasks = held.get("ntasks") or (per_node * nodes if per_node and nodes else None)
    on_node = next((int(one.partition("=")[2]) for one in slurm_variables(lines)), None)
    if on_node is None and nodes == 1:
        each = held.get("gpus-per-task")
        on_node = held.get("gpus") or (each * tasks if each and tasks else None)
    variables = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_GPUS": held.get("gpus"),
        "SLURM_GPUS_PER_NODE": held.get("gpus-per-node"),
        "SLURM_GPUS_ON_NODE": on_node,
    }
    return [f"{name}={count}" for name, count in variables.items() if count]
