"""`memsheet infer`."""

from __future__ import annotations

from memsheet.budget import Answer
from memsheet.cli.line import Given
from memsheet.cli.question import run_job
from memsheet.frozen import replace
from memsheet.questions import accounted


def infer(asked: Given) -> int:
    """Does this model fit for inference, and how much cache is left?"""
    if asked.lengths is None:
        return run_job(accounted.infer, asked)
    from pathlib import Path

    from memsheet.readers.request_lengths import read_lengths

    requests = read_lengths(Path(asked.lengths))
    return run_job(
        lambda *named, **options: _add_request_mix(accounted.infer(*named, **options), requests), asked
    )


def _add_request_mix(answer: Answer, requests: tuple[tuple[int, int], ...]) -> Answer:
    """The answer with how many of the file's requests run at once. Raises InputError where the engine has no
    pool, or a request is too long.
    """
    from memsheet.errors import input_error
    from memsheet.formulas.serving.mixture import request_mix_facts
    from memsheet.formulas.serving.servers import sequence_room
    from memsheet.plan.engine_registry import engine_of, pool_servers

    plan, longest = answer.plan, max(prompt + output for prompt, output in requests)
    if not engine_of(plan).serving.pools_cache:
        raise input_error(
            "lengths",
            None,
            f"is for servers with a pool of pages, which {plan.engine} has not",
            " or ".join(f"--engine {server}" for server in pool_servers()),
        )
    if plan.serving.max_model_len is not None and longest > plan.serving.max_model_len:
        raise input_error(
            "lengths",
            longest,
            f"is the longest request and exceeds max_model_len {plan.serving.max_model_len}",
            "a longer --max-model-len",
        )
    found = request_mix_facts(
        sequence_room(answer.model, plan, answer.cluster), requests, int(plan.serving.max_sequences or 1)
    )
    return replace(answer, serving={**(answer.serving or {}), "lengths": found})
