"""A command line read by the table of flags: what it gives, or everything that is wrong with it at once.

given     words → every argument and flag by its name, the last step before a command's own code
unknown   what a flag may have been meant as
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from memsheet.cli.commands import COMMANDS, Command
from memsheet.cli.flags import Flag
from memsheet.errors import Problem, nearest, require
from memsheet.spec.aliases import SHORT_FLAGS

Given = SimpleNamespace
"""The arguments and flags of a command by their names in Python: what the line says, else the default."""

NEAR = 0.72
"""How alike a flag must be to be offered (difflib): a misspelling is, another word with some of the letters is not."""
ON_OFF = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_DASHED_VALUE = re.compile(r"-(?:\.?\d.*)?")
"""Words with a dash that are values all the same: numbers below zero, and stdin."""
Spelled = Mapping[str, tuple[Flag, bool]]


def given(command: Command, words: Sequence[str]) -> Given:
    """What a line gives a command. Raises InputError with every problem of its flags, or else of its arguments."""
    spelled, rest = {name: (flag, on) for flag in command.flags for name, on in spellings(flag)}, deque(words)
    found, problems, left = dict[str, Any](), list[Problem](), list[str]()
    while rest:
        word = rest.popleft()
        if word == "--":
            left.extend(rest)
            break
        if not is_flag(word):
            left.append(word)
            continue
        name, equals, value = word.partition("=")
        known = spelled.get(_whole_name(name))
        if known is None:
            problems.append(unknown(name, spelled))
            continue
        flag, on = known
        problems.extend(_kept(flag, name, _value(flag, on, value if equals else None, rest), found))
    require(problems)
    arguments = dict(_arguments(command, left))
    require(
        Problem(field=f"--{flag.name}", reason="is missing", hint=f"--{flag.name} {flag.metavar}")
        for flag in command.flags if flag.required and flag.field not in found
    )  # fmt: skip
    return Given(**{**{flag.field: flag.default for flag in command.flags}, **arguments, **found})


def spellings(flag: Flag) -> Iterator[tuple[str, bool]]:
    """How a flag is written, and what that says of one that is on or off."""
    yield f"--{flag.name}", True
    if flag.negative:
        yield f"--no-{flag.name}", False


def _whole_name(name: str) -> str:
    """A flag as the table has it: underscores are dashes, and some have a short name of one dash."""
    return f"--{SHORT_FLAGS[name]}" if name in SHORT_FLAGS else name.replace("_", "-")


def is_flag(word: str) -> bool:
    return word.startswith("-") and not _DASHED_VALUE.fullmatch(word)


def _value(flag: Flag, on: bool, attached: str | None, rest: deque[str]) -> Any:  # noqa: FBT001 - what the spelling says
    """The value of a flag, from behind its ``=`` or from the next word; None where there is none."""
    if flag.metavar:
        return attached if attached is not None else rest.popleft() if rest and not is_flag(rest[0]) else None
    if attached is None:
        return on if not rest or rest[0].lower() not in ("true", "false") else (rest.popleft().lower() == "true") is on
    said = ON_OFF.get(attached.lower())
    return attached if said is None else said is on


def _kept(flag: Flag, name: str, value: Any, found: dict[str, Any]) -> Iterator[Problem]:
    """Keeps a flag's value, or says why it cannot be one."""
    if value is None:
        yield Problem(field=name, reason="needs a value", hint=f"{name} {flag.metavar}")
    elif not flag.metavar and not isinstance(value, bool):
        yield Problem(field=name, value=value, reason="is on or off", hint=f"{name} alone, or {name}=false")
    elif flag.many:
        found.setdefault(flag.field, []).append(value)
    elif flag.field in found:
        yield Problem(field=name, reason="is given twice", hint="once is enough")
    else:
        found[flag.field] = value


def unknown(name: str, known: Mapping[str, object]) -> Problem:
    """A flag that the command does not have, and what may have been meant."""
    near = nearest(name.replace("_", "-"), known, cutoff=NEAR)
    others = [other.name for other in COMMANDS.values() if name in {word for flag in other.flags for word, _ in spellings(flag)}]
    elsewhere = f"it is of {', '.join(f'`memsheet {other}`' for other in others)}" if others else "--help-all lists them"
    return Problem(field=name, reason="is not a flag of this command", hint=f"did you mean {near[0]}?" if near else elsewhere)


def _arguments(command: Command, left: list[str]) -> Iterator[tuple[str, Any]]:
    """The words without flags, by the names of the arguments in their order. Raises InputError where some are missing or left over."""
    for argument in command.arguments:
        if argument.many:
            yield argument.name, tuple(left)
            left = []
        elif left:
            yield argument.name, left.pop(0)
        elif argument.required:
            hint = f"memsheet {command.name} {' '.join(each.metavar for each in command.arguments)} …"
            require([Problem(field=argument.metavar, reason=f"is missing: {argument.words}", hint=hint)])
        else:
            yield argument.name, None
    if left:
        takes = "a command takes one name" if command.arguments else "this command takes no name"
        require([Problem(field=" ".join(left), reason=f"is left over; {takes}", hint="--help shows what it takes")])
