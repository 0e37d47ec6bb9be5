"""A plan that only the worst routing keeps from being sure to fit is named beside the best, and as what it
is.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import nsmallest

import pytest

from memsheet.account import account_rank
from memsheet.budget import Result, judge_on
from memsheet.catalog import find_device, model_names
from memsheet.plan.device import cluster_of
from memsheet.plan.plan import Spread
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import read_model
from memsheet.report.shared.plans.families import uneven_lines
from memsheet.search.train.rank import Ranking, rank_training_plans, search_engines
from memsheet.search.train.timed import APART
from memsheet.search.train.uneven_routing import (
    TRIED,
    _fastest_uneven_plans,
    _published_imbalance_bytes,
    fits_uneven,
)

CLUSTER = cluster_of(find_device("H100-80GB"), 32)


def asked(model: str, **more: object) -> Ranking:
    pinned = {
        "mesh.pp": 4,
        "mesh.vpp": 1,
        "mesh.cp": 1,
        "microbatch": 1,
        "recompute.mode": "none",
        "loss": "fused",
    }
    spec = read_model(model, catalog=catalog_entry, names=model_names())
    return rank_training_plans(
        spec, CLUSTER, {"seq_len": 4096, "global_batch": 64, **pinned, **more}, ("megatron",), top=2
    )


def test_a_plan_that_an_uneven_routing_fits_is_told_as_unsure() -> None:
    ranking = asked("qwen3-30b-a3b")
    found = ranking.uneven
    assert found is not None
    assert found.planned.verdict.result is Result.UNCERTAIN
    assert found.planned.plan.mesh.ep > 1
    assert found.planned.seconds < ranking.plans[0].seconds * (1 - APART)
    routing = found.planned.plan.routing
    assert routing is not None
    plan = replace(found.planned.plan, routing=replace(routing, spread=Spread.UNEVEN))
    sheets = tuple(
        account_rank(ranking.model, plan, CLUSTER, stage, replays=True) for stage in range(plan.mesh.pp)
    )
    assert judge_on(sheets, CLUSTER).result is Result.FITS
    assert judge_on(sheets, CLUSTER).device == found.device
    assert found.device.high < found.planned.verdict.device.high
    (line,) = uneven_lines(ranking)
    assert "1.72 times an even share" in line
    assert "2408.15664" in line
    assert all(planned.verdict.result is Result.FITS for planned in ranking.plans)


@pytest.mark.parametrize(("model", "more"), [("llama-3.1-8b", {}), ("qwen3-30b-a3b", {"moe.balanced": True})])
def test_nothing_is_said_of_dense_models_and_of_routing_that_is_even_by_decree(
    model: str, more: dict[str, object]
) -> None:
    ranking = asked(model, **more)
    assert ranking.uneven is None
    assert not list(uneven_lines(ranking))


def test_the_fastest_is_named_that_fits_when_uneven_and_may_not_at_the_worst() -> None:
    """Each of those that are tried, accounted both ways."""
    spec = read_model("gpt-oss-20b", catalog=catalog_entry, names=model_names())
    cluster = cluster_of(find_device("H100-80GB"), 8)
    request = {"seq_len": 4096, "global_batch": 64, "microbatch": 1, "mesh.pp": 1, "mesh.cp": 1}
    timed = search_engines(spec, cluster, request, ("megatron",), lambda _: None).timed
    tried = nsmallest(TRIED, [row for n, one in enumerate(timed) for row in _fastest_uneven_plans(n, one)])
    planned = [timed[number].planned(cluster, row) for _, number, row in tried]
    doubted = [one for one in planned if one.verdict.result is Result.UNCERTAIN]
    fit = [one for one in doubted if _published_imbalance_bytes(spec, one.plan, cluster)]
    assert fit
    assert fit[0].plan != planned[0].plan, "the first that is tried is none"
    found = fits_uneven(timed, cluster, None)
    assert found is not None
    assert (found.planned.plan, found.planned.verdict) == (fit[0].plan, fit[0].verdict)
