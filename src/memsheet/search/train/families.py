"""Plans by how they save memory: how many there are, the fastest of those that fit, and why the others are
not the ones to take.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from memsheet.account import account_rank
from memsheet.budget import budget_of
from memsheet.formulas.step_time import step_time
from memsheet.frozen import dataclass
from memsheet.search.train.grid import one_plan
from memsheet.search.train.space import OFFLOAD, Request
from memsheet.search.train.timed import APART, Planned, Timed
from memsheet.sheet import Instant, Sheet

FAMILY = ("zero", "recompute.mode", "optimizer.name", "loss", *OFFLOAD)
"""How plans save memory besides dividing it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """Plans of one engine that share how they save memory: how many there are and fit. Where some do,
    ``nearest`` is the fastest one (a stratum and its row) and ``seconds`` its time (None where a step is not
    timed); where none does, the one that lacks least, what its expected bytes lack of the card, and what the
    host of a node lacks. What else there is to say of it is worked out for those families that are shown.
    """

    engine: str
    choice: Request
    plans: int
    fit: int
    nearest: tuple[Timed, int]
    best: Planned | None
    seconds: float | None = None
    missing_bytes: int = 0
    host_missing_bytes: int = 0

    @cached_property
    def _loss(self) -> tuple[str, float]:
        """What takes most of the time that the fastest plan loses, and how much it loses."""
        best = self.best
        if (
            self.seconds is None
            or best is None
            or best.time is None
            or self.seconds <= best.seconds * (1 + APART)
        ):
            return "", 0.0
        one, row = self.nearest
        time = step_time(
            one.space.model, one_plan(one.stratum, row), one.space.cluster, efficiency=one.efficiency
        )
        part, _ = max(time.against(best.time).items(), key=lambda pair: float(pair[1]))
        return part, self.seconds - best.seconds

    @cached_property
    def _sheet(self) -> Sheet | None:
        """That of the rank on which the nearest plan lacks most; None where one fits."""
        if self.fit:
            return None
        one, row = self.nearest
        return account_rank(one.space.model, one_plan(one.stratum, row), one.space.cluster, self.stage)

    @property
    def slower(self) -> str:
        """Most of what the fastest plan does longer than the best one; empty where it is as fast."""
        return self._loss[0]

    @property
    def slower_s(self) -> float:
        """How much longer its step takes."""
        return self._loss[1]

    @property
    def stage(self) -> int:
        """Where the nearest plan lacks most; 0 where one fits."""
        return 0 if self.fit else int(self.nearest[0].graded.stage[self.nearest[1]])

    @property
    def rank(self) -> int:
        """The first rank of that stage."""
        return self._sheet.rank if self._sheet else 0

    @property
    def instant(self) -> Instant | None:
        """When it lacks most."""
        return self._sheet.peak_instant if self._sheet else None


def families_of(timed: list[Timed], best: Planned | None) -> Iterator[Family]:
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
        yield Family(
            engine=engine,
            choice=dict(choice),
            plans=sum(len(one.graded) for one in members),
            fit=fit,
            best=best,
            **(_fastest_of_family(members) if fit else _nearest_of_family(members)),
        )


def _fastest_of_family(members: list[Timed]) -> dict[str, Any]:
    seconds, number, place = min(
        (float(one.seconds.min()), n, int(np.argmin(one.seconds)))
        for n, one in enumerate(members)
        if len(one.seconds)
    )
    one = members[number]
    return {"nearest": (one, int(one.fit[place])), "seconds": seconds if np.isfinite(seconds) else None}


def _nearest_of_family(members: list[Timed]) -> dict[str, Any]:
    """The plan that lacks least, and what."""
    _, number, row = min(
        (int(one.lacks.min()), n, int(np.argmin(one.lacks))) for n, one in enumerate(members)
    )
    one = members[number]
    cluster = one.space.cluster
    missing = int(np.asarray(one.graded.device.value)[row]) - budget_of(cluster).capacity_bytes
    host = (
        int(np.asarray(one.graded.host_bytes)[row]) * cluster.per_node - (cluster.host_bytes or 0)
        if cluster.host_bytes
        else 0
    )
    return {
        "nearest": (one, row),
        "missing_bytes": max(0, missing),
        "host_missing_bytes": max(0, host),
    }
