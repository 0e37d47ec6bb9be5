"""Plans that may fit and are not sure to: what there is to say where no plan fits with its whole range."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest

import numpy as np

from memsheet.budget import Result
from memsheet.plan.device import Cluster
from memsheet.search.train.grid import result_masks
from memsheet.search.train.timed import Planned, Timed, account_ahead

TRIED = 4
"""Plans that are accounted by themselves for each one that is asked for, before the search is given up."""


def possible_plans(timed: list[Timed], cluster: Cluster, top: int) -> list[Planned]:
    """Of the plans that do not certainly fail those whose high end lacks least, accounted one by one: that
    may change the verdict.
    """
    found = list[Planned]()
    order = nsmallest(
        top * TRIED,
        (pair for n, one in enumerate(timed) for pair in _least_lacking_rows(n, one, top * TRIED)),
    )
    account_ahead(((timed[number], row) for _, number, row in order[:top]), cluster)
    for _, number, row in order:
        planned = timed[number].planned(cluster, row)
        if planned.verdict.result is not Result.DOES_NOT_FIT:
            found.append(planned)
        if len(found) == top:
            break
    return found


def _least_lacking_rows(number: int, one: Timed, most: int) -> Iterator[tuple[int, int, int]]:
    rows = np.flatnonzero(~result_masks(one.graded, one.space)[Result.DOES_NOT_FIT])
    lacks = one.lacks[rows]
    for place in np.argsort(lacks, kind="stable")[:most]:
        yield int(lacks[place]), number, int(rows[place])
