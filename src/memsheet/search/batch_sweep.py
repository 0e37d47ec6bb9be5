"""A plan whose global batch nobody says: the best of a few sizes, so many sequences a GPU each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.model import ModelSpec
from memsheet.search.advice import METHODS, Advice, training_advice
from memsheet.search.train.rank import fastest_fitting_plan
from memsheet.search.train.space import Request
from memsheet.search.train.timed import Planned, Scaled

USUAL_LENGTH = 4096
"""Tokens of a sequence where none is said: what Llama 2 was trained on (arXiv:2307.09288)."""
SEQUENCES_A_GPU = (1, 4, 16)
SHOWN = 4
"""The size that the rest of the answer is about."""


def with_length(model: ModelSpec, request: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The request with a usual length where it says none, and that one was taken."""
    if request.get("seq_len") is not None:
        return request, ()
    length = min(USUAL_LENGTH, model.max_positions or USUAL_LENGTH)
    return {**request, "seq_len": length}, (f"assumed: seq_len = {length}, which nobody said (--seq-len)",)


def advise_on_batches(
    model: ModelSpec,
    cluster: Cluster,
    request: Request,
    engines: Iterable[str],
    *,
    top: int,
    method: str,
    scaled: Scaled,
) -> Advice:
    """What to do at one batch, and the best plan of the others beside it. Raises InputError as
    ``training_advice`` does.
    """
    names, shown = tuple(engines), SHOWN * cluster.count
    advice = training_advice(
        model, cluster, {**request, "global_batch": shown}, names, top=top, method=method, scaled=scaled
    )
    asked = {**METHODS[method], **{key: value for key, value in request.items() if value is not None}}
    swept: list[tuple[int, Planned | None, Result | None]] = []
    for batch in (each * cluster.count for each in SEQUENCES_A_GPU):
        try:
            if batch == shown:
                best, result = next(iter(advice.ranking.plans), None), advice.ranking.result
            else:
                request_there = {**asked, "global_batch": batch}
                best, result, _ = fastest_fitting_plan(model, cluster, request_there, names, scaled)
        except InputError:  # no plan is legal at that size
            continue
        swept.append((batch, best, result))
    said = (
        f"assumed: global_batch = {shown}, {SHOWN} sequences a GPU, which nobody said "
        "(--global-batch); other sizes stand beside it"
    )
    return replace(
        advice, batches=tuple(swept), ranking=replace(advice.ranking, notes=(said, *advice.ranking.notes))
    )
