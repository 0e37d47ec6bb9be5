"""Errors for people, on stderr: what, where, and what to do. Never a traceback."""

from __future__ import annotations

import difflib
import sys
from typing import Any

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


def explain_usage(error: Any) -> int:
    """What cyclopts could not read, in one or two lines."""
    from cyclopts.exceptions import MissingArgumentError, UnknownOptionError, UnusedCliTokensError

    if isinstance(error, UnknownOptionError):
        return _unknown_option(error)
    if isinstance(error, MissingArgumentError) and error.keyword:
        return _usage(f"{printable(error.keyword)}: needs a value")
    if isinstance(error, UnusedCliTokensError):
        left = " ".join(printable(token) for token in error.unused_tokens or ())
        return _usage(f"{left}: is left over; a command takes one name")
    return _usage(" ".join(printable(line) for line in str(error).splitlines()))


def _unknown_option(error: Any) -> int:
    option = printable(error.token.keyword or error.token.value or "").split("=")[0]
    known = [name for argument in error.argument_collection or () for name in argument.names]
    if any(name == "--gpus" for name in known):  # a job: of a plan's flags only those on the command line were declared
        known += [f"--{name.replace('_', '-')}" for name in (*SHORT, "offload")]
    near = difflib.get_close_matches(option, known, n=1, cutoff=0.4)
    return _usage(f"{option}: is not a flag of this command", f"did you mean {near[0]}?" if near else "--help lists them")


def _usage(what: str, hint: str = "") -> int:
    _say(f"memsheet: {what}")
    if hint:
        _say(f"  hint: {hint}")
    return BAD_INPUT


def explain_broken(error: Exception, code: int) -> int:
    """An error of memsheet's own: said in two lines, with the way to see all of it."""
    _say(f"memsheet: internal error, {type(error).__name__}: {printable(str(error))}")
    _say("  hint: this is a fault of memsheet, not of the input; run again with --debug and report what it prints")
    return code


def _say(line: str) -> None:
    encoding = sys.stderr.encoding or "ascii"
    print(line.encode(encoding, "replace").decode(encoding), file=sys.stderr)
