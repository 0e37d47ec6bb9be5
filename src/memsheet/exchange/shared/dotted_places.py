"""Objects in one another as dotted places, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Values


def nest_dotted_keys(values: Values) -> dict[str, Any]:
    """Dotted places as objects in one another."""
    tree: dict[str, Any] = {}
    for at, value in values.items():
        *path, last = at.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return tree


def flatten_tree(
    tree: Mapping[str, Any], before: str = "", whole: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """Dotted places of everything that is no object; an empty object is a place of its own, as those of
    ``whole`` are.
    """
    for key, value in tree.items():
        at = f"{before}{key}"
        if isinstance(value, Mapping) and value and at not in whole:
            yield from flatten_tree(value, f"{at}.", whole)
        else:
            yield at, value
