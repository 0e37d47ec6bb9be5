"""`memsheet sbatch`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from functools import partial
from typing import Any

from memsheet.budget import Result
from memsheet.cli.check import check
from memsheet.cli.commands import COMMANDS
from memsheet.cli.error_output import explain_input
from memsheet.cli.line import Given
from memsheet.errors import InputError, input_error
from memsheet.exchange.shared.sbatch_line import SbatchLine, parse_sbatch_line, script_as_submitted
from memsheet.report.shared.exit_codes import BAD_INPUT, EXIT

SUBMITS = "sbatch"


def sbatch(asked: Given) -> int:
    """The script checked as it would run, on stderr; and submitted unless it is sure not to fit."""
    line = parse_sbatch_line(asked.line)
    program = shutil.which(SUBMITS)
    if program is None:
        raise input_error(SUBMITS, None, "is not found on this machine", f"memsheet check {line.script}")
    if not asked.anyway and (code := _check_script(line, asked)) in (BAD_INPUT, EXIT[Result.DOES_NOT_FIT]):
        return _not_submitted(code)
    sys.stderr.flush()
    return subprocess.run([program, *asked.line], check=False).returncode  # noqa: S603 - a person's own line


def _check_script(line: SbatchLine, asked: Given) -> int:
    """The exit code of `check` for the script, whose screen goes where sbatch's own output does not."""
    as_run = partial(script_as_submitted, line=line, environment=os.environ)
    with redirect_stdout(sys.stderr):
        try:
            given = {**_flags_of_check(), **vars(asked), "files": (line.script,), "command": ()}
            return check(Given(**given), as_run)
        except InputError as error:
            return explain_input(error)


def _flags_of_check() -> dict[str, Any]:
    return {flag.field: flag.default for flag in COMMANDS["check"].flags}


def _not_submitted(code: int) -> int:
    why = "it was not read" if code == BAD_INPUT else "it does not fit or start"
    sys.stderr.write(f"\nNot submitted: {why}; --anyway submits it all the same\n")
    return code
