"""`memsheet infer`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from memsheet import api
from memsheet.budget import Answer
from memsheet.cli.flags import SERVING, JobFlags, ModelName, OutputFlags, PlanFlags
from memsheet.cli.job import run

Lengths = Annotated[
    str | None,
    Parameter(help="A file of requests, tokens of the prompt and of the answer a line: 1200,300.", group=SERVING, metavar="FILE"),
]


def infer(
    model: ModelName = None,
    /,
    *,
    lengths: Lengths = None,
    job: Annotated[JobFlags | None, Parameter(name="*")] = None,
    plan: Annotated[PlanFlags | None, Parameter(name="*")] = None,
    output: Annotated[OutputFlags | None, Parameter(name="*")] = None,
) -> int:
    """Does this model fit for inference, and how much cache is left?"""
    if lengths is None:
        return run(api.infer, model, plan, job, output)
    from memsheet.readers.request_lengths import read_lengths

    requests = read_lengths(Path(lengths))
    return run(lambda *named, **asked: _mixed(api.infer(*named, **asked), requests), model, plan, job, output)


def _mixed(answer: Answer, requests: tuple[tuple[int, int], ...]) -> Answer:
    """The answer with how many of the file's requests run at once. Raises InputError where the engine has no pool, or a request is too long."""
    from memsheet.engines import engine_of
    from memsheet.errors import refuse
    from memsheet.formulas.serving.mixture import mixture
    from memsheet.formulas.serving.servers import server_of

    plan, longest = answer.plan, max(prompt + output for prompt, output in requests)
    room: Any = getattr(server_of(engine_of(plan)), "room", None)
    if room is None:
        raise refuse(
            "lengths", None, f"is for servers with a pool of pages, which {plan.engine} has not", "--engine vllm or --engine sglang"
        )
    if plan.max_model_len is not None and longest > plan.max_model_len:
        raise refuse(
            "lengths", longest, f"is the longest request and exceeds max_model_len {plan.max_model_len}", "a longer --max-model-len"
        )
    found = mixture(room(answer.model, plan, answer.cluster), requests, int(plan.max_sequences or 1))
    return replace(answer, serving={**(answer.serving or {}), "lengths": found})
