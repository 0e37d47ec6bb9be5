"""Anchors of YAML where a file may have them: as many values as the text has once it is written out, and what
its merge keys come to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from memsheet.errors import input_error
from memsheet.guard.spending import spend_values

MERGE = "<<"


def check_written_out(node: Any, field: str, most_values: int, most_levels: int) -> None:
    """Refuse a tree of nodes that would hold too much with a copy of the anchor's in place of each alias, or
    one that holds itself. Each node is looked at once.
    """
    known: dict[int, tuple[int, int] | None] = {}

    def refuse(reason: str) -> NoReturn:
        raise input_error(field, None, f"{reason} with its aliases written out")

    def size_of(one: Any, level: int) -> tuple[int, int]:
        held = known.get(id(one), (0, 0))
        if held is None or level > most_levels:
            refuse(f"is nested deeper than {most_levels} levels")
        if id(one) not in known:
            known[id(one)] = None
            inner = [size_of(part, level + 1) for part in _parts_of(one)]
            held = 1 + sum(values for values, _ in inner), 1 + max((deep for _, deep in inner), default=0)
            known[id(one)] = held
        if held[0] > most_values:
            refuse(f"holds more than {most_values} values")
        if level + held[1] > most_levels + 2:
            refuse(f"is nested deeper than {most_levels} levels")
        return held

    spend_values(field, size_of(node, 0)[0])


def _parts_of(node: Any) -> list[Any]:
    """Nodes inside one: elements of a list, keys and values of a mapping."""
    held = node.value if isinstance(node.value, list) else []
    return [part for one in held for part in (one if isinstance(one, tuple) else (one,))]


def with_merges(found: dict[Any, Any], field: str) -> dict[Any, Any]:
    """An object with what it merges under its own keys; of several merged ones the first says it
    (yaml.org/type/merge).
    """
    if MERGE not in found:
        return found
    held = found[MERGE]
    several = held if isinstance(held, list) else [held]
    merged: dict[Any, Any] = {}
    for one in reversed(several):
        if not isinstance(one, Mapping):
            raise input_error(field, MERGE, "merges what is no mapping")
        merged |= one
    return merged | {key: value for key, value in found.items() if key != MERGE}
