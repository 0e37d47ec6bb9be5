"""Flags by the start of their names, as argparse takes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping


def whole_names(names: Collection[str], aliases: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """A flag by its whole name: of a start that only one name has, that one (CPython 3.11 argparse.py:2287,
    _get_option_tuples). ``aliases``: further names of flags, whose starts count, too.
    """
    others = aliases or {}

    def whole(at: str) -> str:
        if at in names or not at.startswith("--") or "." in at:  # keys inside a flag's value stand whole
            return at
        found = [name for name in (*names, *others) if name.startswith(at)]
        return others.get(found[0], found[0]) if len(found) == 1 else at

    return whole
