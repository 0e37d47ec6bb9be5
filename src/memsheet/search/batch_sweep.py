"""A plan whose global batch nobody says: the best of a few sizes, so many sequences a GPU each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.model import ModelSpec
from memsheet.search.advice import Advice, method_request, training_advice
from memsheet.search.train.rank import fastest_fitting_plan, search_global_batches
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
    others = [each * cluster.count for each in SEQUENCES_A_GPU if each != SHOWN]
    first, *further = search_global_batches(
        model, cluster, method_request(method, request), names, scaled, (shown, *others), tells=True
    )
    advice = training_advice(
        model,
        cluster,
        {**request, "global_batch": shown},
        names,
        top=top,
        method=method,
        scaled=scaled,
        searched=first,
    )
    swept: list[tuple[int, Planned | None, Result | None]] = [
        (shown, next(iter(advice.ranking.plans), None), advice.ranking.result)
    ]
    for batch, searched in zip(others, further, strict=True):
        try:
            best, result, _ = fastest_fitting_plan(searched, cluster)
        except InputError:  # no plan is legal at that size
            continue
        swept.append((batch, best, result))
    swept.sort(key=lambda one: one[0])
    said = (
        f"assumed: global_batch = {shown}, {SHOWN} sequences a GPU, which nobody said "
        "(--global-batch); other sizes stand beside it"
    )
    return replace(
        advice, batches=tuple(swept), ranking=replace(advice.ranking, notes=(said, *advice.ranking.notes))
    )
