"""What a stranger's text may ask for: steps of an evaluation, and the size of the values that it makes. Small
texts can describe large values.
"""

from __future__ import annotations

from typing import Any

MOST_SCRIPT = 2**16
"""Characters of a script that are read; a longer one is refused, for what stands at its end counts as well.
"""
MOST_LINES = 2**12
"""Lines of it: more that are so short hold nothing but more steps."""
CHARACTERS = 64
"""Characters of a text that weigh as much as one value."""


def is_long_script(text: str) -> bool:
    """Whether a script has more characters or lines than are read."""
    return len(text) > MOST_SCRIPT or text.count("\n") > MOST_LINES


class TooMuchError(ValueError):
    """A text that asks for more than a configuration does."""


class Budget:
    """An amount that is spent and never comes back. ``what``: in which words it is told that nothing is
    left.
    """

    __slots__ = ("left", "what")

    def __init__(self, most: int, what: str) -> None:
        self.left = most
        self.what = what

    def spend(self, amount: int = 1) -> None:
        """Raises TooMuchError where less is left."""
        self.left -= amount
        if self.left < 0:
            raise TooMuchError(f"asks for more {self.what} than a configuration has")

    def spend_size(self, value: Any) -> None:
        """Spend what a value weighs written out: one for each value in it, as often as it stands there, and
        for each stretch of a text.

        It ends with the budget, so that a value that holds itself, or the same one in many places, is not
        gone through to its end.
        """
        waiting = [value]
        while waiting:
            held = waiting.pop()
            if isinstance(held, dict):
                self.spend(1 + len(held))
                waiting += held.values()
            elif isinstance(held, list):
                self.spend(1 + len(held))
                waiting += held
            else:
                self.spend(1 + len(held) // CHARACTERS if isinstance(held, str) else 1)
