"""One file an engine: what it keeps for backward, its dtypes, buffers and defaults, each fact with its source."""

from __future__ import annotations

from importlib import import_module

from memsheet.spec.engine import Engine

MODELLED = ("transformers", "fsdp2", "deepspeed")
"""Engines whose memory is accounted so far; the vocabulary of plans knows more and they are refused by name."""


def find_engine(name: str) -> Engine | None:
    """The engine of that name, or None while it is not modelled."""
    if name not in MODELLED:
        return None
    engine: Engine = import_module(f"memsheet.engines.{name}").ENGINE
    return engine
