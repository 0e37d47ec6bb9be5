"""Values as they are written on a command line, read by the rules of their keys; what cannot be read stays text and is refused there."""

from __future__ import annotations

import re
from typing import Any

from memsheet.spec.check import RULES

_WHOLE = re.compile(r"[+-]?\d{1,18}")
_THOUSANDS = re.compile(r"(\d{1,6})k", re.IGNORECASE)
TOKENS = frozenset({
    "seq_len", "serving.max_model_len", "serving.max_batched_tokens", "serving.prompt_tokens", "serving.output_tokens",
    "serving.shared_prefix_tokens",
})  # fmt: skip
"""Keys whose value may be said in thousands as lengths of contexts are: 128k is 131,072 tokens."""


def value_of(key: str, text: Any) -> Any:
    """``text`` as the rule of ``key`` wants it, or as it is."""
    if not isinstance(text, str) or key not in RULES:
        return text
    match RULES[key].kind:
        case "count":
            return tokens(text) if key in TOKENS else whole(text)
        case "share" | "number":
            return _share(text)
        case "counts":
            return [whole(part) for part in text.split(",")]
        case "texts":
            return [part.strip() for part in text.split(",") if part.strip()]
        case _:
            return text


def tokens(text: str) -> int | str:
    """``text`` as a number of tokens: 8192, or 8k, which is 8 times 1,024."""
    found = _THOUSANDS.fullmatch(text.strip())
    return int(found[1]) * 1024 if found else whole(text)


def said_in_thousands(key: str, text: Any) -> bool:
    return key in TOKENS and isinstance(text, str) and bool(_THOUSANDS.fullmatch(text.strip()))


def whole(text: str) -> int | str:
    """``text`` as a whole number if it is one."""
    return int(text) if _WHOLE.fullmatch(text.strip()) else text


def _share(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
