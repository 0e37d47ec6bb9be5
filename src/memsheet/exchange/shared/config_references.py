"""Names of other keys in their places, as OmegaConf puts them there: ``${model.length}``, and ``${.length}``
beside it. What calls a resolver (``${multiply:…}``) or stands inside of a text is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REFERENCE = re.compile(r"\$\{(\.?)([\w.]{1,100})\}")
DEEPEST = 8


def with_references(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree with what its values name in their places; a name of nothing, or of a group, stays."""
    return {str(at): _resolved_value(held, tree, tree, 0) for at, held in tree.items()}


def _resolved_value(held: Any, tree: Mapping[str, Any], group: Mapping[str, Any], depth: int) -> Any:
    if depth > DEEPEST:
        return held
    if isinstance(held, Mapping):
        return {str(at): _resolved_value(one, tree, held, depth + 1) for at, one in held.items()}
    if isinstance(held, list):
        return [_resolved_value(one, tree, group, depth + 1) for one in held]
    named = REFERENCE.fullmatch(held) if isinstance(held, str) else None
    if named is None:
        return held
    found: Any = group if named[1] else tree
    for part in named[2].split("."):
        group, found = found, found.get(part) if isinstance(found, Mapping) else None
    kept = found is None or isinstance(found, Mapping | list)
    return held if kept else _resolved_value(found, tree, group, depth + 1)
