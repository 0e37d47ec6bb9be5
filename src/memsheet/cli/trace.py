"""`memsheet trace`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from memsheet.budget import Answer
from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.flags import Debug, JobFlags, Json, ModelName, PlanFlags, _output, whole
from memsheet.errors import refuse
from memsheet.report.files import write_events
from memsheet.report.picture import check, draw
from memsheet.report.sparkline import sparkline
from memsheet.report.viewer import write_snapshot
from memsheet.timeline import Timeline, peak
from memsheet.tracing import CACHES, Options, trace_file
from memsheet.tracing import trace as ask
from memsheet.units import parse_bytes

TRACE = Group("Trace", sort_key=8)


def _trace(words: str, metavar: str = "", **more: Any) -> Parameter:
    return Parameter(help=words, group=TRACE, metavar=metavar or None, show_default=False, **more)


@dataclass(frozen=True, kw_only=True)
class TraceFlags:
    """How the trace is made and what is written."""

    device: Annotated[str, _trace("cuda as on a GPU (none is needed), or cpu.", "cuda|cpu")] = "cuda"
    scratch: Annotated[bool, _trace("Count what CUDA kernels allocate inside an operation.")] = True
    full: Annotated[bool, _trace("Run every layer instead of repeating one of each kind, and show every item.", negative="")] = False
    cache: Annotated[str | None, _trace("Which cache generates: as --kv-dtype asks without it.", "|".join(CACHES))] = None
    rank: Annotated[str, _trace("The rank that is traced.", "N")] = "0"
    all_stages: Annotated[bool, _trace("Trace a rank of each pipeline stage.", negative="")] = False
    picture: Annotated[str | None, _trace("Memory over the step, as .svg or .png.", "FILE")] = None
    events: Annotated[str | None, _trace("Every allocation and release (memsheet/events/1).", "FILE")] = None
    snapshot: Annotated[str | None, _trace("The same for PyTorch's memory viewer.", "FILE")] = None
    memory_limit: Annotated[str, _trace("Real memory that the trace may take.", "SIZE")] = "4GiB"
    time_limit: Annotated[str, _trace("Seconds that it may take.", "S")] = "600"


def trace(
    model: ModelName = None,
    /,
    *,
    job: Annotated[JobFlags | None, Parameter(name="*")] = None,
    plan: Annotated[PlanFlags | None, Parameter(name="*")] = None,
    flags: Annotated[TraceFlags | None, Parameter(name="*")] = None,
    json: Json = False,
    units: Annotated[str, _output("GiB, or GB for decimal.", metavar="UNIT")] = "GiB",
    debug: Debug = False,
) -> int:
    """What does the real code allocate? Run on fake tensors, no GPU."""
    flags = flags or TraceFlags()
    _check(flags)
    decimal = screen.decimal(units)
    answer, timelines = _answered(model, plan, job or JobFlags(), _options(flags, debug=debug))
    _write(flags, answer, timelines, decimal=decimal)
    return jobs.shown(answer, json=json, full=flags.full, decimal=decimal, curve=partial(sparkline, _worst(timelines)))


def _check(flags: TraceFlags) -> None:
    """That files can be written, before anything is run for them."""
    if flags.picture:
        check(Path(flags.picture))
    for field in ("picture", "events", "snapshot"):
        name = getattr(flags, field)
        if name and not Path(name).parent.is_dir():
            raise refuse(field, name, "is in a folder that does not exist", "make the folder first")
        if name and Path(name).is_dir():
            raise refuse(field, name, "is a folder", "name a file in it")


def _answered(model: str | None, plan: Any, job: JobFlags, how: Options) -> Any:
    """A person's own step by its file, or a model by its name."""
    asked, own = jobs.runnable(model, plan, job)
    if not own:
        return ask(asked.pop("model"), how, **asked)
    for field, value in (("rank", how.rank or None), ("all_stages", how.all_stages or None), ("cache", how.cache)):
        if value is not None:
            raise refuse(field, value, "has no meaning for a step of one's own", "leave it out")
    return trace_file(asked["model"], how)


def _options(flags: TraceFlags, *, debug: bool) -> Options:
    if flags.device not in ("cuda", "cpu"):
        raise refuse("device", flags.device, "is not traced", "cuda or cpu")
    rank, seconds = whole(flags.rank), jobs.number("time_limit", flags.time_limit)
    if isinstance(rank, str) or rank < 0:
        raise refuse("rank", flags.rank, "is not a whole number from 0")
    return Options(
        device=flags.device, scratch=flags.scratch and flags.device == "cuda", full=flags.full, rank=rank, all_stages=flags.all_stages,
        cache=flags.cache, memory_bytes=parse_bytes(flags.memory_limit, "memory_limit"), time_s=float(seconds or 0), debug=debug,
    )  # fmt: skip


def _worst(timelines: tuple[Timeline, ...]) -> Timeline:
    return max(timelines, key=lambda each: peak(each).bytes)


def _write(flags: TraceFlags, answer: Answer, timelines: tuple[Timeline, ...], *, decimal: bool) -> None:
    """Files that were asked for, of the rank with the largest peak."""
    timeline = _worst(timelines)
    if flags.picture:
        room = answer.cluster.device.framework_bytes if answer.cluster else None
        draw(timeline, Path(flags.picture), title=f"{answer.plan.task} {answer.model.name}", capacity_bytes=room, decimal=decimal)
    if flags.events:
        write_events(timeline, Path(flags.events))
    if flags.snapshot:
        write_snapshot(timeline, Path(flags.snapshot))
