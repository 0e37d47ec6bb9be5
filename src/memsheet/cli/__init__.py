"""The command line: one file a command, loaded when it is asked for. Answers go to stdout, everything else to
stderr.

commands, flags   the table of what each command takes
line              a line read by that table
help              the table as text
trouble           what is wrong, said
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise

from memsheet.errors import InputError, input_error, missing_package

INTERRUPTED = 130
BROKEN = 70
"""Exit code of an error that is memsheet's own (EX_SOFTWARE of sysexits.h), never that of an answer."""
_interrupts: list[int] = []
"""Signals that asked this process to end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 fits, 10 does not fit, 11 uncertain, 2 bad input, 130
    interrupted.
    """
    _open_streams()
    if arguments is None:
        _note_interrupts()
    try:
        code = _run_guarded(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    if arguments is None:
        _let_end()
    return code


def _open_streams() -> None:
    """Streams that whoever started this has closed lead nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - it is open until the end


def _note_interrupts() -> None:
    """An interrupt is noted before it is raised: a package that meets one inside its compiled part, while it
    is imported, tells it as an error of its own that follows from nothing.
    """
    import signal

    def note(number: int, _frame: object) -> None:
        _interrupts.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # not the main thread's
            signal.signal(signal.SIGINT, note)


def _let_end() -> None:
    """The answer is given: an interrupt that comes now ends nothing, and has nothing to say; and what is held
    need not be looked through for garbage before it goes.
    """
    import signal

    gc.freeze()

    with suppress(ValueError):  # not the main thread's
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_guarded(arguments: Sequence[str] | None) -> int:
    words, collecting = list(sys.argv[1:] if arguments is None else arguments), gc.isenabled()
    if arguments is None:
        gc.disable()  # a command is over before there is garbage worth collecting
    try:
        return _dispatch_command(words)
    except InputError as error:
        if _follows_interrupt(error):
            raise KeyboardInterrupt from error
        if "--debug" in words:
            raise
        from memsheet.cli.error_output import explain_input

        return explain_input(error, json=_in_json(words))
    except Exception as error:
        if _follows_interrupt(error):
            raise KeyboardInterrupt from error
        if "--debug" in words:
            raise
        from memsheet.cli.error_output import explain_broken, explain_input

        missing = missing_package(error) if isinstance(error, ModuleNotFoundError) else None
        json = _in_json(words)
        return explain_input(missing, json=json) if missing else explain_broken(error, BROKEN, json=json)
    finally:
        if collecting:
            gc.enable()


def _follows_interrupt(error: BaseException | None) -> bool:
    """Whether an error came of an interrupt: one that meets a package while it is imported is told as the
    package's own.
    """
    if _interrupts:
        return True
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _in_json(words: Sequence[str]) -> bool:
    """Whether a line asks for JSON, as far as one can tell of a line that may be wrong."""
    flags = words[: words.index("--")] if "--" in words else words
    named = ("--format", "json") in pairwise(flags)
    return named or not {"--json", "--json=true", "--format=json"}.isdisjoint(flags)


def _dispatch_command(words: list[str]) -> int:
    from memsheet.cli.commands import COMMANDS

    name, rest = (words[0], words[1:]) if words else ("--help", [])
    if name in COMMANDS:
        return _run_command(name, rest)
    if name in ("-h", "--help", "--help-all"):
        from memsheet.cli.help import program_help

        return _print_text(program_help(every=name == "--help-all"))
    if name == "--version":
        from memsheet import __version__

        return _print_text(f"{__version__}\n")
    from memsheet.cli.meant_words import command_hint
    from memsheet.errors import nearest_words

    meant = command_hint(name, rest)
    near = nearest_words(name, COMMANDS)
    raise input_error(
        name,
        None,
        "is not a command",
        meant or (f"did you mean {near[0]}?" if near else f"one of {', '.join(COMMANDS)}"),
    )


def _run_command(name: str, words: list[str]) -> int:
    from memsheet.cli.commands import COMMANDS

    command, flags = COMMANDS[name], words[: words.index("--")] if "--" in words else words
    if {"-h", "--help", "--help-all"} & {*flags}:
        from memsheet.cli.help import command_help

        return _print_text(command_help(command, every="--help-all" in flags))
    from memsheet.cli.line import parse_command_line
    from memsheet.guard.spending import of_one_command

    asked = parse_command_line(command, words)
    with of_one_command():
        code: int = getattr(import_module(f"memsheet.cli.{name}"), name)(asked)
    return code


def _print_text(text: str) -> int:
    from memsheet.cli.screen import write_stdout

    write_stdout(text)
    return 0
