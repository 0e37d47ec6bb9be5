"""A script around ``torchrun``: the training script and its arguments follow (``bash torchrun.sh train.py
…``).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.allocator_env import ALLOCATOR, OLDER, allocator_conf_rows
from memsheet.exchange.shared.file_format import UNSET, Format, Key, Values
from memsheet.exchange.shared.launched_script import (
    EVERY_CARD,
    TORCHRUN,
    filled_commands,
    find_launcher,
    visible_cards,
)
from memsheet.exchange.shared.serve_script import has_unset_placeholder

VERSION = "torch 2.13.0"
NODES = (
    "--node-rank",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--master-addr",
    "--master-port",
    "--standalone",
    "--max-restarts",
)
SWITCHES = ("--standalone", "--use-env", "--no-python", "--run-path", "--module")
"""Flags that no word follows (torch/distributed/run.py, get_args_parser; torch/distributed/launch.py)."""


def _compose_torchrun_script(values: Values, asked: Values) -> str:
    """Shell text: every value that a plan says is quoted, and the addresses of several nodes are the
    environment's.
    """
    named = [f"export {name}={shlex.quote(str(values[name]))}" for name in (ALLOCATOR,) if name in values]
    flags = [f"{at}={shlex.quote(str(value))}" for at, value in values.items() if at.startswith("--")]
    if asked["@nodes"] > 1:
        flags += [
            '--node-rank="${NODE_RANK:?}"',
            "--rdzv-backend=c10d",
            '--rdzv-endpoint="${MASTER_ADDR:?}:${MASTER_PORT:-29500}"',
        ]
    launch = " \\\n  ".join(["exec torchrun", *flags, '"$@"'])
    return "\n".join(["#!/usr/bin/env bash", "set -euo pipefail", *named, launch, ""])


def _parse_torchrun_script(text: str) -> Mapping[str, Any]:
    """Flags of the first ``torchrun`` and what is exported before it; nothing is run."""
    found: dict[str, Any] = {}
    cards: int | None = None
    for words in filled_commands(text):
        for word in words:
            name, _, value = word.partition("=")
            if name in (ALLOCATOR, OLDER) and value:
                found[ALLOCATOR] = value
            cards = visible_cards(word) or cards
        start = find_launcher(words)
        if start is not None and start[0] == TORCHRUN:
            flags = _parse_torchrun_flags(words[start[1] :])
            all_cards = flags.get("--nproc-per-node") in EVERY_CARD and cards
            return {**found, **flags, **({"--nproc-per-node": cards} if all_cards else {})}
    return found


def _parse_torchrun_flags(words: list[str]) -> Mapping[str, Any]:
    """Flags until the script's own name: `--a=b`, `--a b`, with dashes or underscores."""
    found: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            break
        name, equals, value = word.partition("=")
        name = "--" + name[2:].replace("_", "-")
        if name in SWITCHES and not equals:
            found[name] = ""
            continue
        value = value if equals else next(rest, "")
        found[name] = (
            int(value)
            if value.isdigit() and len(value) < 8
            else UNSET
            if has_unset_placeholder(value)
            else value
        )
    return found


def _read_torchrun_ranks(value: Any, values: Values) -> Mapping[str, Any]:
    nodes = values.get("--nnodes", 1)
    known = isinstance(value, int) and isinstance(nodes, int)
    return {"@per_node": value, "@gpus": value * nodes} if known else {}


FORMAT = Format(
    name="torchrun", file="torchrun.sh", kind="shell", tested=VERSION,
    engines=("transformers", "fsdp2", "fsdp1", "deepspeed", "torchtitan", "megatron", "torchtune", "litgpt", "llm-foundry", "internevo"),
    keys=(
        *allocator_conf_rows(),
        Key(at="--nnodes", says="@nodes", usual=1, source="torch/distributed/run.py"),
        Key(at="--nproc-per-node", says="@per_node", back=_read_torchrun_ranks, source="torch/distributed/run.py"),
    ),
    marks=frozenset({"--nproc-per-node", "--nnodes"}), beside=frozenset({"*"}), compose=_compose_torchrun_script, parse=_parse_torchrun_script,
    known=frozenset((*NODES, *SWITCHES)), said={"task": "train"},
)  # fmt: skip
