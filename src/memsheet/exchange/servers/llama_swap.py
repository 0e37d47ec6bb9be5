"""Servers of llama-swap, a proxy that starts the one that is asked for: a command of each model
(mostlygeek/llama-swap 0bdb3720, config.example.yaml, internal/config/macros.go, config.go:60-80).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memsheet.errors import input_error
from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_pods import starts_a_server, tree_of
from memsheet.guard.budget import Budget
from memsheet.patterns import late_pattern

DEEPEST = 4
"""Macros that stand in one another."""
MOST_MACROS, MOST_MODELS, MOST_NAMED = 64, 128, 8
MOST_COMMAND, MOST_EXPANDED = 2**14, 2**20
_MODELS = late_pattern(r"^[\"']?models[\"']?\s*:", re.MULTILINE)


def swapped_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The models' servers, in their order; none where the text is no configuration of llama-swap. Raises
    InputError for one that starts only other programs.
    """
    tree = tree_of(parse, name, text) if _MODELS.search(text) and "cmd" in text else None
    models = tree.get("models") if tree else None
    if tree is None or not isinstance(models, Mapping):
        return []
    budget = Budget(MOST_EXPANDED, "text of macros")
    commands = {
        str(at): _model_script(str(at), one, tree, budget)
        for at, one in list(models.items())[:MOST_MODELS]
        if isinstance(one, Mapping) and isinstance(one.get("cmd"), str)
    }
    known = {at: script for at, script in commands.items() if starts_a_server(script)}
    unread = [at for at in commands if at not in known]
    if commands and not known:
        raise input_error(
            "file",
            name,
            f"starts no server that is known, for {', '.join(unread[:MOST_NAMED])}",
            "the scripts that its commands run, one by one",
        )
    remarks = (
        (f"of {', '.join(unread[:MOST_NAMED])} no server is known, and nothing is read",) if unread else ()
    )
    beside = _kept_beside(tree)
    return [NamedServer(at, script, together=at in beside, remarks=remarks) for at, script in known.items()]


def _model_script(model: str, held: Mapping[str, Any], tree: Mapping[str, Any], budget: Budget) -> str:
    """A model's command as one line, with macros in their places: the model's own before those of all."""
    macros = {**_macros_of(tree), **_macros_of(held), "MODEL_ID": model}
    lines = str(held["cmd"])[:MOST_COMMAND].replace("\\\n", " ").splitlines()
    command = " ".join(line.strip() for line in lines if not line.strip().startswith("#"))
    return _with_macros(command, macros, budget)


def _macros_of(tree: Mapping[str, Any]) -> dict[str, str]:
    held = tree.get("macros")
    pairs = list(held.items())[:MOST_MACROS] if isinstance(held, Mapping) else []
    return {
        str(at): " ".join(str(value).split()) for at, value in pairs if isinstance(value, str | int | float)
    }


def _with_macros(command: str, macros: Mapping[str, str], budget: Budget) -> str:
    """A command with macros in their places. Raises TooMuchError where that grows too long."""
    for _ in range(DEEPEST):
        for at, value in macros.items():
            place = f"${{{at}}}"
            if place in command:
                budget.spend(len(command) + command.count(place) * len(value))
                command = command.replace(place, value)
    return command[:MOST_COMMAND]


def _kept_beside(tree: Mapping[str, Any]) -> frozenset[str]:
    """Models that may run beside others: all where a matrix says sets, or a group ends no others or is never
    ended; else those of groups that do not swap.
    """
    router = _mapping_at(tree, "routing", "router")
    settings = _mapping_at(router, "settings")
    groups = [
        one
        for held in (tree, settings)
        for one in _mapping_at(held, "groups").values()
        if isinstance(one, Mapping)
    ]
    of_sets = "matrix" in tree or router.get("use") == "matrix"
    if of_sets or any(one.get("persistent") or not one.get("exclusive", True) for one in groups):
        return frozenset(map(str, tree["models"]))
    return frozenset(at for one in groups if not one.get("swap", True) for at in _members_of(one))


def _members_of(group: Mapping[str, Any]) -> Iterable[str]:
    held = group.get("members")
    return map(str, held) if isinstance(held, list) else ()


def _mapping_at(tree: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    node: Any = tree
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}
