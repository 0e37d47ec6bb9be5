"""`memsheet measure`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from memsheet.budget import Answer
from memsheet.cli import question as jobs
from memsheet.cli import screen
from memsheet.cli.first_rank import one_voice
from memsheet.cli.line import Given
from memsheet.cli.progress import file_progress_line
from memsheet.errors import printable_line
from memsheet.questions.measured import Options, config_of, measure_file, recorded_options
from memsheet.questions.measured import measure_with_timeline as ask
from memsheet.report.json.record import record_document, write_events_beside, write_record
from memsheet.report.screen.sparkline import render_sparkline
from memsheet.report.shared.files import check_file
from memsheet.timeline import Timeline

WRITTEN = ("record", "events", "snapshot")


@one_voice
def measure(flags: Given) -> int:
    """What does a real step allocate on this machine?"""
    decimal, (asked, own) = screen.wants_decimal_units(flags.units), jobs.runnable_job_arguments(flags)
    for field in WRITTEN:
        if file := getattr(flags, field):
            check_file(Path(file), field)
    name = asked.pop("model")
    with file_progress_line(f"measuring {printable_line(name or 'a plan')} on {flags.device}") as progress:
        how = Options(
            device=flags.device,
            steps=jobs.parse_positive_int("steps", flags.steps),
            data=flags.data,
            vary_length=flags.vary_length,
            snapshot=flags.snapshot and os.path.realpath(flags.snapshot),
            progress=progress,
            debug=flags.debug,
            memory_bytes=jobs.parse_nonzero_bytes("memory_limit", flags.memory_limit),
            time_s=float(jobs.parse_positive_int("time_limit", flags.time_limit) or 0),
        )
        answer, timeline = measure_file(name, how) if own else ask(name, how, **asked)
    _write_measured_files(
        flags,
        answer,
        timeline,
        {**asked, "model": name, **recorded_options(how), "config": None if own else config_of(name, answer)},
    )
    curve = None if "died" in (answer.trace or {}) else partial(render_sparkline, timeline)
    return jobs.print_answer(answer, json=flags.json, full=flags.full, decimal=decimal, curve=curve)


def _write_measured_files(flags: Given, answer: Answer, timeline: Timeline, asked: Mapping[str, Any]) -> None:
    """Files that were asked for; the GPU's history is there already."""
    if flags.events:
        write_events_beside(timeline, Path(flags.events))
    if flags.record:
        files = {
            field: Path(name).name for field in ("events", "snapshot") if (name := getattr(flags, field))
        }
        write_record(record_document(answer, asked=asked, files=files), Path(flags.record))
