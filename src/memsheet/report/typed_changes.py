"""What to type to get a change: flags to add, and in place of which that are on the line already, by whatever name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memsheet.errors import printable
from memsheet.report.words import flags_for
from memsheet.spec.names import SHORT

Option = tuple[str, Any, Mapping[str, Any]]
"""An option as it is typed, its value, and the keys that it comes to."""
COUNTED = {"@accumulation": "global_batch", "@replicas": "gpus"}
"""What another number of a step or of GPUs contradicts."""
SHORT_KEYS = frozenset(SHORT.values())


def change_line(changes: Mapping[str, Any], typed: Sequence[Option]) -> str:
    """``add`` and the flags of some changes, or ``replace`` those that say something else of the same keys ``by`` them, with what else those said."""
    replaced = [option for option in typed if _keys(option) & changes.keys()]
    kept = {key: value for _, _, keys in replaced for key, value in keys.items() if key in SHORT_KEYS or key.startswith("offload.")}
    flags = flags_for({**{key: value for key, value in kept.items() if key not in changes}, **changes})
    return f"replace  {' '.join(map(_as_typed, replaced))} by {flags}" if replaced else f"add  {flags}"


def _keys(option: Option) -> set[str]:
    _, _, keys = option
    return {COUNTED.get(key, key.removeprefix("?")) for key in keys}


def _as_typed(option: Option) -> str:
    name, value, _ = option
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {printable(','.join(map(str, value)) if isinstance(value, list | tuple) else value)}"
