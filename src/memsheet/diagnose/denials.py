"""What people say that it was not: words that stand in a clause behind "not", "never", "nobody", or before
"never happened".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from memsheet.patterns import late_pattern

_BEFORE = late_pattern(
    r"(?:\b(?:not|never|no|nobody|none|neither|nor|without|cannot|isn'?t|wasn'?t|aren'?t|doesn'?t|didn'?t|don'?t|won'?t|hasn'?t|rules? out|ruled out|instead of|rather than"
    r"|nicht|kein\w{0,2}|ohne|nie|pas|aucun\w?|jamais|sans|nunca|sin|ning[uú]n\w?|não|nenhum\w?|sem|non|senza|mai|нет|без|никогда|değil|không|nie ma|brak)(?![\w'-])|не(?= )|不是|没有?|無|并非|ではな)"
    r"(?:(?!\b(?:but|only|just|yet|enough|room|memory|because|so|and|then|aber|sondern|mais|pero|mas|ma|но|а)\b)[^.;:!?\n,，。]){0,40}$",
    re.IGNORECASE,
)  # fmt: skip
_BEHIND = late_pattern(
    r"[^.;:!?\n,，。]{0,16}?(?:\b(?:never|(?:did|does|was|is|has) ?n(?:o|')t (?:happen\w*|occur\w*|involv\w*|the (?:case|cause|problem|reason|culprit)|an? (?:issue|problem|leak)|used|running|it|what)|not (?:happen\w*|the (?:cause|problem|case|reason)|involved))\b|ではな|じゃな|アリマセン)",
    re.IGNORECASE,
)  # fmt: skip
FAR = 64
"""Letters before and behind words that are looked at."""


def is_denied(text: str, start: int, end: int) -> bool:
    """Whether what stands from ``start`` to ``end`` is said not to be so."""
    before = text[max(0, start - FAR) : start].rpartition("\n")[2]
    behind = text[end : end + FAR].partition("\n")[0]
    return bool(_BEFORE.search(before) or _BEHIND.match(behind))


def said_of(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The first place of a pattern that is not denied."""
    return next(
        (each for each in pattern.finditer(text) if not is_denied(text, each.start(), each.end())), None
    )


def all_denied(words: Iterable[re.Match[str]], text: str) -> bool:
    """Whether there are places and each is denied."""
    found = list(words)
    return bool(found) and all(is_denied(text, each.start(), each.end()) for each in found)
