"""A command line read by the table of flags: what it gives, or everything that is wrong with it at once.

given     words → every argument and flag by its name, the last step before a command's own code
unknown   what a flag may have been meant as
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from memsheet.cli.commands import COMMANDS, Command
from memsheet.cli.flags import Flag
from memsheet.errors import Problem, input_error, nearest_words, raise_if_problems
from memsheet.patterns import late_pattern
from memsheet.plan.aliases import SHORT_FLAGS

Given = SimpleNamespace
"""The arguments and flags of a command by their names in Python: what the line says, else the default."""

NEAR = 0.72
"""How alike a flag must be to be offered (difflib): a misspelling is, another word with some of the letters
is not.
"""
SAID = ("true", "false")
WITH_VALUES = {
    ("use-gradient-checkpointing", "unsloth"): ("--recompute", "full", "--offload", "activations"),
}
"""Switches that have a third word, and what it says (unslothai/unsloth 015bdef unsloth/models/_utils.py:376).
"""
ON_ALONE = {"flash-attn": "true"}
"""Words with values that were switches once: llama.cpp's -fa, which took none before August 2025."""
SECTIONS = ("training", "parallelism")
"""Sections of torchtitan's configuration whose keys are words of this table (config/job_config.py)."""
OTHER_SPELLINGS = {
    "--gpu": "--gpus", "--params": "--parameters", "--quant": "--quantize", "--model-name-or-path": "--model", "--cards": "--gpus",
    **dict.fromkeys(("--gpus-per-node", "--nproc-per-node"), "--per-node"), **dict.fromkeys(("--nnodes", "--num-nodes", "--num-machines"), "--nodes"),
}  # fmt: skip
"""Words of launchers, and what people write, for flags that are no option of a plan."""
ON_OFF = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_DASHED_VALUE = late_pattern(r"-(?:\.?\d.*)?")
"""Words with a dash that are values all the same: numbers below zero, and stdin."""
Spelled = Mapping[str, tuple[Flag, bool]]


def parse_command_line(command: Command, words: Sequence[str]) -> Given:
    """What a line gives a command. Raises InputError with every problem of its flags, or else of its
    arguments.
    """
    spelled = {name: (flag, on) for flag in command.flags for name, on in flag_spellings(flag)}
    end = words.index("--") if "--" in words else len(words)
    found, extras = _read_flags(_normalize_flag_words(words[:end], spelled), spelled)
    if command.behind and end == len(words):
        _refuse_launch_without_dashes(command, [word for word in extras if not is_flag(word)])
    problems = [
        unknown_flag_problem(word.partition("=")[0], spelled, command.program)
        for word in extras
        if is_flag(word)
    ]
    given_flags = {flag.field: flag for flag in command.flags if flag.field in found}
    raise_if_problems(
        [
            *problems,
            *(
                problem
                for field, flag in given_flags.items()
                for problem in _flag_problems(flag, found[field])
            ),
        ]
    )
    behind = words[end + 1 :]
    named = [*(word for word in extras if not is_flag(word)), *(() if command.behind else behind)]
    arguments = dict(_positional_arguments(command, named, partial(_hint_of_switch, words, spelled)))
    if command.behind:
        arguments[command.behind] = tuple(behind)
    raise_if_problems(
        Problem(field=f"--{flag.name}", reason="is missing", hint=f"--{flag.name} {flag.metavar}")
        for flag in command.flags
        if flag.required and flag.field not in found
    )
    kept = {field: found[field] if flag.many else found[field][0] for field, flag in given_flags.items()}
    return Given(**{**{flag.field: flag.default for flag in command.flags}, **arguments, **kept})


def _refuse_launch_without_dashes(command: Command, named: Sequence[str]) -> None:
    """A launch in the place of files: its flags would be read as memsheet's own."""
    if not named or not named[0].replace("-", "").isalnum():
        return
    from memsheet.cli.meant_words import is_launch

    if is_launch(named):
        flags = "--gpus 8xH100-80GB " if "gpus" in {flag.name for flag in command.flags} else ""
        hint = f"its command stands behind --: memsheet {command.name} {flags}-- {named[0]} …"
        raise input_error("file", named[0], "is a program, and no file of that name lies here", hint)


def _read_flags(line: Iterable[str], spelled: Spelled) -> tuple[dict[str, list[Any]], list[str]]:
    """Every value that a line gives each flag, so that all that is wrong can be told at once, and the words
    that are of no flag. None where a value is missing.
    """
    found, extras, rest = dict[str, list[Any]](), list[str](), deque(line)
    while rest:
        word = rest.popleft()
        name, equals, value = word.partition("=")
        if not is_flag(word) or name not in spelled:
            extras.append(word)
            continue
        flag, on = spelled[name]
        said: Any = on
        if flag.metavar:
            said = value if equals else rest.popleft() if rest and not is_flag(rest[0]) else None
        found.setdefault(flag.field, []).append(said)
    return found, extras


def _normalize_flag_words(words: Sequence[str], spelled: Spelled) -> Iterator[str]:
    """The words with flags as the table has them, and ``--flag false`` as ``--no-flag``; what is neither on
    nor off stays beside its flag.
    """
    rest = deque(words)
    while rest:
        word = rest.popleft()
        name, equals, value = word.partition("=")
        name = _whole_name(name, spelled)
        flag, on = spelled.get(name, (None, True))
        if not is_flag(word) or flag is None:
            yield word
        elif flag.name in ON_ALONE and not equals and (not rest or is_flag(rest[0])):
            yield f"{name}={ON_ALONE[flag.name]}"
        elif valued := WITH_VALUES.get((flag.name, value if equals else next(iter(rest), ""))):
            if not equals:
                rest.popleft()
            yield from valued
        elif flag.metavar:
            dashed = not equals and rest and rest[0].startswith("-") and not is_flag(rest[0])
            yield f"{name}={rest.popleft() if dashed else value}" if equals or dashed else name
        else:
            said = (
                ON_OFF.get(value.lower())
                if equals
                else ON_OFF[rest.popleft().lower()]
                if rest and rest[0].lower() in SAID
                else True
            )
            if said is None:
                raise input_error(name, value, "is on or off", f"{name} alone, or {name}=false")
            yield f"--{'' if said is on else 'no-'}{flag.name}"


def _flag_problems(flag: Flag, values: Sequence[Any]) -> Iterator[Problem]:
    """Why what a line says of a flag cannot be."""
    name = f"--{flag.name}"
    if None in values:
        yield Problem(field=name, reason="needs a value", hint=f"{name} {flag.metavar}")
    elif len(values) > 1 and not flag.many:
        yield Problem(field=name, reason="is given twice", hint="once is enough")


def flag_spellings(flag: Flag) -> Iterator[tuple[str, bool]]:
    """How a flag is written, and what that says of one that is on or off."""
    yield f"--{flag.name}", True
    if flag.negative:
        yield f"--no-{flag.name}", False


def _whole_name(name: str, spelled: Spelled) -> str:
    """A flag as the table has it: underscores are dashes, some have a short name of one dash, and a section
    stands before others (``--training.seq_len``).
    """
    if name in SHORT_FLAGS:
        return f"--{SHORT_FLAGS[name]}"
    whole = name.replace("_", "-")
    if whole in spelled or not is_flag(whole):
        return whole
    section, dot, last = whole.removeprefix("--").partition(".")
    others = (
        OTHER_SPELLINGS.get(whole, ""),
        whole.replace(".", "-") if dot else "",
        f"--{last}" if section in SECTIONS else "",
    )
    return next((one for one in others if one in spelled), whole)


def is_flag(word: str) -> bool:
    return word.startswith("-") and not _DASHED_VALUE.fullmatch(word)


def unknown_flag_problem(name: str, known: Mapping[str, object], program: str = "") -> Problem:
    """A flag that the command does not have, and what may have been meant. ``program``: whose own flags stand
    behind ``--``.
    """
    from memsheet.cli.meant_words import flag_hint

    meant = flag_hint(name, known)
    near = [] if meant else nearest_words(name.replace("_", "-"), known, cutoff=NEAR)
    others = [
        other.name
        for other in COMMANDS.values()
        if name in {word for flag in other.flags for word, _ in flag_spellings(flag)}
    ]
    elsewhere = (
        f"flags of {program} stand behind --"
        if program
        else f"it is of {', '.join(f'`memsheet {other}`' for other in others)}"
        if others
        else "--help-all lists them"
    )
    return Problem(
        field=name,
        reason="is not a flag of this command",
        hint=meant or (f"did you mean {near[0]}?" if near else elsewhere),
    )


def _hint_of_switch(words: Sequence[str], spelled: Spelled, word: str) -> str:
    """What to say of a word behind a switch, which takes none: the flag of like name that does."""
    before = next((one for one, other in pairwise(words) if other == word and one in spelled), "")
    if not before or spelled[before][0].metavar:
        return ""
    valued = (name for name, (flag, _) in spelled.items() if flag.metavar and name.startswith(f"{before}-"))
    other = next((name for name in valued if (spelled[name][0].metavar == "N") == word.isdigit()), "")
    return f"{before} is on or off" + (f"; {other} {word}" if other else "")


def _positional_arguments(
    command: Command, left: list[str], hint_of: Callable[[str], str]
) -> Iterator[tuple[str, Any]]:
    """The words without flags, by the names of the arguments in their order. ``hint_of``: what to say of a
    word that is left over. Raises InputError where some are missing or left over.
    """
    named = list[str]()
    for argument in command.arguments:
        if argument.many:
            yield argument.name, tuple(left)
            left = []
        elif left:
            named = [left.pop(0)]
            yield argument.name, named[0]
        elif argument.required:
            hint = f"memsheet {command.name} {' '.join(each.metavar for each in command.arguments)} …"
            raise_if_problems(
                [Problem(field=argument.metavar, reason=f"is missing: {argument.words}", hint=hint)]
            )
        else:
            yield argument.name, None
    if left:
        from memsheet.cli.meant_words import joined_name

        takes = "a command takes one name" if command.arguments else "this command takes no name"
        joined = joined_name((*named, *left)) if command.arguments else ""
        raise_if_problems(
            [
                Problem(
                    field=" ".join(left),
                    reason=f"is left over; {takes}",
                    hint=hint_of(left[0])
                    or (f"in one word: {joined}" if joined else "--help shows what it takes"),
                )
            ]
        )
