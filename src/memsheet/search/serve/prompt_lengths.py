"""How long the prompts of a batch may be where a question does not say, and whether a server that reads them
in pieces holds the same load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.plan.device import Cluster
from memsheet.plan.engine_registry import PAGED_SERVER
from memsheet.plan.model import ModelSpec
from memsheet.search.trials import Question, Trials, Tried, fitting_edge


def prompts_that_fit(model: ModelSpec, request: Mapping[str, Any], cluster: Cluster) -> Mapping[str, Any]:
    """Facts about a load whose prompts nobody described. ``prompt_tokens_that_fit``: the longest prompt with
    which the whole range fits when a batch's prompts are read at once (None where none is sure to);
    ``in_pieces``: a server with which the same load fits, where it does.

    A bracket of lengths is halved: of what serves no step is replayed, slack is a share of what is allocated,
    and a longer prompt needs more.
    """
    longest = int(request.get("serving.max_model_len") or 0)
    trials = Trials(
        values=range(1, longest + 1),
        asks=lambda tokens: _prompt_question(model, {**request, "serving.prompt_tokens": tokens}, cluster),
    )
    found = fitting_edge(trials, _prompt_spare_bytes)[0] if longest else None
    return {
        "prompt_tokens_that_fit": None if found is None else trials.values[found],
        "in_pieces": _chunked_prefill_server(model, request, cluster),
    }


def _prompt_spare_bytes(tried: Tried) -> int:
    return tried.spare_bytes


def _prompt_question(model: ModelSpec, request: Mapping[str, Any], cluster: Cluster) -> Question:
    batch = int(request.get("serving.max_sequences") or 1)  # all of which are computed at once
    return Question(model=model, request=request, cluster=cluster, at_once=batch)


def _chunked_prefill_server(model: ModelSpec, request: Mapping[str, Any], cluster: Cluster) -> str | None:
    """The name of a server that reads prompts in pieces where it is sure to hold the load. None where it is
    not, or cannot take the question.
    """
    trials = Trials(
        values=(1,), asks=lambda _: _prompt_question(model, {**request, "engine": PAGED_SERVER}, cluster)
    )
    try:
        return PAGED_SERVER if trials.at(0).verdict.result is Result.FITS else None
    except InputError:
        return None
