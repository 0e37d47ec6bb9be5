"""`memsheet verify`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from memsheet.cli import question as jobs
from memsheet.cli import screen
from memsheet.cli.first_rank import one_voice
from memsheet.cli.line import Given
from memsheet.errors import input_error
from memsheet.questions.verification.ladder import Options
from memsheet.report.json.record import write_record
from memsheet.report.shared.files import check_folder

if TYPE_CHECKING:
    from memsheet.report.shared.verification import Verification

AGREES, DIFFERS, NOT_COMPARED = 0, 10, 11


@one_voice
def verify(line: Given) -> int:
    """Predicted, traced and measured side by side: a plan run as far as this machine can."""
    from memsheet.questions.verification.ladder import run_verification_ladder as ask
    from memsheet.report.shared.verification import verification_document

    decimal = screen.wants_decimal_units(line.units)
    how = Options(
        device=line.device,
        processes=jobs.parse_positive_int("processes", line.processes) or 1,
        steps=jobs.parse_positive_int("steps", line.steps) or 1,
        operations=_parse_positive_float("operations", line.operations),
        memory_bytes=jobs.parse_nonzero_bytes("memory_limit", line.memory_limit),
        time_s=_parse_positive_float("time_limit", line.time_limit),
        slurm=line.slurm,
        per_node=jobs.parse_positive_int("per_node", line.per_node) or 1,
        say=_show_rung_progress,
    )
    asked = jobs.read_plan(line.plan)
    check_folder(Path(line.records), "records")
    found = ask(asked, how, model=line.model)
    _show_rung_progress("")
    _write_run_files(found, Path(line.records), Path(line.plan).stem if line.plan != "-" else found.model)
    if line.json:
        screen.write_json(verification_document(found))
    else:
        from memsheet.report.screen.verification_table import render_verification

        look = screen.terminal_look(decimal=decimal, full=line.full)
        screen.write_stdout(render_verification(found, look))
    if found.worst is not None and not found.holds:
        return DIFFERS
    return AGREES if found.measured and not found.failed else NOT_COMPARED


def _parse_positive_float(field: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise input_error(field, text, "is not a positive number")
    return found


def _show_rung_progress(words: str) -> None:
    """One line on stderr that the next one overwrites, where a person looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{words}{' …' * bool(words)}", end="", file=sys.stderr, flush=True)


def _write_run_files(found: Verification, folder: Path, name: str) -> None:
    """A file for each real run."""
    for rung in found.rungs:
        if rung.record is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise input_error("records", str(folder), f"cannot be made: {error.strerror}") from None
            file = folder / f"{name}-{re.sub('[^a-z0-9]+', '-', rung.name)}.json"
            write_record(rung.record, file)
            print(f"record: {file}", file=sys.stderr)
