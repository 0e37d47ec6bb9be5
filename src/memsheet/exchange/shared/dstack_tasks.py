"""A task or a service of dstack: what its commands run, as a shell's script."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

KINDS = ("task", "service")
MOST_CARDS = 1024


def dstack_script(tree: Mapping[str, Any]) -> str | None:
    """The commands of a configuration with its own variables and those that dstack sets before them
    (dstackai/dstack 511c318 mkdocs/docs/concepts/tasks.md, System environment variables); None of
    any other object.
    """
    commands, nodes = tree.get("commands"), tree.get("nodes", 1)
    if tree.get("type") not in KINDS or not isinstance(commands, list):
        return None
    if not all(isinstance(one, str) for one in commands):
        return None
    cards, several = task_cards(tree.get("resources")), nodes if type(nodes) is int and nodes > 0 else 1
    pairs = _variables(tree.get("env")) | {"DSTACK_NODES_NUM": several, "DSTACK_NODE_RANK": 0}
    pairs |= {"DSTACK_MASTER_NODE_IP": "127.0.0.1"}
    pairs |= {"DSTACK_GPUS_PER_NODE": cards, "DSTACK_GPUS_NUM": cards * several} if cards else {}
    before = [f"export {at}={shlex.quote(str(held))}" for at, held in pairs.items()]
    return "\n".join((*before, *commands))


def task_cards(resources: Any) -> int:
    """Cards of a node (``H100:8``, ``80GB:2``, ``{name: H100, count: 8}``), 0 where a range leaves it open or
    none is asked for (src/dstack/_internal/core/models/resources.py: GPUSpec.parse).
    """
    held = resources.get("gpu") if isinstance(resources, Mapping) else None
    if isinstance(held, Mapping):
        told = str(held.get("count", 1))
    elif isinstance(held, int):
        told = str(held)
    else:
        parts = str(held or "").replace(" ", "").split(":")
        told = next((one for one in parts if not any(map(str.isalpha, one))), "1")
    return int(told) if told.isdigit() and int(told) <= MOST_CARDS else 0


def _variables(env: Any) -> dict[str, Any]:
    """Variables with a value; of a list, those that stand there with one."""
    if isinstance(env, Mapping):
        return {str(at): held for at, held in env.items() if isinstance(held, str | int)}
    said = (str(one).partition("=") for one in env) if isinstance(env, list) else ()
    return {name: value for name, sign, value in said if sign and name.isidentifier()}
