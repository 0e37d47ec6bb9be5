"""A batch script for Slurm around ``torchrun``: ``sbatch slurm.sh train.py …``; or around a server's command beside it: ``sbatch slurm.sh``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from memsheet.spec.exchange import UNSET, Format, Key, Values
from memsheet.spec.segments import ALLOCATOR, OLDER, segments
from memsheet.spec.serve_command import SCRIPTS, one_node, server_of
from memsheet.spec.serve_script import unset

VERSION = "sbatch as its manual says (Slurm)"
RUNS, TORCHRUN = "$runs", "torchrun"
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_DIRECTIVE = re.compile(r"#SBATCH\s++--([a-z-]++)(?:[=\s]++(\S.*+)?)?")  # nothing is gone back to: lines may be long
_PLACE = re.compile(r"<[^<>]*+>|\{\{[^{}]*+\}\}|\$\{[^{}]*+\}")
_RANGE = re.compile(r"\d{1,7}-\d{1,7}")
_GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z0-9_-]+:)?(\d{1,6})")


def _compose(values: Values, _: Values) -> str:
    """Directives take no quotes, so that a name is written in plain letters; the rest is the cluster's own environment."""
    directives = [f"#SBATCH --{at[1:]}={_PLAIN.sub('-', str(value))}" for at, value in values.items() if at.startswith("#")]
    named = [f"export {name}={shlex.quote(str(values[name]))}" for name in (ALLOCATOR,) if name in values]
    if values[RUNS] != TORCHRUN:
        serve = f'srun --ntasks=1 bash {shlex.quote(values[RUNS])} "$@"'
        return "\n".join(["#!/usr/bin/env bash", *directives, "set -euo pipefail", *named, serve, ""])
    launch = [
        "srun torchrun", '--nnodes="$SLURM_JOB_NUM_NODES"', f"--nproc-per-node={shlex.quote(str(values['#gpus-per-node']))}",
        '--rdzv-id="$SLURM_JOB_ID"', "--rdzv-backend=c10d", '--rdzv-endpoint="$first:29500"', '"$@"',
    ]  # fmt: skip
    first = 'first="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
    return "\n".join(["#!/usr/bin/env bash", *directives, "set -euo pipefail", *named, first, " \\\n  ".join(launch), ""])


def _parse(text: str) -> Mapping[str, Any]:
    """The directives, and what is exported; nothing is run."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if told := _DIRECTIVE.fullmatch(line):
            value = _first_word(told[2]) if told[2] else None
            found[f"#{told[1]}"] = int(value) if value and value.isdigit() and len(value) < 8 else UNSET if _open(told[1], value) else value
        elif line.startswith((f"export {ALLOCATOR}=", f"export {OLDER}=")):
            found[ALLOCATOR] = line.partition("=")[2]
        elif line.startswith("srun "):
            found[RUNS] = next((script for script in SCRIPTS.values() if f" bash {script} " in f"{line} "), TORCHRUN)
    return found


def _open(name: str, value: str | None) -> bool:
    """Whether a number is left open: by a place to fill in, by a word, or as from one number of nodes to another (sbatch(1))."""
    words = name == "nodes" and value is not None and (_RANGE.fullmatch(value) is not None or not any(map(str.isdigit, value)))
    return unset(value) or words


def _first_word(text: str) -> str:
    """A directive's value without what stands behind it: a place to fill in may have spaces."""
    place = _PLACE.match(text)
    return place[0] if place else text.split(maxsplit=1)[0]


def _per_node(value: Any, values: Values) -> Mapping[str, Any]:
    nodes, told = values.get("#nodes", 1), _GPUS.fullmatch(str(value))
    return {"@per_node": int(told[1]), "@gpus": int(told[1]) * nodes} if told and isinstance(nodes, int) else {}


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
        *segments(),
    ),
    fixed=lambda _: {"#ntasks-per-node": 1},  # torchrun starts the ranks of its node
    marks=frozenset({"#nodes", "#gpus-per-node", "#gres", "#ntasks-per-node"}), beside=frozenset({"*"}), compose=_compose, parse=_parse,
    known=frozenset({
        f"#{name}" for name in (
            "ntasks-per-node", "ntasks", "time", "partition", "account", "qos", "output", "error", "mem", "cpus-per-task", "exclusive",
            "constraint", "exclude", "nodelist", "mail-type", "mail-user", "array", "requeue", "signal", "open-mode", "chdir", "gpus-per-task",
            "cpus-per-gpu", "reservation", "dependency", "comment", "export",
        )
    }),
    problems=one_node, along=server_of,
)  # fmt: skip
