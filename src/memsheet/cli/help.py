"""Help as text: of the whole program, and of a command, in short (``--help``) or with every flag
(``--help-all``).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from memsheet.cli import screen
from memsheet.cli.commands import COMMANDS, START, Command
from memsheet.cli.flags import WORDS, Flag
from memsheet.plan.aliases import ALIASES, PLAN_KEYS, SHORT_FLAGS
from memsheet.plan.names import SHORT

EXIT_CODES = "Exit code: 0 fits, 10 does not fit, 11 uncertain, 2 bad input."
ABOUT = "Every byte on every GPU, before the job runs."
FLAG_OF = {key: f"--{name.replace('_', '-')}" for name, key in SHORT.items()}
COLUMN = 26
"""Where words begin beside names; a longer name has a line of its own."""


def program_help(*, every: bool = False) -> str:
    """``memsheet --help``: the commands and a few lines to begin with; ``every``: with the help of each
    command.
    """
    rows = [(name, command.words) for name, command in COMMANDS.items()]
    rows_more = (
        ("--help, -h", "This; after a command, its examples and usual flags."),
        ("--help-all", "Every flag."),
        ("--version", "The version."),
    )
    parts = [
        "Usage: memsheet COMMAND …",
        ABOUT,
        _example_lines(START),
        _help_section("Commands", rows),
        _help_section("Options", rows_more),
        EXIT_CODES,
    ]
    if every:
        parts += [command_help(command, every=True) for command in COMMANDS.values()]
    return "\n\n".join(parts) + "\n"


def command_help(command: Command, *, every: bool = False) -> str:
    """What a command takes: its examples and its usual flags, or ``every`` flag."""
    arguments = [(argument.metavar, argument.words) for argument in command.arguments]
    often = {*command.often} if command.often and not every else {flag.name for flag in command.flags}
    shown = [flag for flag in command.flags if flag.name in often and flag.group != WORDS]
    words = [flag for flag in command.flags if flag.group == WORDS]
    parts = [
        f"Usage: memsheet {command.name} {_command_usage(command)}",
        _fill_to_screen(f"{command.words} {command.more}".strip()),
        _example_lines(command.examples),
    ]
    parts += [_help_section("Arguments", arguments)] if arguments else []
    parts += [_help_section(group, map(_flag_help_row, flags)) for group, flags in _group_flags(shown)]
    parts += [_help_section(WORDS, _flag_alias_rows(words))] if words and every else []
    hidden = len(command.flags) - len(shown) - len(words)
    also = ", and other tools' words for flags" if words else ""
    parts += (
        [f"{hidden} more flags{also}: memsheet {command.name} --help-all"] if hidden and not every else []
    )
    return "\n\n".join(parts).rstrip() + ("" if every else "\n")


def _command_usage(command: Command) -> str:
    shown = (
        f"{a.metavar}{' …' * a.many}" if a.required or a.many else f"[{a.metavar}]" for a in command.arguments
    )
    return " ".join([*shown, "[FLAGS]"])


def _group_flags(flags: Iterable[Flag]) -> Iterator[tuple[str, list[Flag]]]:
    groups: dict[str, list[Flag]] = {}
    for flag in flags:
        groups.setdefault(flag.group, []).append(flag)
    yield from groups.items()


def _flag_help_row(flag: Flag) -> tuple[str, str]:
    name = f"--[no-]{flag.name}" if flag.negative else f"--{flag.name}"
    return f"{name} {flag.metavar}".rstrip(), flag.words


def _flag_alias_rows(flags: Iterable[Flag]) -> Iterator[tuple[str, str]]:
    """Others' words by the flags that they say; last those that say more than one thing, or one flag with its
    value, and keys of a plan.
    """
    own, more, unnamed, short = (
        dict[str, list[str]](),
        list[str](),
        list[str](),
        {name: f", {one}" for one, name in SHORT_FLAGS.items()},
    )
    for flag in flags:
        if ALIASES[flag.name].whose == PLAN_KEYS:
            unnamed.append(f"--{flag.name}")
            continue
        keys = {meaning.key for meaning in ALIASES[flag.name].meanings}
        says = (
            own.setdefault(FLAG_OF[next(iter(keys))], [])
            if len(keys) == 1 and keys <= FLAG_OF.keys()
            else more
        )
        says.append(f"--{flag.name}{short.get(flag.name, '')}")
    yield from ((says, ", ".join(names)) for says, names in own.items())
    yield "others", ", ".join(more)
    yield "a plan's keys", ", ".join(unnamed)


def _example_lines(lines: Iterable[str]) -> str:
    """Lines to copy, each whole for a shell: a long one goes on after a backslash."""
    return "Examples\n" + "\n".join(_wrap_shell_line(line) for line in lines)


def _wrap_shell_line(line: str) -> str:
    """The line in parts as wide as the screen, none of which begins with a flag's value."""
    whole = line.replace(" --", "\0--").split("\0")
    lines = [whole[0]]
    for part in whole[1:]:
        if len(lines[-1]) + len(part) + 6 <= screen.terminal_width():
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return "  " + " \\\n    ".join(lines)


def _help_section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join([title, *(line for name, words in rows for line in _help_entry_lines(name, words))])


def _help_entry_lines(name: str, words: str) -> Iterator[str]:
    lines = textwrap.wrap(
        words, screen.terminal_width() - COLUMN, break_long_words=False, break_on_hyphens=False
    )
    if len(name) > COLUMN - 4:
        yield f"  {name}"
    else:
        yield f"  {name.ljust(COLUMN - 2)}{lines.pop(0)}"
    yield from (" " * COLUMN + line for line in lines)


def _fill_to_screen(text: str) -> str:
    return textwrap.fill(text, screen.terminal_width())
