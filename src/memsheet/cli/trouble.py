"""Errors for people, on stderr: what, where, and what to do. Never a traceback."""

from __future__ import annotations

import os
import sys
import textwrap

from memsheet.cli import screen
from memsheet.errors import InputError, Problem, printable
from memsheet.spec.names import SHORT

BAD_INPUT = 2
_FLAGS = {key: "--" + short.replace("_", "-") for short, key in SHORT.items()}


def explain_input(error: InputError) -> int:
    """Every problem on its own line, each with its hint."""
    count = len(error.problems)
    if count > 1:
        _say(f"memsheet: {count} problems")
    for problem in error.problems:
        _say(("  " if count > 1 else "memsheet: ") + _line(problem))
        if problem.hint:
            _say(f"  hint: {problem.hint}" if count == 1 else f"    hint: {problem.hint}")
    return BAD_INPUT


def _line(problem: Problem) -> str:
    """``mesh.tp = 3 (--tp): why``: the key as a plan file has it, and the flag."""
    flag = _FLAGS.get(problem.field)
    shown = "" if problem.value is None else f" = {printable(problem.value)}"
    named = f" ({flag})" if flag else ""
    return f"{printable(problem.field)}{shown}{named}: {problem.reason}"


def explain_broken(error: Exception, code: int) -> int:
    """An error of memsheet's own: said in two lines, with the way to see all of it."""
    _say(f"memsheet: internal error, {type(error).__name__}: {printable(str(error))}")
    _say("  hint: this is a fault of memsheet, not of the input; run again with --debug and report what it prints")
    return code


def _say(line: str) -> None:
    encoding = sys.stderr.encoding or "ascii"
    for part in _wrapped(line):
        print(part.encode(encoding, "replace").decode(encoding), file=sys.stderr)


def _wrapped(line: str) -> list[str]:
    """As wide as the screen; what goes into a file or a program stays one line, so that it can be searched."""
    if not (sys.stderr.isatty() or os.environ.get("COLUMNS")):
        return [line]
    before = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, screen.width(), subsequent_indent=before, break_long_words=False, break_on_hyphens=False) or [line]
