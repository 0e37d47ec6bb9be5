"""A batch script for Slurm around ``torchrun``: ``sbatch slurm.sh train.py …``; or around a server's command
beside it: ``sbatch slurm.sh``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.allocator_env import ALLOCATOR, OLDER, allocator_conf_rows
from memsheet.exchange.shared.file_format import UNSET, Format, Key, Values
from memsheet.exchange.shared.serve_command import SCRIPTS, one_node, server_of
from memsheet.exchange.shared.serve_script import has_unset_placeholder
from memsheet.exchange.shared.slurm_environment import DIRECTIVE, LONG, TASKS, sbatch_options, tasks_of_step
from memsheet.patterns import late_pattern

VERSION = "sbatch as its manual says (Slurm)"
RUNS, TORCHRUN = "$runs", "torchrun"
_PLAIN = late_pattern(r"[^A-Za-z0-9._-]+")
_RANGE = late_pattern(r"\d{1,7}-\d{1,7}")
_GPUS = late_pattern(r"(?:gpu:)?(?:[A-Za-z0-9_-]+:)?(\d{1,6})")


def _compose_slurm_script(values: Values, _: Values) -> str:
    """Directives take no quotes, so that a name is written in plain letters; the rest is the cluster's own
    environment.
    """
    directives = [
        f"#SBATCH --{at[1:]}={_PLAIN.sub('-', str(value))}"
        for at, value in values.items()
        if at.startswith("#")
    ]
    named = [f"export {name}={shlex.quote(str(values[name]))}" for name in (ALLOCATOR,) if name in values]
    if values[RUNS] != TORCHRUN:
        serve = f'srun --ntasks=1 bash {shlex.quote(values[RUNS])} "$@"'
        return "\n".join(["#!/usr/bin/env bash", *directives, "set -euo pipefail", *named, serve, ""])
    launch = [
        "srun torchrun", '--nnodes="$SLURM_JOB_NUM_NODES"', f"--nproc-per-node={shlex.quote(str(values['#gpus-per-node']))}",
        '--rdzv-id="$SLURM_JOB_ID"', "--rdzv-backend=c10d", '--rdzv-endpoint="$first:29500"', '"$@"',
    ]  # fmt: skip
    first = 'first="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
    return "\n".join(
        ["#!/usr/bin/env bash", *directives, "set -euo pipefail", *named, first, " \\\n  ".join(launch), ""]
    )


def _parse_slurm_script(text: str) -> Mapping[str, Any]:
    """The directives, and what is exported; nothing is run."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if DIRECTIVE.match(line):
            for name, value in sbatch_options(line):
                found[f"#{name}"] = (
                    int(value)
                    if value and value.isdigit() and len(value) < 8
                    else UNSET
                    if _is_open_number(name, value)
                    else value
                )
        elif line.startswith((f"export {ALLOCATOR}=", f"export {OLDER}=")):
            found[ALLOCATOR] = line.partition("=")[2]
        elif line.startswith("srun "):
            found[RUNS] = next(
                (script for script in SCRIPTS.values() if f" bash {script} " in f"{line} "), TORCHRUN
            )
    started = tasks_of_step(text)
    return _with_nodes({**found, **({TASKS: list(started)} if started else {})})


def _with_nodes(found: dict[str, Any]) -> dict[str, Any]:
    """As many nodes as tasks need that are counted by node, where nobody says how many (sbatch(1),
    --ntasks-per-node).
    """
    tasks, per_node = found.get("#ntasks"), found.get("#ntasks-per-node")
    if "#nodes" not in found and isinstance(tasks, int) and isinstance(per_node, int) and per_node:
        found["#nodes"] = -(-tasks // per_node)
    return found


def _is_open_number(name: str, value: str | None) -> bool:
    """Whether a number is left open: by a place to fill in, by a word, or as from one number of nodes to
    another (sbatch(1)).
    """
    words = (
        name == "nodes"
        and value is not None
        and (_RANGE.fullmatch(value) is not None or not any(map(str.isdigit, value)))
    )
    return has_unset_placeholder(value) or words


def _per_node(value: Any, values: Values) -> Mapping[str, Any]:
    nodes, cards = values.get("#nodes", 1), _cards_in(value)
    return {"@per_node": cards, "@gpus": cards * nodes} if cards and isinstance(nodes, int) else {}


def _cards_in(value: Any) -> int:
    """GPUs that an option asks for; 0 where it asks for none, or they are not known."""
    told = _GPUS.fullmatch(str(value))
    return int(told[1]) if told else 0


def _of_the_job(value: Any, values: Values) -> Mapping[str, Any]:
    """GPUs of all nodes together, which says nothing more where they are counted by node."""
    nodes, whole = values.get("#nodes", 1), _cards_in(value)
    if any(at in values for at in _BY_NODE) or not whole or not isinstance(nodes, int):
        return {}
    return {"@gpus": whole, **({"@per_node": whole // nodes} if nodes and whole % nodes == 0 else {})}


def _of_tasks(value: Any, values: Values) -> Mapping[str, Any]:
    """GPUs of each task, as many times as there are tasks."""
    nodes, cards = values.get("#nodes", 1), _cards_in(value)
    per_node, tasks = values.get("#ntasks-per-node"), values.get("#ntasks")
    if any(at in values for at in (*_BY_NODE, "#gpus")) or not cards or not isinstance(nodes, int):
        return {}
    count = per_node * nodes if isinstance(per_node, int) else tasks
    return _of_the_job(cards * count, values) if isinstance(count, int) else {}


def _of_started_tasks(value: Any, values: Values) -> Mapping[str, Any]:
    """A rank a task, where each node has several and a card for each: a program that is started once on a
    node may start its own.
    """
    tasks, nodes = value if isinstance(value, list) and len(value) == 2 else (0, 0)
    if not nodes or tasks % nodes or tasks <= nodes:
        return {}
    cards = max((_cards_in(values.get(at)) for at in _BY_NODE), default=0)
    return (
        {"@gpus": tasks, "@per_node": tasks // nodes, "@nodes": nodes}
        if not 0 < cards < tasks // nodes
        else {}
    )


_BY_NODE = ("#gpus-per-node", "#gres")


FORMAT = Format(
    name="slurm", file="slurm.sh", kind="shell", tested=VERSION,
    engines=("transformers", "fsdp2", "fsdp1", "deepspeed", "torchtitan", "megatron", "torchtune", "litgpt", "llm-foundry", "internevo", *SCRIPTS),
    keys=(
        Key(at=RUNS, out=lambda a: SCRIPTS.get(a["engine"], TORCHRUN), back=lambda runs, _: {"task": "train" if runs == TORCHRUN else "infer"},
            source="the command this script starts"),
        Key(at="#job-name", out=lambda a: _PLAIN.sub("-", str(a.get("@model") or "memsheet"))[:64], back=lambda *_: {}, source="sbatch(1)"),
        Key(at="#nodes", says="@nodes", usual=1, source="sbatch(1)"),
        Key(at="#gpus-per-node", says="@per_node", back=_per_node, source="sbatch(1)"),
        Key(at="#gres", out=lambda _: None, back=_per_node, source="sbatch(1)"),
        Key(at="#gpus", out=lambda _: None, back=_of_the_job, source="sbatch(1)"),
        Key(at="#gpus-per-task", out=lambda _: None, back=_of_tasks, source="sbatch(1)"),
        Key(at=TASKS, out=lambda _: None, back=_of_started_tasks, source="srun(1): --ntasks, --ntasks-per-node"),
        *allocator_conf_rows(),
    ),
    fixed=lambda _: {"#ntasks-per-node": 1},  # torchrun starts the ranks of its node
    marks=frozenset({"#nodes", "#gpus-per-node", "#gres", "#gpus", "#gpus-per-task", "#ntasks", "#ntasks-per-node"}), beside=frozenset({"*"}), compose=_compose_slurm_script, parse=_parse_slurm_script,
    known=frozenset({
        f"#{name}" for name in (
            "ntasks-per-node", "ntasks", "time", "partition", "account", "qos", "output", "error", "mem", "cpus-per-task", "exclusive",
            "constraint", "exclude", "nodelist", "mail-type", "mail-user", "array", "requeue", "signal", "open-mode", "chdir", "cpus-per-gpu", "mem-per-gpu", "mem-per-cpu",
            *(name for name in LONG.values() if name not in ("gpus", "nodes", "job-name")), "wrap", "nice", "hint", "switches", "gpu-bind", "gpu-freq", "reservation", "dependency", "comment", "export",
        )
    }),
    problems=one_node, along=server_of,
)  # fmt: skip
