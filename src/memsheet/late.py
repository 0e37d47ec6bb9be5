"""Functions whose modules are loaded when they are first called: a question goes one of many ways, and a
start would load them all. What ``lazy from`` is to be in Python itself (PEP 810)::

    with late_functions(__name__):
        from memsheet.formulas.somewhere import rare_case

What stands inside is functions and nothing else: they are called, not compared and not looked into.
"""

from __future__ import annotations

import builtins
from _thread import allocate_lock  # as threading has it, without the rest of it
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

__all__ = ["late_functions"]

_lock = allocate_lock()
_homes: set[str] = set()
"""Modules whose imports are late at the moment."""
_usual_import = builtins.__import__
"""What imported before the first of them: somebody else's, too, who has put it there, and gets it back."""


@contextmanager
def late_functions(home: str) -> Iterator[None]:
    """Where the module ``home`` says ``from … import …`` inside, what it gets are functions that load the
    module when they are called.
    """
    global _usual_import  # noqa: PLW0603 - one value, put back where it was
    with _lock:
        if not _homes:
            _usual_import = builtins.__import__
        _homes.add(home)
        builtins.__import__ = _import_late
    try:
        yield
    finally:
        with _lock:
            _homes.discard(home)
            if not _homes:
                builtins.__import__ = _usual_import


def _import_late(
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002 - as Python calls them
    locals: Mapping[str, Any] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """As ``builtins.__import__`` for whoever is not inside."""
    if globals is None or globals.get("__name__") not in _homes or not fromlist:
        return _usual_import(name, globals, locals, fromlist or (), level)
    return _LateModule(name, globals)


class _LateModule:
    """A module of which functions are named, for the module whose names ``home`` are."""

    def __init__(self, name: str, home: Any) -> None:
        self._late = name, home

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _late_function(*self._late, name)


def _late_function(module: str, home: dict[str, Any], name: str) -> Callable[..., Any]:
    found: Callable[..., Any] | None = None

    def call(*given: Any, **named: Any) -> Any:
        nonlocal found
        if found is None:
            found = getattr(import_module(module), name)
            for word, held in [*home.items()]:
                if held is call:
                    home[word] = found  # asked for without this from now on
        return found(*given, **named)

    return call
