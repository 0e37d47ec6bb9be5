"""`memsheet train`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from memsheet import api
from memsheet.cli.flags import JobFlags, ModelName, OutputFlags, PlanFlags
from memsheet.cli.job import run


def train(
    model: ModelName = None,
    /,
    *,
    job: Annotated[JobFlags | None, Parameter(name="*")] = None,
    plan: Annotated[PlanFlags | None, Parameter(name="*")] = None,
    output: Annotated[OutputFlags | None, Parameter(name="*")] = None,
) -> int:
    """Does this training job fit, and what takes the room?"""
    return run(api.train, model, plan, job, output)
