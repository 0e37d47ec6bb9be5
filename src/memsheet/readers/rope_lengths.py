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


LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta", "local_base_freq")
APART = ("gemma3", "gemma3_text", "gemma3n", "gemma3n_text")
"""Keys that name a base of windows' own, and types whose configs have one where none is named
(Gemma3TextConfig, Gemma3nTextConfig: 10,000 beside 1,000,000).
"""


def windows_rotate_apart(config: Mapping[str, Any]) -> bool:
    """Whether layers with a window turn by other angles than the layers without one."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    kinds = text.get("rope_parameters")
    if isinstance(kinds, Mapping) and isinstance(kinds.get("sliding_attention"), Mapping):
        return bool(kinds["sliding_attention"] != kinds.get("full_attention"))
    named = [text[key] for key in LOCAL_BASES if text.get(key) is not None]
    return any(base != text.get("rope_theta") for base in named) or (
        not named and text.get("model_type") in APART
    )


def _positive_number_or_zero(value: Any) -> float:
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if usable and isfinite(value) and 0 < value <= MOST else 0.0
