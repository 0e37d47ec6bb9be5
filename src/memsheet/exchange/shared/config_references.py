"""Names of other keys in their places, as OmegaConf puts them there: ``${model.length}``, and ``${.length}``
beside it; and sums of them by the resolvers that a program adds (``${mul:${a},2}``). What calls another
resolver or stands inside of a text is left as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from memsheet.patterns import late_pattern

REFERENCE = late_pattern(r"\$\{(\.?)([\w.]{1,100})\}")
CALLED = late_pattern(
    r"\$\{(add|mul|div|max):\s*([^{},]{1,100}|\$\{[\w.]{1,100}\}),\s*([^{},]{1,100}|\$\{[\w.]{1,100}\})\}"
)
SUMS: Mapping[str, Callable[[float, float], float]] = {
    "add": operator.add, "mul": operator.mul, "div": operator.truediv, "max": max,
}  # fmt: skip
"""NeMo-RL's resolvers of two numbers (NVIDIA-NeMo/RL 7ea279a nemo_rl/utils/config.py:196-204)."""
DEEPEST, MOST = 8, 2**53


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
    called = CALLED.fullmatch(held) if isinstance(held, str) else None
    if called is not None:
        parts = [
            _number_of(_resolved_value(part.strip(), tree, group, depth + 1)) for part in called.groups()[1:]
        ]
        return _summed_up(called[1], parts, held)
    named = REFERENCE.fullmatch(held) if isinstance(held, str) else None
    if named is None:
        return held
    found: Any = group if named[1] else tree
    for part in named[2].split("."):
        group, found = found, found.get(part) if isinstance(found, Mapping) else None
    kept = found is None or isinstance(found, Mapping | list)
    return held if kept else _resolved_value(found, tree, group, depth + 1)


ENVIRONMENT = late_pattern(r"\$\{oc\.env:\s*(\w{1,100})\s*,\s*([^{}]{1,400}?)\s*\}")
"""A variable of the environment with what stands for it where nobody sets it (omry/omegaconf 2.3.0
omegaconf/resolvers/oc/__init__.py, env).
"""


def with_environment_defaults(held: Any) -> Any:
    """A tree with the defaults that it says itself of variables of the environment, each a whole value."""
    if isinstance(held, Mapping):
        return {at: with_environment_defaults(one) for at, one in held.items()}
    if isinstance(held, list):
        return [with_environment_defaults(one) for one in held]
    named = ENVIRONMENT.fullmatch(held) if isinstance(held, str) else None
    if named is None:
        return held
    number = _number_of(named[2])
    return number if number is not None else named[2].strip("'\"")


def environment_remarks(text: str) -> tuple[str, ...]:
    """Which defaults of variables of the environment a text takes, in words."""
    found = dict.fromkeys(named.groups() for named in ENVIRONMENT.finditer(text))
    return tuple(f"{name} = {usual}: what the file says where nobody sets it" for name, usual in found)


def _number_of(held: Any) -> float | None:
    """A number, or the one that a text is; nothing for anything else."""
    if isinstance(held, str):
        try:
            held = float(held) if "." in held else int(held)
        except ValueError:
            return None
    return held if isinstance(held, int | float) and not isinstance(held, bool) and abs(held) < MOST else None


def _summed_up(how: str, parts: list[float | None], text: str) -> Any:
    first, second = parts
    if first is None or second is None or (how == "div" and second == 0):
        return text
    return SUMS[how](first, second)
