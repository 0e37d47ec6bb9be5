"""`memsheet infer`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from memsheet import api
from memsheet.cli.flags import JobFlags, ModelName, OutputFlags, PlanFlags
from memsheet.cli.job import run


def infer(
    model: ModelName = None,
    /,
    *,
    job: Annotated[JobFlags | None, Parameter(name="*")] = None,
    plan: Annotated[PlanFlags | None, Parameter(name="*")] = None,
    output: Annotated[OutputFlags | None, Parameter(name="*")] = None,
) -> int:
    """Does this model fit for inference, and how much cache is left?"""
    return run(api.infer, model, plan, job, output)
