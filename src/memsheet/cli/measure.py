"""`memsheet measure`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from cyclopts import Group, Parameter

from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.flags import Debug, JobFlags, Json, ModelName, PlanFlags, _output
from memsheet.errors import refuse
from memsheet.measuring import STEPS, Options
from memsheet.measuring import measure as ask
from memsheet.report.sparkline import sparkline
from memsheet.units import parse_bytes

MEASURE = Group("Measure", sort_key=8)


def _measure(words: str, metavar: str = "") -> Parameter:
    return Parameter(help=words, group=MEASURE, metavar=metavar or None, show_default=False)


@dataclass(frozen=True, kw_only=True)
class MeasureFlags:
    """On what a step is run, and how often."""

    device: Annotated[str, _measure("This machine's processor, or its GPU.", "cpu|cuda")] = "cpu"
    steps: Annotated[str, _measure("Steps that are timed.", "N")] = str(STEPS)
    memory_limit: Annotated[str, _measure("Memory that it may take.", "SIZE")] = "64GiB"
    time_limit: Annotated[str, _measure("Seconds that it may take.", "S")] = "600"


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
    asked: dict[str, Any] = jobs.question(model, plan, job or JobFlags())
    if asked.pop("parameters", None) is not None:
        raise refuse("parameters", None, "says nothing that could be run", "name a model")
    how = Options(
        device=flags.device, steps=jobs.number("steps", flags.steps) or STEPS, debug=debug,
        memory_bytes=parse_bytes(flags.memory_limit, "memory_limit"), time_s=float(jobs.number("time_limit", flags.time_limit) or 0),
    )  # fmt: skip
    answer, timeline = ask(asked.pop("model"), how, **asked)
    return jobs.shown(answer, json=json, full=full, decimal=decimal, curve=partial(sparkline, timeline))
