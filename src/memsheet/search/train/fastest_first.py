"""The fastest plan that fits, where nothing else is asked of a search: once one is known, the plans of
further engines are timed first, which takes a fraction of what accounting them does, and accounted where they
could come before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.formulas.step_time import Efficiency
from memsheet.plan.device import Cluster
from memsheet.plan.model import ModelSpec
from memsheet.search.train.grid import (
    Grid,
    LegalPlans,
    graded_pieces,
    grids_of_pieces,
    legal_plans,
    stratum_of_piece,
)
from memsheet.search.train.rank import (
    NOTHING_SEARCHED,
    fastest_fitting_plan,
    fastest_fitting_plans,
    search_engines,
    seconds_with_doubt,
    with_engine_searched,
)
from memsheet.search.train.space import Request, space_of
from memsheet.search.train.timed import APART, Planned, Scaled, seconds_of

ROUNDING = 1e-9
"""By which the seconds of a plan may differ where it is timed beside others."""


def search_fastest_plan(
    model: ModelSpec, cluster: Cluster, request: Request, engines: Sequence[str], scaled: Scaled
) -> tuple[Planned | None, Result | None, tuple[str, ...]]:
    """What ``fastest_fitting_plan`` finds among all plans of some engines. Raises InputError as it does."""
    found, best, left_out = NOTHING_SEARCHED, inf, inf
    for engine in engines:
        grid: Grid | InputError
        try:
            legal = legal_plans([space_of(model, cluster, {**request, "engine": engine})])
            slower = _slower_pieces(legal, best * (1 + APART + ROUNDING), scaled(engine))
            grid = _grid_without(legal, slower)
        except InputError as error:
            grid, slower = error, {}
        found, left_out = (
            with_engine_searched(found, engine, grid, scaled),
            min(left_out, *slower.values(), inf),
        )
        times = (seconds_with_doubt(one.stratum, one.seconds) for one in found.timed if len(one.fit))
        best = min((float(seconds.min()) for seconds in times), default=inf)
    if left_out < inf:  # what is at least as slow comes after all that are faster
        if plans := fastest_fitting_plans(found.timed, cluster, 1, left_out):
            return plans[0], Result.FITS, ()
        found = search_engines(model, cluster, request, engines, scaled)
    return fastest_fitting_plan(found, cluster)


def _slower_pieces(legal: LegalPlans, seconds: float, efficiency: Efficiency | None) -> Mapping[int, float]:
    """The pieces whose plans all take longer than so many seconds, and what the fastest takes."""
    if seconds == inf or not legal.pieces:
        return {}
    strata = [stratum_of_piece(piece) for piece in legal.pieces]
    asked = [(stratum, np.arange(len(stratum))) for stratum in strata]
    least = (
        float(seconds_with_doubt(stratum, taken).min())
        for stratum, taken in zip(strata, seconds_of(asked, strata[0].space, efficiency), strict=True)
    )
    return {number: taken for number, taken in enumerate(least) if taken > seconds}


def _grid_without(legal: LegalPlans, slower: Mapping[int, float]) -> Grid:
    numbers = (number for number in range(len(legal.pieces)) if number not in slower)
    return grids_of_pieces(legal, graded_pieces(legal, numbers))[0]
