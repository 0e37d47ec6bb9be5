"""A job whose micro-batches have fewer tokens: the same document with shorter rows."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

MOST_HALVES = 5


def with_shorter_rows(document: Mapping[str, Any], halves: int) -> dict[str, Any]:
    """The document with rows of what trains halved so often, and with as many fewer logits where a phase says
    how many there are.
    """
    changed, part = deepcopy(dict(document)), 2**halves
    plans = [role["plan"] for role in changed["roles"].values() if role["plan"].get("task") == "train"]
    plans += [phase["plan"] for phase in changed["phases"] if phase.get("plan")]
    for plan in plans:
        if isinstance(plan.get("seq_len"), int):
            plan["seq_len"] = max(1, plan["seq_len"] // part)
            plan.pop("global_batch", None)
    for phase in changed["phases"]:
        logits = phase.get("logits") or {}
        if isinstance(logits.get("tokens"), int):
            logits["tokens"] //= part
    return changed


def tokens_at_once(document: Mapping[str, Any]) -> int:
    """Tokens of the largest micro-batch that is learnt from."""
    plans = [role["plan"] for role in document["roles"].values() if role.get("trained")]
    return max(
        (int(plan.get("microbatch") or 1) * int(plan.get("seq_len") or 0) for plan in plans), default=0
    )
