"""`memsheet train`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from memsheet import api
from memsheet.cli.flags import JobFlags, OutputFlags, PlanFlags
from memsheet.cli.job import run


def train(
    model: str | None = None,
    /,
    *,
    job: Annotated[JobFlags | None, Parameter(name="*")] = None,
    plan: Annotated[PlanFlags | None, Parameter(name="*")] = None,
    output: Annotated[OutputFlags | None, Parameter(name="*")] = None,
) -> int:
    """Does this training job fit, and what takes the room? MODEL is a bundled name, a config.json or its folder, a .gguf or
    .safetensors file, or a hub id. Exit code: 0 fits, 10 does not fit, 11 uncertain, 2 bad input.
    """
    return run(api.train, model, plan, job, output)
