"""`memsheet export`."""

from __future__ import annotations

import sys
from pathlib import Path

from memsheet.cli import question as jobs
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import input_error
from memsheet.questions.export import exported_files, write_files


def export(line: Given) -> int:
    """Write a plan as the configuration of the engine that runs it."""
    names = [name.strip() for name in line.to.split(",") if name.strip()]
    exported = exported_files(jobs.read_plan(line.plan), names, jobs.parse_positive_int("pick", line.pick))
    for note in exported.notes:
        print(f"note: {note}", file=sys.stderr)
    if line.out is None:
        if len(exported.formats) != 1:
            raise input_error("to", line.to, "are several files", "name a folder for them: --out run/")
        screen.write_stdout(exported.files[exported.formats[0].file])
        return 0
    write_files(exported.files, Path(line.out), force=line.force)
    for name in exported.files:
        screen.write_stdout(f"{Path(line.out) / name}\n")
    return 0
