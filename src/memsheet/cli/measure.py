"""`memsheet measure`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from memsheet.budget import Answer
from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.flags import Debug, JobFlags, Json, ModelName, PlanFlags, _output
from memsheet.cli.progress import line
from memsheet.cli.voice import one_voice
from memsheet.errors import printable
from memsheet.measuring import STEPS, VARIED_STEPS, Options, asked_of, config_of, measure_file
from memsheet.measuring import measure as ask
from memsheet.report.files import check_file
from memsheet.report.record import record_document, write_events_beside, write_record
from memsheet.report.sparkline import sparkline
from memsheet.timeline import Timeline

MEASURE = Group("Measure", sort_key=8)
WRITTEN = ("record", "events", "snapshot")


def _measure(words: str, metavar: str = "", **more: Any) -> Parameter:
    return Parameter(help=words, group=MEASURE, metavar=metavar or None, show_default=False, **more)


@dataclass(frozen=True, kw_only=True)
class MeasureFlags:
    """On what a step is run, and how often."""

    device: Annotated[str, _measure("This machine's processor, or its GPU.", "cpu|cuda")] = "cpu"
    steps: Annotated[str | None, _measure(f"Steps that are timed: {STEPS}, or {VARIED_STEPS} of varied lengths.", "N")] = None
    vary_length: Annotated[bool, _measure("Vary the length from step to step, and watch what is reserved.", negative="")] = False
    data: Annotated[str | None, _measure("A text file to train on, its bytes as tokens; else random ones.", "FILE")] = None
    record: Annotated[str | None, _measure("Write a record (memsheet/record/1).", "FILE")] = None
    events: Annotated[str | None, _measure("Every allocation and release (memsheet/events/1; .gz is compressed).", "FILE")] = None
    snapshot: Annotated[str | None, _measure("The GPU allocator's own history of two steps, as JSON.", "FILE")] = None
    memory_limit: Annotated[str | None, _measure("Memory that it may take (what is free, 64GiB at most).", "SIZE")] = None
    time_limit: Annotated[str, _measure("Seconds that it may take.", "S")] = "600"


@one_voice
def measure(
    model: ModelName = None,
    /,
    *,
    job: Annotated[JobFlags | None, Parameter(name="*")] = None,
    plan: Annotated[PlanFlags | None, Parameter(name="*")] = None,
    flags: Annotated[MeasureFlags | None, Parameter(name="*")] = None,
    json: Json = False,
    full: Annotated[bool, _output("Every item.")] = False,
    units: Annotated[str, _output("GiB, or GB for decimal.", metavar="UNIT")] = "GiB",
    debug: Debug = False,
) -> int:
    """What does a real step allocate on this machine?"""
    flags, decimal = flags or MeasureFlags(), screen.decimal(units)
    asked, own = jobs.runnable(model, plan, job or JobFlags())
    for field in WRITTEN:
        if file := getattr(flags, field):
            check_file(Path(file), field)
    name = asked.pop("model")
    with line(f"measuring {printable(name or 'a plan')} on {flags.device}") as progress:
        how = Options(
            device=flags.device, steps=jobs.number("steps", flags.steps), data=flags.data, vary_length=flags.vary_length,
            snapshot=flags.snapshot and os.path.realpath(flags.snapshot), progress=progress, debug=debug, memory_bytes=jobs.size("memory_limit", flags.memory_limit),
            time_s=float(jobs.number("time_limit", flags.time_limit) or 0),
        )  # fmt: skip
        answer, timeline = measure_file(name, how) if own else ask(name, how, **asked)
    _write(flags, answer, timeline, {**asked, "model": name, **asked_of(how), "config": None if own else config_of(name, answer)})
    curve = None if "died" in (answer.trace or {}) else partial(sparkline, timeline)
    return jobs.shown(answer, json=json, full=full, decimal=decimal, curve=curve)


def _write(flags: MeasureFlags, answer: Answer, timeline: Timeline, asked: Mapping[str, Any]) -> None:
    """Files that were asked for; the GPU's history is there already."""
    if flags.events:
        write_events_beside(timeline, Path(flags.events))
    if flags.record:
        files = {field: Path(name).name for field in ("events", "snapshot") if (name := getattr(flags, field))}
        write_record(record_document(answer, asked=asked, files=files), Path(flags.record))
