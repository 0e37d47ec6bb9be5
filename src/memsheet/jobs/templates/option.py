"""What templates have in common: an option by a framework's own word, and the template that takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.errors import Problem, raise_if_problems
from memsheet.frozen import NamedTuple

MACHINES = ("gpus", "nodes", "per_node", "host_memory")


if TYPE_CHECKING:
    from memsheet.jobs.templates.planned import Sizes

SizesOf = Callable[[str], "Sizes"]
"""A model's sizes by its name. Raises InputError for a model that nobody knows."""


class Option(NamedTuple):
    """One option: the type of its value, what the framework takes where nothing is said (None: nothing), the
    values that it may have, and where in the framework's source the default stands.
    """

    kind: type
    words: str
    usual: Any = None
    choices: tuple[Any, ...] = ()
    source: str = ""


class Template(NamedTuple):
    """A framework's job. ``make`` takes options as they are said, and the machines, and what gives a model's
    sizes by its name, and gives a document of ``memsheet/job/1``.
    """

    name: str
    words: str
    options: Mapping[str, Option]
    make: Callable[[Mapping[str, Any], SizesOf], dict[str, Any]]


def read_options(
    said: Mapping[str, Any], options: Mapping[str, Option], framework: str
) -> tuple[dict[str, Any], list[str]]:
    """Every option's value, and in words which of them nobody said. Raises InputError with all that cannot
    be.
    """
    problems = [Problem(field=name, value=value, reason=why) for name, value in said.items() if (why := option_refusal(value, options.get(name)))]  # fmt: skip
    raise_if_problems(problems)
    values = {name: said.get(name, option.usual) for name, option in options.items()}
    assumed = [
        f"{name} = {option.usual} ({framework}'s default)"
        for name, option in options.items()
        if name not in said and option.source
    ]
    return values, assumed


def option_refusal(value: Any, option: Option | None) -> str:
    """Why a value cannot be; nothing where it can."""
    if option is None:
        return ""
    if option.choices and value not in option.choices:
        return f"is none of {', '.join(map(str, option.choices))}"
    if option.kind is bool:
        return "" if isinstance(value, bool) else "is neither true nor false"
    if option.kind is int:
        least = 0 if option.usual == 0 else 1
        return "" if type(value) is int and least <= value <= 2**26 else "is no whole number in range"
    if option.kind is float:
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        return "" if whole and 0 <= value <= 1e9 else "is no number in range"
    return "" if isinstance(value, str) and value.isprintable() else "is no text"


def machines_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """The machines that are said beside the options, as the document has them."""
    return {key: said[key] for key in MACHINES if said.get(key) is not None}


def logits_key(tokens: int, each: tuple[int, int, int], why: str) -> dict[str, Any]:
    """Logits of a phase, as the document has them."""
    return {"tokens": tokens, "bytes": list(each), "why": why}
