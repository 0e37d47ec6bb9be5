"""`memsheet trace`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from memsheet.allocator.settings import Settings
from memsheet.budget import Answer
from memsheet.cli import question as jobs
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import input_error
from memsheet.plan.values import parse_whole_number
from memsheet.questions.traced import Options, trace_file
from memsheet.questions.traced import trace_with_timelines as ask
from memsheet.report.chart.timeline import check_picture_format, draw_timeline
from memsheet.report.json.memory_viewer import write_snapshot
from memsheet.report.screen.sparkline import render_sparkline
from memsheet.report.shared.files import check_file, write_events
from memsheet.timeline import Timeline, highest_peak
from memsheet.units import parse_bytes


def trace(flags: Given) -> int:
    """What does the real code allocate? Run on fake tensors, no GPU."""
    _check_trace_files(flags)
    decimal = screen.wants_decimal_units(flags.units)
    answer, timelines = _trace_answer(flags, _trace_options(flags))
    _write_trace_files(flags, answer, timelines, decimal=decimal)
    return jobs.print_answer(
        answer,
        json=flags.json,
        full=flags.full,
        decimal=decimal,
        curve=partial(render_sparkline, _largest_peak_timeline(timelines)),
    )


def _check_trace_files(flags: Given) -> None:
    """That files can be written, before anything is run for them."""
    if flags.picture:
        check_picture_format(Path(flags.picture))
    if flags.capacity is not None and not flags.snapshot:
        raise input_error("capacity", flags.capacity, "says nothing without --snapshot", "--snapshot FILE")
    for field in ("picture", "events", "snapshot"):
        if name := getattr(flags, field):
            check_file(Path(name), field)


def _trace_answer(flags: Given, how: Options) -> Any:
    """A person's own step by its file, or a model by its name."""
    asked, own = jobs.runnable_job_arguments(flags)
    if not own:
        return ask(asked.pop("model"), how, **asked)
    for field, value in (
        ("rank", how.rank or None),
        ("all_stages", how.all_stages or None),
        ("cache", how.cache),
    ):
        if value is not None:
            raise input_error(field, value, "has no meaning for a step of one's own", "leave it out")
    return trace_file(asked["model"], how)


def _trace_options(flags: Given) -> Options:
    if flags.device not in ("cuda", "cpu"):
        raise input_error("device", flags.device, "is not traced", "cuda or cpu")
    rank, seconds = parse_whole_number(flags.rank), jobs.parse_positive_int("time_limit", flags.time_limit)
    if isinstance(rank, str) or rank < 0:
        raise input_error("rank", flags.rank, "is not a whole number from 0")
    return Options(
        device=flags.device,
        scratch=flags.scratch and flags.device == "cuda",
        full=flags.full,
        rank=rank,
        all_stages=flags.all_stages,
        cache=flags.cache,
        memory_bytes=parse_bytes(flags.memory_limit, "memory_limit"),
        time_s=float(seconds or 0),
        debug=flags.debug,
        fresh=flags.fresh,
    )


def _largest_peak_timeline(timelines: tuple[Timeline, ...]) -> Timeline:
    return max(timelines, key=lambda each: highest_peak(each).bytes)


def _write_trace_files(
    flags: Given, answer: Answer, timelines: tuple[Timeline, ...], *, decimal: bool
) -> None:
    """Files that were asked for, of the rank with the largest peak."""
    timeline = _largest_peak_timeline(timelines)
    if flags.picture:
        room = answer.cluster.device.framework_bytes if answer.cluster else None
        draw_timeline(
            timeline,
            Path(flags.picture),
            title=f"{answer.plan.task} {answer.model.name}",
            capacity_bytes=room,
            decimal=decimal,
        )
    if flags.events:
        write_events(timeline, Path(flags.events))
    if flags.snapshot:
        settings = Settings(expandable_segments=answer.plan.expandable_segments)
        write_snapshot(
            timeline, Path(flags.snapshot), "snapshot", settings, _allocator_capacity(flags, answer)
        )


def _allocator_capacity(flags: Given, answer: Answer) -> int | None:
    """What a snapshot's allocator gets: as said, or what the device leaves it; None where there is no end."""
    if flags.capacity is not None:
        return parse_bytes(flags.capacity, "capacity")
    if answer.cluster is None:
        return None
    worst = max(answer.sheets, key=lambda sheet: sheet.device.value)
    outside = int(worst.device.value) - int(worst.reserved.value)
    return max(0, int(answer.cluster.device.framework_bytes) - outside)
