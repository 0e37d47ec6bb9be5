"""What a flag replaces of a file beside what it names: a named precision all dtypes, a way to recompute the
details of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.plan.engine_registry import find_engine


def without_overridden(document: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A document's keys without those that ``given``, said over them, leaves without a meaning."""
    gone: tuple[str, ...] = ("precision.",) if given.get("precision.name") is not None else ()
    mode = requested_recompute(given)
    if mode is not None and requested_recompute(document) not in (None, mode):
        gone += ("recompute.",)
    optimizer = given.get("optimizer.name")
    if optimizer is not None and document.get("optimizer.name", optimizer) != optimizer:
        gone += ("optimizer.implementation",)  # one of the other optimizer's
    return {key: value for key, value in document.items() if not key.startswith(gone or ("\0",))}


def with_attention_of_engine(edits: Mapping[str, Any], request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Edits to another engine with its own attention where it has not the one that is asked for."""
    asked, engine = request.get("attention"), find_engine(str(edits.get("engine", "")))
    if engine is None or asked is None or any(kind.value == asked for kind in engine.attention):
        return edits
    return {**edits, "attention": engine.attention[0].value}


def requested_recompute(request: Mapping[str, Any]) -> str | None:
    """The mode of recompute that a request names, or that modules or whole layers alone ask for."""
    mode: str | None = request.get("recompute.mode")
    return mode or ("selective" if request.get("recompute.modules") else None)
