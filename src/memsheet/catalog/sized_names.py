"""The size that a model's name says, and the plain model of the catalogue that is nearest to it: what stands
in for a model of which nothing else is known.
"""

from __future__ import annotations

import math
import re

from memsheet.frozen import dataclass, replace
from memsheet.patterns import late_pattern

SIZE = late_pattern(r"(?<![a-z0-9.])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,3})?)(b|m)(?![a-z0-9])", re.IGNORECASE)
ACTIVE = late_pattern(r"(?<![a-z0-9])a(\d{1,3}(?:\.\d{1,2})?)b(?![a-z0-9])", re.IGNORECASE)
EXPERTS = late_pattern(r"(?<![a-z0-9])\d{1,3}e(?![a-z0-9])", re.IGNORECASE)
"""Of names that say what a token passes and how many experts there are (17B-16E), and no sum."""
POINT = late_pattern(r"(?<=-)([01])_(?=\d{1,2}b(?![a-z0-9]))", re.IGNORECASE)
"""A point of a size in a name that has hyphens between its words (Qwen-1_8B-Chat)."""
BILLION = {"b": 1.0, "m": 1e-3}
DENSE = {
    "smollm2-135m": 0.135, "smollm2-360m": 0.362, "llama-3.2-1b": 1.24, "llama-3.2-3b": 3.21, "llama-3.1-8b": 8.03, "qwen2.5-14b": 14.8,
    "qwen2.5-32b": 32.8, "llama-3-70b": 70.6, "mistral-large-2407": 122.6, "llama-3.1-405b": 405.9,
}  # fmt: skip
ROUTED = {
    "olmoe-1b-7b": (6.92, 1.28, 64), "qwen3-30b-a3b": (30.5, 3.35, 128), "mixtral-8x7b": (46.7, 12.9, 8), "mixtral-8x22b": (140.6, 39.2, 8),
    "qwen3-235b-a22b": (235.1, 22.2, 128), "deepseek-v3": (671.0, 37.6, 256),
}  # fmt: skip
"""Billions of parameters of models whose layers every engine has, and of those with experts how many a token
passes, and the experts of a layer.
"""


@dataclass(frozen=True, slots=True)
class NamedSize:
    """Billions of parameters as a name says them; ``least``: what is still written so when rounded;
    ``active``: those that a token passes, where it says that too.
    """

    billions: float
    least: float
    active: float | None = None


def size_in_name(name: str) -> NamedSize | None:
    """The size that the last part of a name says, else the nearest part before it; None where none does."""
    for part in reversed(name.strip("/").split("/")):
        if EXPERTS.search(part):
            return None
        words = part if part.count("_") > 1 else POINT.sub(r"\1.", part)
        if found := SIZE.search(words.replace("_", "-")):
            return _named_size(found, ACTIVE.search(part))
    return None


def size_of_parameters(count: int, named: NamedSize | None) -> NamedSize:
    """The size of so many parameters, with what a name says besides."""
    billions = count / 1e9
    return replace(named, billions=billions) if named else NamedSize(billions, billions)


def _named_size(found: re.Match[str], active: re.Match[str] | None) -> NamedSize:
    each, unit = float(found[2]), BILLION[found[3].lower()]
    decimals = len(found[2].partition(".")[2])
    experts = int(found[1] or 1)
    least = max(each - 0.5 * 10**-decimals, each / 2)
    if experts > 1:  # which share attention and the tables: no less than one of them
        return NamedSize(experts * each * unit, each * unit, 2 * each * unit)
    return NamedSize(each * unit, least * unit, float(active[1]) if active else None)


def nearest_plain_model(size: NamedSize, expert_ranks: int | None = None) -> str:
    """The plain model whose number of parameters is nearest, by the factor between them. ``expert_ranks``:
    of a model that is known to have experts, among how many ranks they are dealt.
    """
    if size.active is None and expert_ranks is None:
        return min(DENSE, key=lambda name: _factor(DENSE[name], size.billions))
    dealt = {name: held for name, held in ROUTED.items() if held[2] % (expert_ranks or 1) == 0} or ROUTED
    active = size.active
    return min(
        dealt,
        key=lambda name: (
            _factor(dealt[name][0], size.billions)
            + (_factor(dealt[name][1], active) if active is not None else 0.0)
        ),
    )


def _factor(one: float, other: float) -> float:
    return abs(math.log(one / other))
