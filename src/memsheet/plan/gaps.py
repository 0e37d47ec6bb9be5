"""A request while its gaps are filled: what was assumed, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from memsheet.errors import Problem, nearest_words
from memsheet.frozen import dataclass, field

E = TypeVar("E", bound=Enum)


@dataclass(slots=True)
class RequestResolver:
    """The request, and what came up on the way to a whole plan. ``frozen``: nothing of the model trains."""

    request: Mapping[str, Any]
    assumed: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    frozen: bool = False

    def get(self, key: str, default: Any = None, *, silent: bool = False) -> Any:
        value = self.request.get(key)
        if value is not None:
            return value
        if default is not None and not silent:
            self.assumed.append(f"{key} = {_assumed_value(default)}")
        return default

    def wrong(self, key: str, value: object, reason: str, hint: str = "", *, refused: bool = False) -> None:
        """``refused``: the engine stops at it, too."""
        self.problems.append(Problem(field=key, value=value, reason=reason, hint=hint, refused=refused))

    def is_wrong(self, key: str) -> bool:
        """Whether something was wrong with a key so far."""
        return any(problem.field == key for problem in self.problems)

    def choice(self, key: str, default: E, allowed: tuple[E, ...], who: str, *, silent: bool = False) -> E:
        text = self.request.get(key)
        if text is None:
            self.assumed += [] if silent else [f"{key} = {default.value}"]
            return default
        for member in allowed:
            if member.value == text:
                return member
        self.wrong(
            key,
            text,
            f"is not modelled for {who} yet",
            _nearest_then_all(str(text), [str(m.value) for m in allowed]),
        )
        return default


def _assumed_value(value: object) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _nearest_then_all(word: str, known: list[str]) -> str:
    """All that there is, behind the one that may have been mistyped."""
    near = nearest_words(word, known, n=1, cutoff=MISTYPED)
    every = f"modelled: {', '.join(known)}"
    return f"did you mean {near[0]}? {every}" if near else every


MISTYPED = 0.94
"""How alike two words are of which one is the other with a letter more or less; names of other options are
less so (``adamw_8bit`` and ``adamw_4bit`` are 0.9 alike, ``adamw_8bits`` is 0.95).
"""
