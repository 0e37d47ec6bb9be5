"""Regular expressions that are compiled when they are first used: readers of files have hundreds of them, and
one file meets a few.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from re import compile as late_pattern
else:

    def late_pattern(pattern: str, flags: int = 0) -> LatePattern:
        """As ``re.compile``, whose methods what is returned has."""
        return LatePattern(pattern, flags)


__all__ = ["late_pattern"]


class LatePattern:
    """A pattern that is text until somebody asks it something."""

    def __init__(self, pattern: str, flags: int) -> None:
        self.said = pattern, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self.said), name)
        setattr(self, name, found)  # asked for without this from now on
        return found
