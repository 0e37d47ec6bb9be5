"""Plans by how they save memory: how many there are, the fastest of those that fit, and why the others are
not the ones to take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from memsheet.account import account_rank
from memsheet.budget import budget_of
from memsheet.formulas.step_time import step_time
from memsheet.frozen import dataclass
from memsheet.plan.device import Cluster
from memsheet.search.train.grid import one_plan
from memsheet.search.train.space import OFFLOAD, Request
from memsheet.search.train.timed import APART, Planned, Timed
from memsheet.sheet import Instant

FAMILY = ("zero", "recompute.mode", "optimizer.name", "loss", *OFFLOAD)
"""How plans save memory besides dividing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Plans of one engine that share how they save memory: how many there are and fit. Where some do, the
    fastest one's ``seconds`` (None where a step is not timed), how many more than the best plan's and on what
    most of them go; where none does, what the nearest's expected bytes lack of the card, on which rank of
    which stage, when, and what the host of a node lacks.
    """

    engine: str
    choice: Request
    plans: int
    fit: int
    seconds: float | None = None
    slower: str = ""
    slower_s: float = 0.0
    missing_bytes: int = 0
    host_missing_bytes: int = 0
    rank: int = 0
    stage: int = 0
    instant: Instant | None = None


def families_of(timed: list[Timed], cluster: Cluster, best: Planned | None) -> Iterator[Family]:
    """All plans, those of one engine that share their choices together. ``best``: the plan that the others
    are held against.
    """
    grouped: dict[tuple[Any, ...], list[Timed]] = {}
    for one in timed:
        asked = one.stratum.request
        grouped.setdefault((one.engine, *((key, asked[key]) for key in FAMILY if asked.get(key))), []).append(
            one
        )
    for (engine, *choice), members in grouped.items():
        fit = sum(len(one.fit) for one in members)
        told = _family_time_loss(members, best) if fit else _family_missing_bytes(members, cluster)
        yield Family(
            engine=engine, choice=dict(choice), plans=sum(len(one.graded) for one in members), fit=fit, **told
        )


def _family_time_loss(members: list[Timed], best: Planned | None) -> dict[str, Any]:
    """The fastest plan of a family, and what takes most of the time that it loses."""
    seconds, number, place = min(
        (float(one.seconds.min()), n, int(np.argmin(one.seconds)))
        for n, one in enumerate(members)
        if len(one.seconds)
    )
    if not np.isfinite(seconds):
        return {}
    one = members[number]
    if best is None or best.time is None or seconds <= best.seconds * (1 + APART):
        return {"seconds": seconds}
    time = step_time(
        one.space.model,
        one_plan(one.stratum, int(one.fit[place])),
        one.space.cluster,
        efficiency=one.efficiency,
    )
    part, _ = max(time.against(best.time).items(), key=lambda pair: float(pair[1]))
    return {"seconds": seconds, "slower": part, "slower_s": seconds - best.seconds}


def _family_missing_bytes(members: list[Timed], cluster: Cluster) -> dict[str, Any]:
    """What the nearest plan of a family lacks, where and when."""
    _, number, row = min(
        (int(one.lacks.min()), n, int(np.argmin(one.lacks))) for n, one in enumerate(members)
    )
    one = members[number]
    stage = int(one.graded.stage[row])
    sheet = account_rank(one.space.model, one_plan(one.stratum, row), cluster, stage)
    missing = int(np.asarray(one.graded.device.value)[row]) - budget_of(cluster).capacity_bytes
    host = (
        int(np.asarray(one.graded.host_bytes)[row]) * cluster.per_node - (cluster.host_bytes or 0)
        if cluster.host_bytes
        else 0
    )
    return {
        "missing_bytes": max(0, missing), "host_missing_bytes": max(0, host), "stage": stage, "rank": sheet.rank, "instant": sheet.peak_instant,
    }  # fmt: skip
