"""Values as they are written on a command line, read by the rules of their keys; what cannot be read stays
text and is refused there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from os import PathLike
from typing import Any

from memsheet.errors import Problem
from memsheet.guard import MAX_INT
from memsheet.patterns import late_pattern
from memsheet.plan.check import RULES

_WHOLE = late_pattern(r"[+-]?\d{1,18}")
_THOUSANDS = late_pattern(r"(\d{1,6})k", re.IGNORECASE)
TOKENS = frozenset({
    "seq_len", "serving.max_model_len", "serving.max_batched_tokens", "serving.prompt_tokens", "serving.output_tokens",
    "serving.shared_prefix_tokens",
})  # fmt: skip
"""Keys whose value may be said in thousands as lengths of contexts are: 128k is 131,072 tokens."""


def option_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Keywords of Python that cannot be looked at: numbers no arithmetic goes on with, more values than a
    plan has (what no file may hold, no keyword may either), and of the words that are none of a plan those of
    another type.
    """
    for name, value in options.items():
        kinds, words = KINDS.get(name, ((), ""))
        wrong = kinds and value is not None and (isinstance(value, bool) or not isinstance(value, kinds))
        if reason := words if wrong else _out_of_bounds(value):
            yield Problem(field=name, value=value, reason=reason)


def _out_of_bounds(value: Any) -> str:
    waiting, seen = [value], 0
    while waiting:
        held, seen = waiting.pop(), seen + 1
        if seen > MOST_HELD:
            return f"holds more than {MOST_HELD:,} values"
        if isinstance(held, Mapping):
            waiting += [*held, *held.values()]
        elif isinstance(held, list | tuple):
            waiting += held
        elif isinstance(held, int) and abs(held) > MAX_INT:
            return "is outside ±2^63"
        elif isinstance(held, float) and not isfinite(held):
            return "is not a finite number"
    return ""


MOST_HELD = 100_000
"""Of one option, a whole plan among them: of 10,000 layers there is a handful of values each."""
_DOCUMENT = (str, PathLike, Mapping), "is neither a file nor an object"
_WHOLE_NUMBER = (int,), "is not a whole number"
KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "plan": _DOCUMENT, "cluster": _DOCUMENT, "nodes": _WHOLE_NUMBER, "per_node": _WHOLE_NUMBER, "most": _WHOLE_NUMBER, "top": _WHOLE_NUMBER,
}  # fmt: skip
"""Of words that are no keys of a plan: the types that they may be of, and what is said of others."""


def value_of(key: str, text: Any) -> Any:
    """``text`` as the rule of ``key`` wants it, or as it is."""
    if not isinstance(text, str) or key not in RULES:
        return text
    match RULES[key].kind:
        case "count":
            return parse_token_count(text) if key in TOKENS else parse_whole_number(text)
        case "share" | "number":
            return _parse_share(text)
        case "counts":
            return [parse_whole_number(part) for part in text.split(",")]
        case "texts":
            return [part.strip() for part in text.split(",") if part.strip()]
        case _:
            return text


def parse_token_count(text: str) -> int | str:
    """``text`` as a number of tokens: 8192, or 8k, which is 8 times 1,024."""
    found = _THOUSANDS.fullmatch(text.strip())
    return int(found[1]) * 1024 if found else parse_whole_number(text)


def number_in_thousands(key: str, text: Any) -> bool:
    return key in TOKENS and isinstance(text, str) and bool(_THOUSANDS.fullmatch(text.strip()))


def parse_whole_number(text: str) -> int | str:
    """``text`` as a whole number if it is one."""
    return int(text.strip()) if _WHOLE.fullmatch(text.strip()) else text


def _parse_share(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
