"""Configurations that a server's command lays over the model's, where they change rotary positions alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Values

ROTARY = frozenset({"rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings"})
"""Keys by which a model turns its queries and keys, and how far: no byte where the length is said. The table
of angles is as long as the positions (vllm-project/vllm v0.33.0
model_executor/layers/rotary_embedding/base.py).
"""
MOST_TEXT = 1 << 16


def rotary_place(flag: str) -> str:
    """Where an object stands that holds nothing but those keys."""
    return f"{flag}.rotary"


def with_rotary_overrides(values: Values, flag: str, length: str) -> Mapping[str, Any]:
    """A command's values with an object that holds nothing but those keys in a place of its own, where the
    command says how long a sequence may be; else as they are.
    """
    if length not in values or not _is_rotary(values.get(flag)):
        return values
    return {rotary_place(flag) if at == flag else at: held for at, held in values.items()}


def _is_rotary(text: Any) -> bool:
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        return False
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(held, dict) and bool(held) and ROTARY.issuperset(held)
