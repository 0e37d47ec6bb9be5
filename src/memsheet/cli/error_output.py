"""Errors: what, where, and what to do. For people on stderr, never a traceback; where JSON is asked for, one
object on stdout too.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable
from contextlib import suppress

from memsheet.cli import screen
from memsheet.errors import (
    MOST_SHOWN,
    InputError,
    Problem,
    more_than_shown,
    printable_line,
    without_control_characters,
)
from memsheet.plan.names import SHORT

BAD_INPUT = 2
_FLAGS = {key: "--" + short.replace("_", "-") for short, key in SHORT.items()}


def explain_input(error: InputError, *, json: bool = False) -> int:
    """Every problem on its own line, each with its hint; ``json``: as an object on stdout too, where a
    program reads.
    """
    from memsheet.report.shared.exit_codes import refusal_exit_code

    kind, code = refusal_exit_code(error)
    if json:
        _write_json(kind, code, error.problems)
    count, says = len(error.problems), "memsheet: DOES NOT START  " if error.refused else "memsheet: "
    if count > 1:
        _print_stderr(f"{says}{count} problems")
    for problem in error.problems[:MOST_SHOWN]:
        _print_stderr(("  " if count > 1 else says) + _problem_line(problem))
        if problem.hint:
            _print_stderr(f"  hint: {problem.hint}" if count == 1 else f"    hint: {problem.hint}")
    for line in more_than_shown(count):
        _print_stderr(f"  {line}")
    return code


def _problem_line(problem: Problem) -> str:
    """``mesh.tp = 3 (--tp): why``: the key as a plan file has it, and the flag."""
    flag = _FLAGS.get(problem.field)
    shown = "" if problem.value is None else f" = {printable_line(problem.value)}"
    named = f" ({flag})" if flag else ""
    return f"{printable_line(problem.field)}{shown}{named}: {problem.reason}"


OURS = "this is a fault of memsheet, not of the input; run again with --debug and report what it prints"


def explain_broken(error: Exception, code: int, *, json: bool = False) -> int:
    """An error of memsheet's own: said in two lines, with the way to see all of it."""
    said = f"{type(error).__name__}: {printable_line(str(error))}"
    if json:
        _write_json("internal error", code, (Problem(field="memsheet", reason=said, hint=OURS),))
    _print_stderr(f"memsheet: internal error, {said}")
    _print_stderr(f"  hint: {OURS}")
    return code


def _write_json(kind: str, code: int, problems: Iterable[Problem]) -> None:
    from json import dumps

    from memsheet.report.json.error import error_document

    document = error_document(kind, code, problems)
    with suppress(InputError):  # stdout cannot be written: the line on stderr is left
        screen.write_stdout(dumps(document, allow_nan=False) + "\n")


def _print_stderr(line: str) -> None:
    encoding = sys.stderr.encoding or "ascii"
    for part in _wrap_stderr_line(without_control_characters(line)):
        try:
            print(part.encode(encoding, "replace").decode(encoding), file=sys.stderr, flush=True)
        except OSError:  # nobody hears it, and the exit code says it, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _wrap_stderr_line(line: str) -> list[str]:
    """As wide as the screen; what goes into a file or a program stays one line, so that it can be
    searched.
    """
    if not (sys.stderr.isatty() or os.environ.get("COLUMNS")):
        return [line]
    before = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(
        line,
        screen.terminal_width(),
        subsequent_indent=before,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [line]
