"""Plans of a routed model that only the worst routing keeps from being sure to fit: the fastest that fits
where it is as uneven as was published.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest

import numpy as np

from memsheet.account import account_rank, deciding_stages
from memsheet.budget import Result, judge_on
from memsheet.frozen import dataclass, replace
from memsheet.plan.device import Cluster
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan, Spread
from memsheet.resolve import resolve_request
from memsheet.search.train.timed import APART, Planned, Timed
from memsheet.sheet import Bytes, Sheet

TRIED = 6
"""Plans that are accounted by themselves before the search is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """A plan that may not fit, and its need, with every other doubt, where the fullest rank is given what was
    published of trained routers.
    """

    planned: Planned
    device: Bytes


def fits_uneven(timed: list[Timed], cluster: Cluster, best: Planned | None) -> Uneven | None:
    """The fastest such plan, where it is faster than ``best`` beyond what times tell apart; None of models
    whose tokens choose no experts.
    """
    before = best.seconds * (1 - APART) if best is not None else np.inf
    pairs = (
        pair
        for number, one in enumerate(timed)
        for pair in _fastest_uneven_plans(number, one)
        if pair[0] < before
    )
    for _, number, row in nsmallest(TRIED, pairs):
        one = timed[number]
        plan = resolve_request(one.request(row), one.space.model, cluster).plan
        found = _published_imbalance_bytes(one.space.model, plan, cluster)
        if found is None:
            continue
        planned = one.planned(cluster, row)
        if planned.verdict.result is Result.UNCERTAIN:
            return Uneven(planned=planned, device=found)
    return None


def _fastest_uneven_plans(number: int, one: Timed) -> Iterator[tuple[float, int, int]]:
    """Seconds of the fastest plans of a stratum that an uneven routing alone may keep from fitting."""
    for place in np.argsort(one.uneven_seconds, kind="stable")[:TRIED]:
        if np.isfinite(one.uneven_seconds[place]):
            yield float(one.uneven_seconds[place]), number, int(one.uneven[place])


def _published_imbalance_bytes(model: ModelSpec, plan: Plan, cluster: Cluster) -> Bytes | None:
    """The need on the worst rank at the published imbalance; None where not even that is sure to fit, which
    the first stage tells that is not.
    """
    if plan.routing is None:
        return None
    uneven = replace(plan, routing=replace(plan.routing, spread=Spread.UNEVEN))
    sheets = list[Sheet]()
    for stage in deciding_stages(model, uneven):
        sheets.append(account_rank(model, uneven, cluster, stage, replays=True))
        if judge_on((sheets[-1],), cluster).result is not Result.FITS:
            return None
    verdict = judge_on(tuple(sheets), cluster)
    return verdict.device if verdict.result is Result.FITS else None
