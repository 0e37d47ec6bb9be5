"""Servers whose whole command is a value of somebody's own YAML or JSON, whatever its key is called: values
of a chart of one's own (``cli: vllm serve …``), lists of presets. What starts it is not known; the command
is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.generation_settings import TRAINS
from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.own_settings import leaves_of
from memsheet.exchange.shared.serve_pods import command_line, scalar_list, starts_a_server, tree_of
from memsheet.patterns import late_pattern

ENDINGS = (".yaml", ".yml", ".json")
OTHERS = frozenset({"apiVersion", "kind", "services", "servingEngineSpec", "jobs", "on", "run", "cells"})
"""Keys at the top of files that are of other kinds."""
DEEPEST, MOST_TEXT = 6, 2**14
TOLD = late_pattern(
    r"(?i)^_?(?:desc\w*|notes?|comments?|help|readme|docs?|documentation|examples?|usage|title|hints?"
    r"|prompt\w*|text|message\w*|content|instruction\w*|output|input|log\w*)$"
)
"""Keys of prose, in which a command is told and not given."""
STARTS, GIVEN = ("entrypoint", "cmd", "command"), "args"
"""Keys of words that start a program, in the order in which they are joined, and of those behind them."""


def text_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The servers that values of a file start, each once and by the place it stands at; none of a file that
    trains, or of other kinds.
    """
    tree = tree_of(parse, name, text) if name.endswith(ENDINGS) else None
    if tree is None or OTHERS & tree.keys() or not TRAINS.isdisjoint(leaf.key for leaf in leaves_of(tree)):
        return []
    found = dict[str, NamedServer]()
    for at, line in _command_texts(tree, "", DEEPEST):
        told = (f"the server = what {at} starts",)
        found.setdefault(line, NamedServer(at, line, together=True, remarks=told))
    return list(found.values())


def _command_texts(held: Any, at: str, depth: int) -> Iterator[tuple[str, str]]:
    """Values that start a server, as a shell's lines, by their places."""
    if isinstance(held, str):
        if " " in held and len(held) <= MOST_TEXT and starts_a_server(held):
            yield at or "command", held
    elif isinstance(held, Mapping) and depth:
        start = [word for key in STARTS for word in scalar_list(held.get(key))]
        given = scalar_list(held.get(GIVEN))
        line = command_line({**held, "command": start, "args": given}) if start or given else ""
        if line and starts_a_server(line):
            yield at or "command", line
            return
        for key, inner in held.items():
            if not TOLD.match(str(key)):
                yield from _command_texts(inner, f"{at}.{key}" if at else str(key), depth - 1)
    elif isinstance(held, list) and depth:
        for number, inner in enumerate(held[:MOST_TEXT]):
            named = inner.get("name") if isinstance(inner, Mapping) else None
            yield from _command_texts(inner, f"{at}.{named or number}", depth - 1)
