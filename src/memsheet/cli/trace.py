"""`memsheet trace`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from memsheet.budget import Answer
from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import refuse
from memsheet.plan.values import whole
from memsheet.questions.traced import Options, trace_file
from memsheet.questions.traced import trace as ask
from memsheet.report.chart.timeline import check, draw
from memsheet.report.json.memory_viewer import write_snapshot
from memsheet.report.screen.sparkline import sparkline
from memsheet.report.shared.files import check_file, write_events
from memsheet.timeline import Timeline, peak
from memsheet.units import parse_bytes


def trace(flags: Given) -> int:
    """What does the real code allocate? Run on fake tensors, no GPU."""
    _check(flags)
    decimal = screen.decimal(flags.units)
    answer, timelines = _answered(flags, _options(flags))
    _write(flags, answer, timelines, decimal=decimal)
    return jobs.shown(answer, json=flags.json, full=flags.full, decimal=decimal, curve=partial(sparkline, _worst(timelines)))


def _check(flags: Given) -> None:
    """That files can be written, before anything is run for them."""
    if flags.picture:
        check(Path(flags.picture))
    for field in ("picture", "events", "snapshot"):
        if name := getattr(flags, field):
            check_file(Path(name), field)


def _answered(flags: Given, how: Options) -> Any:
    """A person's own step by its file, or a model by its name."""
    asked, own = jobs.runnable(flags)
    if not own:
        return ask(asked.pop("model"), how, **asked)
    for field, value in (("rank", how.rank or None), ("all_stages", how.all_stages or None), ("cache", how.cache)):
        if value is not None:
            raise refuse(field, value, "has no meaning for a step of one's own", "leave it out")
    return trace_file(asked["model"], how)


def _options(flags: Given) -> Options:
    if flags.device not in ("cuda", "cpu"):
        raise refuse("device", flags.device, "is not traced", "cuda or cpu")
    rank, seconds = whole(flags.rank), jobs.number("time_limit", flags.time_limit)
    if isinstance(rank, str) or rank < 0:
        raise refuse("rank", flags.rank, "is not a whole number from 0")
    return Options(
        device=flags.device, scratch=flags.scratch and flags.device == "cuda", full=flags.full, rank=rank, all_stages=flags.all_stages,
        cache=flags.cache, memory_bytes=parse_bytes(flags.memory_limit, "memory_limit"), time_s=float(seconds or 0), debug=flags.debug,
    )  # fmt: skip


def _worst(timelines: tuple[Timeline, ...]) -> Timeline:
    return max(timelines, key=lambda each: peak(each).bytes)


def _write(flags: Given, answer: Answer, timelines: tuple[Timeline, ...], *, decimal: bool) -> None:
    """Files that were asked for, of the rank with the largest peak."""
    timeline = _worst(timelines)
    if flags.picture:
        room = answer.cluster.device.framework_bytes if answer.cluster else None
        draw(timeline, Path(flags.picture), title=f"{answer.plan.task} {answer.model.name}", capacity_bytes=room, decimal=decimal)
    if flags.events:
        write_events(timeline, Path(flags.events))
    if flags.snapshot:
        write_snapshot(timeline, Path(flags.snapshot))
