"""How long sequences may be where a config scales its rotary positions, beyond those that the model was made
for.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

WITHIN = ("gemma3",)
"""Families whose positions are already those that the scaling gives (``READ_IN``)."""
SCALED = ("linear", "dynamic")
MOST = 2**26


def scaled_positions(config: Mapping[str, Any], positions: int | None) -> int | None:
    """Positions that a server derives from a config's rope_scaling: YaRN's original ones times its factor,
    others' own times it; None where it has no more than ``positions``. Scalings that say their length
    themselves (llama3, longrope) add nothing (``READ_IN``).
    """
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    rope = text.get("rope_scaling") or text.get("rope_parameters")
    if (
        positions is None
        or not isinstance(rope, Mapping)
        or any(str(text.get("model_type")).startswith(name) for name in WITHIN)
    ):
        return None
    kind, factor = rope.get("rope_type") or rope.get("type"), _positive_number_or_zero(rope.get("factor"))
    original = _positive_number_or_zero(rope.get("original_max_position_embeddings"))
    base = original or positions if kind == "yarn" else positions if kind in SCALED else 0
    found = int(min(MOST, base * factor))
    return found if found > positions else None


def _positive_number_or_zero(value: Any) -> float:
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if usable and isfinite(value) and 0 < value <= MOST else 0.0
