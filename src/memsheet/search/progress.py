"""How far a search is: told to whoever listens while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Listener = Callable[[Mapping[str, Any]], None]
_listening: ContextVar[Listener | None] = ContextVar("listening", default=None)


@contextmanager
def listen_to_search(listener: Listener) -> Iterator[None]:
    """``listener`` gets what is told of any search inside: ``engine``, ``plans`` that were weighed, how many
    ``fit``, and of the fastest of these ``step_seconds`` and ``device_bytes``.
    """
    token = _listening.set(listener)
    try:
        yield
    finally:
        _listening.reset(token)


def tell_progress(facts: Callable[[], Mapping[str, Any]]) -> None:
    """``facts`` to whoever listens; they are not made for nobody."""
    if listener := _listening.get():
        listener(facts())
