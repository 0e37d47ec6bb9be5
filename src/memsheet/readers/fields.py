"""A config.json as typed questions. Every wrong answer is remembered, so a person is told all of them at
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memsheet.errors import Problem, raise_if_problems

MAX_LAYERS = (
    512  # four times the deepest that was released; every layer takes milliseconds of a replayed step
)
MAX_SIZE = 2**31  # no released model has a dimension near this; it keeps every product below 2**63
_MISSING: Any = object()


class Fields:
    """Reads one mapping. A missing key takes ``default``; without one, or of the wrong type or range, it is a
    problem.
    """

    def __init__(
        self, data: Mapping[str, Any], where: str = "", problems: list[Problem] | None = None
    ) -> None:
        self.data = data
        self.where = where
        self.problems: list[Problem] = [] if problems is None else problems

    def _name(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def wrong(self, key: str, value: object, reason: str, hint: str = "") -> None:
        """Remember that ``key`` cannot be used."""
        self.problems.append(Problem(field=self._name(key), value=value, reason=reason, hint=hint))

    def raw(self, *keys: str, default: Any = None) -> Any:
        """The first of ``keys`` that is present and not null, else ``default``."""
        for key in keys:
            if self.data.get(key) is not None:
                return self.data[key]
        return default

    def count(self, *keys: str, default: Any = _MISSING, low: int = 1, high: int = MAX_SIZE) -> int:
        """A whole number in [low, high]; the first key names it, the others are older spellings. A null
        counts as missing.
        """
        for key in keys:
            value = self.data.get(key)
            if value is None:
                continue
            if isinstance(value, str) and value.strip().isdecimal():
                self.wrong(
                    key, value, "is text, where a whole number is expected", f"{value.strip()} without quotes"
                )
            elif isinstance(value, bool) or not isinstance(value, int):
                self.wrong(key, value, "is not a whole number")
            elif not low <= value <= high:
                self.wrong(key, value, f"is outside {low} to {high}")
            else:
                return value
            return low
        if default is _MISSING:
            self.wrong(keys[0], None, "is missing", "the model's size depends on it and nothing is guessed")
            return low
        return default  # type: ignore[no-any-return]

    def optional(self, *keys: str, low: int = 1, high: int = MAX_SIZE) -> int | None:
        """As ``count``, with None where the key is missing or null."""
        found: int | None = self.count(*keys, default=None, low=low, high=high)
        return found

    def layers(self, *keys: str, default: Any = _MISSING) -> int:
        return self.count(*(keys or ("num_hidden_layers",)), default=default, high=MAX_LAYERS)

    def flag(self, *keys: str, default: bool) -> bool:
        for key in keys:
            value = self.data.get(key)
            if value is None:
                continue
            if isinstance(value, bool):
                return value
            self.wrong(key, value, "is not true or false")
        return default

    def number(self, *keys: str, default: float) -> float:
        """A finite number, of either kind; a boolean is neither."""
        for key in keys:
            value = self.data.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
                self.wrong(key, value, "is not a number")
                return default
            return float(value)
        return default

    def text(self, *keys: str, default: str, choices: Sequence[str] = ()) -> str:
        for key in keys:
            value = self.data.get(key)
            if value is None:
                continue
            if not isinstance(value, str):
                self.wrong(key, value, "is not text")
            elif not value.isprintable():  # it may be shown later, and a terminal obeys control characters
                self.wrong(key, value, "holds characters that cannot be printed")
            elif choices and value not in choices:
                self.wrong(key, value, f"is none of {', '.join(choices)}")
            else:
                return value
            return default
        return default

    def texts(self, key: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        """A list of texts."""
        value = self.data.get(key)
        if value is None:
            return tuple(default)
        if isinstance(value, list) and all(isinstance(v, str) and v.isprintable() for v in value):
            return tuple(value)
        self.wrong(key, value, "is not a list of printable texts")
        return tuple(default)

    def counts(
        self, key: str, default: Sequence[int] = (), *, low: int = 0, high: int = MAX_SIZE
    ) -> tuple[int, ...]:
        """A list of whole numbers, each in [low, high]."""
        value = self.data.get(key)
        if value is None:
            return tuple(default)
        if isinstance(value, list) and all(
            isinstance(v, int) and not isinstance(v, bool) and low <= v <= high for v in value
        ):
            return tuple(value)
        self.wrong(key, value, f"is not a list of whole numbers from {low} to {high}")
        return tuple(default)

    def sub(self, key: str, default: Mapping[str, Any] | None = None) -> Fields:
        """A nested mapping; its problems join this one's."""
        value = self.data.get(key)
        if value is None:
            value = {} if default is None else default
        elif not isinstance(value, Mapping):
            self.wrong(key, value, "is not an object")
            value = {}
        return Fields(value, self._name(key), self.problems)

    def divides(self, divisor: int, key: str, value: int, why: str) -> None:
        """Remember a problem unless ``divisor`` divides ``value``."""
        if divisor < 1 or value % divisor:
            self.wrong(key, value, f"is not divisible by {divisor}: {why}")

    def done(self) -> None:
        """Raise one error with every problem found so far."""
        raise_if_problems(self.problems)
