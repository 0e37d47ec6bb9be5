"""Errors for people, on stderr: what, where, and what to do. Never a traceback."""

from __future__ import annotations

import difflib
import os
import sys
import textwrap
from typing import Any

from memsheet.cli import screen
from memsheet.errors import InputError, Problem, printable
from memsheet.spec.names import SHORT

BAD_INPUT = 2
NEAR = 0.72
"""How alike a flag must be to be offered (difflib): a misspelling is, another word with some of the letters is not."""
KNOWN_ELSEWHERE = {
    "--context": "--max-model-len", "--context-length": "--max-model-len", "--ctx-size": "--max-model-len", "--n-ctx": "--max-model-len",
    "--max-seq-len": "--max-model-len", "--users": "--sequences", "--batch": "--sequences", "--batch-size": "--sequences",
    "--max-num-seqs": "--sequences", "--max-running-requests": "--sequences", "--max-num-batched-tokens": "--max-batched-tokens",
    "--chunked-prefill-size": "--max-batched-tokens", "--gpu-memory-utilization": "--memory-fraction",
    "--mem-fraction-static": "--memory-fraction", "--kv-cache-dtype": "--kv-dtype", "--tensor-parallel-size": "--tp",
    "--pipeline-parallel-size": "--pp", "--block-size": "--page-tokens", "--page-size": "--page-tokens", "--quantization": "--quantize",
    "--max-lora-rank": "--lora-rank", "--max-position-embeddings": "--max-model-len", "--per-device-train-batch-size": "--microbatch",
    "--micro-batch-size": "--microbatch", "--gpu": "--gpus", "--dtype": "--precision",
}  # fmt: skip
"""What other programs, and other commands of this one, call a flag."""
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
    if KNOWN_ELSEWHERE.get(option) in known:
        return _usage(f"{option}: is not a flag of this command", f"{KNOWN_ELSEWHERE[option]} says it here")
    near = difflib.get_close_matches(option, known, n=1, cutoff=NEAR)
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
    for part in _wrapped(line):
        print(part.encode(encoding, "replace").decode(encoding), file=sys.stderr)


def _wrapped(line: str) -> list[str]:
    """As wide as the screen; what goes into a file or a program stays one line, so that it can be searched."""
    if not (sys.stderr.isatty() or os.environ.get("COLUMNS")):
        return [line]
    before = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, screen.width(), subsequent_indent=before, break_long_words=False, break_on_hyphens=False) or [line]
