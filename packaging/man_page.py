"""The manual page, made of the table of commands: ``python packaging/man_page.py`` writes memsheet.1 again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memsheet.cli.commands import COMMANDS, Command
from memsheet.cli.flags import WORDS
from memsheet.cli.help import ABOUT

PAGE = Path(__file__).with_name("memsheet.1")
EXIT_CODES = (
    ("0", "it fits, or the command has nothing to judge"),
    ("2", "the input cannot be read, or the engine would refuse it"),
    ("10", "it does not fit"),
    ("11", "it may fit: the range straddles what the card has"),
    ("70", "an error of memsheet itself"),
    ("130", "interrupted"),
)


def man_page() -> str:
    """memsheet(1) as roff."""
    return "\n".join([*_head(), *_commands(), *_tail()]) + "\n"


def _head() -> Iterator[str]:
    yield '.TH MEMSHEET 1 "" "memsheet" "User Commands"'
    yield from (".SH NAME", f"memsheet \\- {_roff(ABOUT[0].lower() + ABOUT[1:].rstrip('.'))}")
    yield from (".SH SYNOPSIS", ".B memsheet", r"\fICOMMAND\fR [\fIARGUMENT\fR ...] [\fIFLAG\fR ...]")
    yield from (
        ".SH DESCRIPTION",
        "The memory budget sheet for large models, before the job runs.",
        r"Every command has its own help:",
        r".B memsheet \fICOMMAND\fB \-\-help\fR, and with every flag",
        r".BR \-\-help\-all .",
    )


def _commands() -> Iterator[str]:
    yield ".SH COMMANDS"
    for name, command in COMMANDS.items():
        yield from (f".SS {name}", _roff(f"{command.words} {command.more}".strip()))
        yield from (".PP", ".nf", *(_roff(line) for line in command.examples), ".fi")
        yield from _flags(command)


def _flags(command: Command) -> Iterator[str]:
    often = {*command.often} or {flag.name for flag in command.flags}
    for flag in command.flags:
        if flag.name in often and flag.group != WORDS:
            takes = rf" \fI{_roff(flag.metavar)}\fR" if flag.metavar else ""
            yield from (".TP", rf"\fB{_roff(f'--{flag.name}')}\fR{takes}", _roff(flag.words))


def _tail() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, words in EXIT_CODES:
        yield from (".TP", f".B {code}", _roff(words))


def _roff(words: str) -> str:
    """Text that roff prints as it is."""
    found = words.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{found}" if found.startswith((".", "'")) else found


if __name__ == "__main__":
    PAGE.write_text(man_page(), encoding="utf-8")
