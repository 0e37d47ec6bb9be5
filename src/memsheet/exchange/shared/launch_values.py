"""Switches and counts of a launch's values, as formats of several models read them."""

from __future__ import annotations

from memsheet.exchange.shared.file_format import Values


def is_switched_on(values: Values, at: str) -> bool:
    """A switch, which is off where nobody says it (argparse, store_true)."""
    return values.get(at) is True


def least_one(values: Values, at: str, usual: int | None) -> int | None:
    """A count of at least one, as it is said or taken; nothing where a variable or anything else stands."""
    found = values.get(at, usual)
    return found if type(found) is int and found > 0 else None
