"""`memsheet verify`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.flags import Debug, Json
from memsheet.cli.voice import one_voice
from memsheet.errors import refuse
from memsheet.report.files import check_folder
from memsheet.report.record import write_record
from memsheet.verify.ladder import CPU_OPERATIONS, Options

if TYPE_CHECKING:
    from memsheet.report.verification import Verification

AGREES, DIFFERS, NOT_COMPARED = 0, 10, 11


def _option(words: str, metavar: str = "") -> Parameter:
    return Parameter(help=words, metavar=metavar or None, negative="", show_default=False)


@one_voice
def verify(
    plan: Annotated[
        str, Parameter(help="A file of memsheet/plan/1 for training, or - for stdin.", metavar="PLAN", allow_leading_hyphen=True)
    ],
    /,
    *,
    model: Annotated[str | None, _option("The model, where the plan names none.", "NAME")] = None,
    device: Annotated[str, _option("This machine's processor, or its GPUs.", "cpu|cuda")] = "cpu",
    processes: Annotated[str, _option("Ranks that run at once on this machine (2).", "N")] = "2",
    steps: Annotated[str, _option("Steps that are timed on each rung (1).", "N")] = "1",
    operations: Annotated[str, _option("Floating-point operations that a processor's step may take (3e12).", "N")] = str(CPU_OPERATIONS),
    slurm: Annotated[str | None, _option("Run the whole plan too, on nodes of this Slurm partition.", "PARTITION")] = None,
    per_node: Annotated[str, _option("GPUs of one of its nodes (8).", "N")] = "8",
    memory_limit: Annotated[str | None, _option("Memory that each process may take (what is free, 64GiB at most).", "SIZE")] = None,
    time_limit: Annotated[str, _option("Seconds that each run may take.", "S")] = "600",
    records: Annotated[str, _option("Folder for a record of each real run (records).", "DIR")] = "records",
    full: Annotated[bool, _option("Every instant of every rank.")] = False,
    json: Json = False,
    units: Annotated[str, _option("GiB, or GB for decimal.", "UNIT")] = "GiB",
    debug: Debug = False,
) -> int:
    """Predicted, traced and measured side by side: a plan run as far as this machine can."""
    del debug  # read from the command line itself
    from memsheet.report.verification import verification_document
    from memsheet.verify.ladder import verify as ask

    decimal = screen.decimal(units)
    how = Options(
        device=device, processes=jobs.number("processes", processes) or 1, steps=jobs.number("steps", steps) or 1,
        operations=_positive("operations", operations), memory_bytes=jobs.size("memory_limit", memory_limit),
        time_s=_positive("time_limit", time_limit), slurm=slurm, per_node=jobs.number("per_node", per_node) or 1, say=_say,
    )  # fmt: skip
    asked = jobs.read_plan(plan)
    check_folder(Path(records), "records")
    found = ask(asked, how, model=model)
    _say("")
    _write(found, Path(records), Path(plan).stem if plan != "-" else found.model)
    if json:
        screen.write_json(verification_document(found))
    else:
        from memsheet.report.bars import Look
        from memsheet.report.verification_table import render_verification

        look = Look(width=screen.width(), decimal=decimal, full=full, colour=screen.colour(), ascii=screen.plain_ascii())
        screen.write(render_verification(found, look))
    if found.worst is not None and not found.holds:
        return DIFFERS
    return AGREES if found.measured and not found.failed else NOT_COMPARED


def _positive(field: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise refuse(field, text, "is not a positive number")
    return found


def _say(words: str) -> None:
    """One line on stderr that the next one overwrites, where a person looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{words}{' …' * bool(words)}", end="", file=sys.stderr, flush=True)


def _write(found: Verification, folder: Path, name: str) -> None:
    """A file for each real run."""
    for rung in found.rungs:
        if rung.record is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise refuse("records", str(folder), f"cannot be made: {error.strerror}") from None
            file = folder / f"{name}-{re.sub('[^a-z0-9]+', '-', rung.name)}.json"
            write_record(rung.record, file)
            print(f"record: {file}", file=sys.stderr)
