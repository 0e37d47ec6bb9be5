"""Rules of llama.cpp that say where tensors lie (``-ot PATTERN=BUFFER,…``): which are read, and what they say
of a tensor by its name in a GGUF file.
"""

from __future__ import annotations

import re

from memsheet.patterns import late_pattern

LONGEST, WILD_CARDS = 1000, 3
"""Characters of rules that are read together, as of any text of a plan, and wild cards of a pattern."""
_PLAIN = late_pattern(
    r"(?:[\w.|^$-]|\\[.d_]|\\d[+*?]|\[\^?[\w-]+\][+*?]?|\.[*+?]|[\w-]\?|\[[\w-]+\]\{\d(?:,\d)?\}"
    r"|\((?:\?:)?|\)\??(?![*+{]))+"
)
"""Patterns without a repeated group or a wild card within one: tried in a time that their length bounds."""
_WILD = late_pattern(r"[*+]")
_BUFFER = late_pattern(r"CPU|CUDA(\d{1,2})")
CPU = -1

Rules = tuple[tuple[str, int], ...]


def tensor_rules(text: str) -> Rules | None:
    """Patterns with the device whose buffer they name, ``CPU`` for the host's; None of a text with a rule
    that is not read. Source: ggml-org/llama.cpp common/arg.cpp, parse_tensor_buffer_overrides: rules
    between commas, the pattern before the first "=", then the name of a device's own type of buffer.
    """
    found = list[tuple[str, int]]()
    if len(text) > LONGEST:
        return None
    for rule in text.split(","):
        pattern, _, buffer = rule.partition("=")
        named = _BUFFER.fullmatch(buffer)
        if named is None or not _is_tried(pattern):
            return None
        found.append((pattern, CPU if named[1] is None else int(named[1])))
    return tuple(found)


def ruled_device(rules: Rules, name: str) -> int | None:
    """The device of the first rule whose pattern is found in a tensor's name; None where none is
    (src/llama-model-loader.cpp create_tensor, std::regex_search).
    """
    return next((device for pattern, device in rules if re.search(pattern, name)), None)


def _is_tried(pattern: str) -> bool:
    if not _PLAIN.fullmatch(pattern) or len(_WILD.findall(pattern)) > WILD_CARDS:
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
