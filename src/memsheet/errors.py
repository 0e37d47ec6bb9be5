"""What a person is told when an input cannot be used.

InputError
└─ every problem of one input at once, each a Problem(field, value, reason, hint)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from memsheet.frozen import dataclass

MAX_SHOWN = 120
MOST_SHOWN = 20
"""Problems that are told one by one: an input with more is wrong in one way throughout."""
LONGEST_WORD = 100
"""Longer texts are no misspelt words."""


def without_control_characters(text: str) -> str:
    """One line of text whose control characters, which a terminal obeys, are replaced."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


def printable_line(value: object) -> str:
    """``value`` as one short line without control characters: names in files are a stranger's text."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except ValueError:  # an int of more digits than Python prints
        text = f"a number of about {value.bit_length() * 3 // 10} digits" if isinstance(value, int) else "…"
    text = without_control_characters(text[: MAX_SHOWN * 4])
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with an input: where it stands, what stands there, why it cannot be, what to do.
    ``refused``: the engine stops at it, too.
    """

    field: str
    value: object = None
    reason: str
    hint: str = ""
    refused: bool = False

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {printable_line(self.value)}"
        hint = f"\n  hint: {without_control_characters(self.hint)}" if self.hint else ""
        return f"{printable_line(self.field)}{shown}: {without_control_characters(self.reason)}{hint}"


class InputError(ValueError):
    """A question that cannot be answered as asked; carries every problem found."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(self.problems)

    @property
    def refused(self) -> bool:
        """Whether the engine stops at every problem, so that the job is as sure not to run as one that does
        not fit.
        """
        return bool(self.problems) and all(problem.refused for problem in self.problems)

    def __str__(self) -> str:
        """Put into words where it is shown: a search raises hundreds that are only counted."""
        return "\n".join([*map(str, self.problems[:MOST_SHOWN]), *more_than_shown(len(self.problems))])


def more_than_shown(count: int, most: int = MOST_SHOWN) -> list[str]:
    """A line that says how many are left out, where there are more than are shown."""
    return [f"… and {count - most:,} more like these"] if count > most else []


def input_error(field: str, value: object, reason: str, hint: str = "") -> InputError:
    """An InputError with a single problem, ready to raise."""
    return InputError(Problem(field=field, value=value, reason=reason, hint=hint))


def raise_if_problems(problems: Iterable[Problem]) -> None:
    """Raise one InputError with all ``problems``, if there are any."""
    found = tuple(problems)
    if found:
        raise InputError(found)


def missing_package(error: ModuleNotFoundError) -> InputError | None:
    """What is said where a package that memsheet stands on is not installed; None where a module of its own
    is missing.
    """
    package = (error.name or "").split(".")[0]
    if not package or package == __name__.split(".", maxsplit=1)[0]:
        return None
    if sys.platform == "emscripten":  # a browser's own Python, which installs nothing
        return input_error(package, None, "is needed for this and is not there in a browser", IN_BROWSER)
    return input_error(
        package,
        None,
        "is needed for this and is not installed in this environment",
        f"python -m pip install {package}",
    )


IN_BROWSER = "a bundled model's name or its config.json needs nothing more; `memsheet web` has all of it"


def nearest_words(word: str, known: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> list[str]:
    """The ``n`` known words most like ``word``, for hints; imported when a mistake has been made, not at
    every start.
    """
    import difflib

    return (
        [] if len(word) > LONGEST_WORD else difflib.get_close_matches(word, list(known), n=n, cutoff=cutoff)
    )
