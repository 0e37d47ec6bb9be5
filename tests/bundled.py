"""Which bundled models a test goes over."""

from __future__ import annotations

from memsheet.catalog import find_model, model_names
from memsheet.readers.registry import FAMILIES


def bundled_family(name: str) -> str:
    """The ``model_type`` of a bundled model."""
    entry = find_model(name)
    assert entry is not None
    return str(entry["config"]["model_type"])


def written_names() -> tuple[str, ...]:
    """The bundled models whose family's layers are written down. The others are put on record when somebody
    asks, which a test over the whole catalogue has no time for.
    """
    return tuple(name for name in model_names() if bundled_family(name) in FAMILIES)
