"""A job whose micro-batches have fewer tokens: the same document with shorter rows, or with fewer of them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.jobs.templates.generation import is_own_generation


MOST_HALVES = 5
GENERATED = ("max_model_len", "prompt_tokens")
"""Lengths of what a model generates between its own steps, whose cache is as long as its rows."""
OF_LOGITS = ("waiting_logits",)
"""Paths of items that are of as many tokens as a phase's logits."""


def with_shorter_rows(document: Mapping[str, Any], halves: int) -> dict[str, Any]:
    """The document with rows of what trains halved so often, and with as many fewer logits where a phase says
    how many there are.
    """
    changed, part = deepcopy(dict(document)), 2**halves
    for plan in _training_plans(changed):
        if isinstance(plan.get("seq_len"), int):
            plan["seq_len"] = max(1, plan["seq_len"] // part)
            plan.pop("global_batch", None)
    for serving in (
        role["plan"].get("serving", {}) for role in changed["roles"].values() if is_own_generation(role)
    ):
        serving |= {at: max(1, serving[at] // part) for at in GENERATED if isinstance(serving.get(at), int)}
    return _with_logits_of(changed, 1, part)


def with_rows_of(document: Mapping[str, Any], tokens: int, counted: int) -> dict[str, Any]:
    """The document with rows of ``tokens`` in place of ``counted``, and whatever is of rows in proportion."""
    changed = deepcopy(dict(document))
    for plan in _training_plans(changed):
        _set_in_proportion(plan, ("seq_len",), tokens, counted)
    for role in changed["roles"].values():
        if role["plan"].get("task") == "infer" and isinstance(role["plan"].get("serving"), dict):
            _set_in_proportion(role["plan"]["serving"], GENERATED, tokens, counted)
    return _with_logits_of(changed, tokens, counted)


def with_so_many_rows(document: Mapping[str, Any], rows: int, counted: int) -> dict[str, Any]:
    """The document with micro-batches of ``rows`` in place of ``counted``, of a step that is as many."""
    changed = deepcopy(dict(document))
    for plan in _training_plans(changed):
        _set_in_proportion(plan, ("microbatch",), rows, counted)
        plan.pop("global_batch", None)
    return _with_logits_of(changed, rows, counted)


def _set_in_proportion(held: dict[str, Any], names: tuple[str, ...], more: int, counted: int) -> None:
    held |= {at: max(1, -(-held[at] * more // counted)) for at in names if isinstance(held.get(at), int)}


def _with_logits_of(document: dict[str, Any], more: int, counted: int) -> dict[str, Any]:
    for phase in document["phases"]:
        _set_logits(phase, more, counted)
    return document


def _set_logits(phase: dict[str, Any], more: int, counted: int) -> None:
    """A phase's logits, and what of its items is of all of them, in proportion."""
    if isinstance((phase.get("logits") or {}).get("tokens"), int):
        _set_in_proportion(phase["logits"], ("tokens",), more, counted)
    for item in phase.get("items", ()):
        if item["path"] in OF_LOGITS:
            item["bytes"] = [-(-size * more // counted) for size in item["bytes"]]


def with_smaller_batches(document: Mapping[str, Any], times: int, ranks: int) -> dict[str, Any]:
    """Every pass of what trains, and of what stands beside it, with so many times fewer rows. ``ranks``: that
    share a batch, which stays as large.
    """
    changed = deepcopy(dict(document))
    for plan in _training_plans(changed):
        rows = plan.get("microbatch")
        if isinstance(rows, int) and rows % times == 0:
            plan |= {"microbatch": rows // times, "global_batch": plan.get("global_batch") or rows * ranks}
    return _with_logits_of(changed, 1, times)


def with_smaller_pass(document: Mapping[str, Any], name: str, part: str, count: int) -> dict[str, Any]:
    """The document with the passes of one phase of ``count`` rows ("microbatch") or tokens ("seq_len") at
    once, and as many fewer logits; of a role's own step where the phase says no batch of its own.
    """
    changed = deepcopy(dict(document))
    phase = next(one for one in changed["phases"] if one["name"] == name)
    role_plan = changed["roles"][phase["active"]]["plan"]
    if _says_batch(phase):
        plan = phase["plan"]
    else:
        plan = role_plan
        plan.pop("global_batch", None)
    before, plan[part] = plan[part], count
    _set_logits(phase, count, before)
    return changed


def batch_of_pass(document: Mapping[str, Any], phase: Mapping[str, Any]) -> tuple[int, int]:
    """Rows that a pass takes at once, and tokens of each; of a packed one its tokens are those of one row."""
    plan = document["roles"][phase["active"]]["plan"]
    plan = {**plan, **(phase.get("plan") or {})}
    return int(plan.get("microbatch") or 1), int(plan.get("seq_len") or 0)


def _says_batch(phase: Mapping[str, Any]) -> bool:
    return "microbatch" in (phase.get("plan") or {})


def _training_plans(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Plans of roles that train or are read as what trains is, and what phases say otherwise of them."""
    plans = [role["plan"] for role in document["roles"].values() if role["plan"].get("task") == "train"]
    return [*plans, *(phase["plan"] for phase in document["phases"] if phase.get("plan"))]


def tokens_at_once(document: Mapping[str, Any]) -> int:
    """Tokens of the largest micro-batch that is learnt from."""
    return _largest_batch(document)[0]


def rows_at_once(document: Mapping[str, Any]) -> int:
    """Rows of that micro-batch."""
    return _largest_batch(document)[1]


def _largest_batch(document: Mapping[str, Any]) -> tuple[int, int]:
    plans = [
        role["plan"] for role in document["roles"].values()
        if role["plan"].get("task") == "train" and role.get("trained", True)
    ]  # fmt: skip
    rows = [(int(plan.get("microbatch") or 1), int(plan.get("seq_len") or 0)) for plan in plans]
    return max(((count * length, count) for count, length in rows), default=(0, 1))
