"""A search where a library keeps more on each card than a plan's sheet holds."""

from __future__ import annotations

from dataclasses import replace

from memsheet.budget import Beside, Result, verdict_with_extra_bytes
from memsheet.plan.device import Cluster
from memsheet.search.advice import Advice
from memsheet.search.train.rank import Ranking
from memsheet.search.train.timed import Planned


def doubted_advice(advice: Advice, beside: Beside) -> Advice:
    """The same of the plans that are still sure to fit; what was said of a best plan that is not is left out."""
    ranking = doubted_plans(advice.ranking, beside)
    found = replace(advice, ranking=ranking, batches=tuple(_doubted_batch(swept, ranking.cluster, beside) for swept in advice.batches))
    same = [plans[:1] for plans in (ranking.plans, advice.ranking.plans)]
    return found if same[0] == same[1] else replace(found, story=(), undone=(), replicas=None)


def _doubted_batch(
    swept: tuple[int, Planned | None, Result | None], cluster: Cluster, beside: Beside
) -> tuple[int, Planned | None, Result | None]:
    size, best, _ = swept
    return swept if best is None or _surely_fitting_plans((best,), cluster, beside) else (size, None, Result.UNCERTAIN)


def doubted_plans(ranking: Ranking, beside: Beside) -> Ranking:
    """The ranking where a library keeps more on each card than a plan's sheet holds: what is not sure to fit then is no plan that fits."""
    cluster = ranking.cluster
    plans, replicas, engines = (
        _surely_fitting_plans(found, cluster, beside) for found in (ranking.plans, ranking.replicas, ranking.by_engine)
    )
    unsure = () if plans else tuple(_doubted_plan(planned, cluster, beside) for planned in (*ranking.plans, *ranking.unsure))
    least = _doubted_plan(ranking.least, cluster, beside) if ranking.least else None
    return replace(ranking, plans=plans, unsure=unsure, least=unsure[0] if unsure else least, replicas=replicas, by_engine=engines)


def _surely_fitting_plans(found: tuple[Planned, ...], cluster: Cluster, beside: Beside) -> tuple[Planned, ...]:
    return tuple(planned for planned in found if _doubted_plan(planned, cluster, beside).verdict.result is Result.FITS)


def _doubted_plan(planned: Planned, cluster: Cluster, beside: Beside) -> Planned:
    tried = planned.tried
    return replace(
        planned, tried=replace(tried, verdict=verdict_with_extra_bytes(tried.verdict, cluster, *beside(tried.model, tried.plan)))
    )
