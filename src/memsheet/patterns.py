"""Regular expressions that are compiled when they are first used: readers of files have hundreds of them, and
one file meets a few.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def late_pattern(pattern: str, flags: int = 0, *, holds: tuple[str, ...] = ()) -> re.Pattern[str]: ...
else:

    def late_pattern(pattern: str, flags: int = 0, *, holds: tuple[str, ...] = ()) -> LatePattern:
        """As ``re.compile``, whose methods what is returned has. ``holds``: every text that matches has one
        of these in it, so that a text without them is answered without the pattern, which takes longer to
        compile than most texts to read. A pattern that heeds no case says them in lower case.
        """
        return LatePattern(pattern, flags, holds)


__all__ = ["late_pattern"]


class LatePattern:
    """A pattern that is text until somebody asks it something."""

    def __init__(self, pattern: str, flags: int, holds: tuple[str, ...]) -> None:
        self.said, self.holds = (pattern, flags), holds

    def __getattr__(self, name: str) -> Any:
        if self.holds and name in NOTHING:
            return lambda *given: self._asked(name, given)
        found = getattr(re.compile(*self.said), name)
        setattr(self, name, found)  # asked for without this from now on
        return found

    def may_match(self, text: str) -> bool:
        """Whether a text has what one that matches holds."""
        text = text.casefold() if self.said[1] & re.IGNORECASE else text
        return any(word in text for word in self.holds)

    def _asked(self, name: str, given: tuple[Any, ...]) -> Any:
        if not self.may_match(given[1 if name == "sub" else 0]):
            return NOTHING[name](*given)
        found = getattr(re.compile(*self.said), name)
        setattr(self, name, found)
        return found(*given)


NOTHING: dict[str, Callable[..., Any]] = {
    "search": lambda *_: None,
    "match": lambda *_: None,
    "fullmatch": lambda *_: None,
    "finditer": lambda *_: iter(()),
    "findall": lambda *_: [],
    "sub": lambda _, text, *__: text,
}
"""What each method answers of a text in which nothing matches."""
