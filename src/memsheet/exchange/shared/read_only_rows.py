"""Rows of places that are read and never written, and what they share: counts, and switches of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Key, Values

Back = Callable[[Any, Values], Mapping[str, Any]]


def read_only_row(at: str, back: Back, source: str, usual: Any = None) -> Key:
    """A place that is read and never written. ``usual``: what the program takes where nothing is said."""
    return Key(at=at, out=lambda _: None, back=back, usual=usual, source=source)


def plan_key_row(at: str, key: str, source: str, usual: Any = None) -> Key:
    """A place whose value is a plan's, as it stands."""
    return read_only_row(at, lambda value, _: {key: value}, source, usual)


def read_elsewhere(*_: Any) -> Mapping[str, Any]:
    """Of a place that another row reads along with its own."""
    return {}


def positive_count(value: Any) -> int | None:
    """A count of at least one; nothing for anything else, a switch among it."""
    return value if type(value) is int and value > 0 else None
