"""A search where a library keeps more on each card than a plan's sheet holds."""

from __future__ import annotations

from memsheet.budget import LibraryUse, Result, verdict_with_extra_bytes
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.search.advice import Advice
from memsheet.search.train.rank import Ranking
from memsheet.search.train.timed import Planned


def doubted_advice(advice: Advice, library: LibraryUse) -> Advice:
    """The same of the plans that are still sure to fit; what was said of a best plan that is not is left
    out.
    """
    ranking = doubted_plans(advice.ranking, library)
    found = replace(
        advice,
        ranking=ranking,
        batches=tuple(_doubted_batch(swept, ranking.cluster, library) for swept in advice.batches),
    )
    same = [plans[:1] for plans in (ranking.plans, advice.ranking.plans)]
    return found if same[0] == same[1] else replace(found, story=(), undone=(), replicas=None)


def _doubted_batch(
    swept: tuple[int, Planned | None, Result | None], cluster: Cluster, library: LibraryUse
) -> tuple[int, Planned | None, Result | None]:
    size, best, _ = swept
    return (
        swept
        if best is None or _surely_fitting_plans((best,), cluster, library)
        else (size, None, Result.UNCERTAIN)
    )


def doubted_plans(ranking: Ranking, library: LibraryUse) -> Ranking:
    """The ranking where a library keeps more on each card than a plan's sheet holds: what is not sure to fit
    then is no plan that fits.
    """
    cluster = ranking.cluster
    plans, replicas, engines = (
        _surely_fitting_plans(found, cluster, library)
        for found in (ranking.plans, ranking.replicas, ranking.by_engine)
    )
    unsure = (
        ()
        if plans
        else tuple(_doubted_plan(planned, cluster, library) for planned in (*ranking.plans, *ranking.unsure))
    )
    least = _doubted_plan(ranking.least, cluster, library) if ranking.least else None
    return replace(
        ranking,
        plans=plans,
        unsure=unsure,
        least=unsure[0] if unsure else least,
        replicas=replicas,
        by_engine=engines,
    )


def _surely_fitting_plans(
    found: tuple[Planned, ...], cluster: Cluster, library: LibraryUse
) -> tuple[Planned, ...]:
    return tuple(
        planned for planned in found if _doubted_plan(planned, cluster, library).verdict.result is Result.FITS
    )


def _doubted_plan(planned: Planned, cluster: Cluster, library: LibraryUse) -> Planned:
    tried = planned.tried
    return replace(
        planned,
        tried=replace(
            tried,
            verdict=verdict_with_extra_bytes(
                tried.verdict, cluster, *library.extra_bytes(tried.model, tried.plan)
            ),
        ),
    )
