"""Recipes that are a server's command with places, and the values that fill them: ``command: vllm serve … -tp
{tensor_parallel}`` beside ``defaults: {tensor_parallel: 2}`` (eugr/spark-vllm-docker 25072725,
run-recipe.py:394-510: Python's own format, and the environment before the command).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_pods import scalar_list, starts_a_server, tree_of
from memsheet.patterns import late_pattern

MOST_COMMAND, MOST_VALUE, MOST_VARIABLES = 2**14, 256, 64
"""Characters of a command and of a value in it, and variables of an environment, that are read."""
CHANGES = "mods"
"""Scripts that change the server's own code before it starts (launch-cluster.sh there)."""
_MARKS = late_pattern(r"^command:", re.MULTILINE), late_pattern(r"^defaults:", re.MULTILINE)
_PLACE = late_pattern(r"\{\{|\}\}|\{([A-Za-z_]\w{0,63})\}")
_LITERAL = {"{{": "{", "}}": "}"}


def template_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The server of a recipe's command with its own defaults in their places; none of texts of other kinds. A
    place without a default stays open, as a variable that nobody set.
    """
    tree = tree_of(parse, name, text) if all(mark.search(text) for mark in _MARKS) else None
    command, defaults = (tree.get("command"), tree.get("defaults")) if tree else (None, None)
    if tree is None or not isinstance(command, str) or not isinstance(defaults, Mapping):
        return []
    if not _PLACE.search(command) or not starts_a_server(command):
        return []
    script = "\n".join([*_exports(tree), _filled_command(command, defaults)])
    changes = ", ".join(map(str, scalar_list(tree.get(CHANGES))))[:MOST_VALUE]
    return [NamedServer("command", script, left_out=((CHANGES, changes),) if changes else ())]


def _filled_command(command: str, defaults: Mapping[str, Any]) -> str:
    def value_at(found: re.Match[str]) -> str:
        place = found[1]
        if place is None:
            return _LITERAL[found[0]]
        value = defaults.get(place)
        return str(value)[:MOST_VALUE] if isinstance(value, str | int | float) else f"${{{place}}}"

    return _PLACE.sub(value_at, command[:MOST_COMMAND])


def _exports(tree: Mapping[str, Any]) -> list[str]:
    held = tree.get("env")
    pairs = list(held.items())[:MOST_VARIABLES] if isinstance(held, Mapping) else []
    return [f"export {at}={shlex.quote(str(value))}" for at, value in pairs if str(at).isidentifier()]
