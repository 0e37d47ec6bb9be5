"""Plans with their seconds: one that was accounted by itself, and strata as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from memsheet.budget import Result, Verdict, budget_of
from memsheet.errors import InputError
from memsheet.formulas.step_time import Efficiency, StepTime, quick_s, step_time
from memsheet.frozen import dataclass, field, replace
from memsheet.plan.device import Cluster
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.processes import share_out
from memsheet.search.train.grid import Graded, Grid, result_masks
from memsheet.search.train.lattice import Rows, select_rows
from memsheet.search.train.space import AXES, Request, Space
from memsheet.search.train.strata import CHUNK, Stratum, with_counts
from memsheet.search.trials import Question, Tried, account_trial

APART = 0.03
"""Plans whose times differ by less are told as equals: what a calibrated step time tells apart."""
BATCHES_A_TASK = 24
"""Batches that one process times before it takes further ones."""
Scaled = Callable[[str], Efficiency | None]
"""What a measured step said of the rates under an engine; None where none was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan that was accounted and timed. ``time`` is None where a step is not timed, and ``untimed_reason``
    says why.
    """

    request: Request
    tried: Tried
    time: StepTime | None
    untimed_reason: str = ""

    @property
    def plan(self) -> Plan:
        return self.tried.plan

    @property
    def verdict(self) -> Verdict:
        return self.tried.verdict

    @property
    def host_bytes(self) -> int:
        """Host memory of a rank."""
        return max(sheet.host_bytes for sheet in self.tried.sheets)

    @property
    def seconds(self) -> float:
        return float(self.time.value) if self.time is not None else float("inf")


def planned_of(
    model: ModelSpec, cluster: Cluster, request: Request, efficiency: Efficiency | None = None
) -> Planned:
    """A request resolved, accounted with its step replayed, judged and timed. Raises InputError where it is
    not legal.
    """
    question = Question(model=model, request=request, cluster=cluster)
    tried = account_trial(0, question, replays=True, decides=True)
    try:
        time = step_time(model, tried.plan, cluster, efficiency=efficiency)
    except InputError as error:
        return Planned(request=request, tried=tried, time=None, untimed_reason=_value_with_reason(error))
    return Planned(request=request, tried=tried, time=time)


def _value_with_reason(error: InputError) -> str:
    first = error.problems[0]
    return f"{first.field} = {first.value} {first.reason}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timed:
    """A graded stratum with the rows that fit and their seconds; infinite where a step is not timed.
    ``uneven``: rows that an uneven routing alone may keep from fitting.
    """

    engine: str
    graded: Graded
    space: Space
    fit: Any
    seconds: Any
    uneven: Any
    uneven_seconds: Any
    efficiency: Efficiency | None
    accounted: dict[int, Planned] = field(default_factory=dict)
    """Plans that were accounted by themselves, by row."""

    def planned(self, cluster: Cluster, row: int) -> Planned:
        if row not in self.accounted:
            self.accounted[row] = planned_of(self.space.model, cluster, self.request(row), self.efficiency)
        return self.accounted[row]

    def points(self) -> tuple[Any, Any]:
        """Seconds and expected bytes of the plans that fit."""
        return self.seconds, np.asarray(self.graded.device.value)[self.fit]

    @property
    def stratum(self) -> Stratum:
        return self.graded.stratum

    def request(self, row: int) -> Request:
        return self.stratum.request_of(row)

    def counts(self, row: int) -> Mapping[str, int]:
        return {name: int(column[row]) for name, column in self.stratum.rows.items()}

    @property
    def lacks(self) -> Any:
        """What every plan's high end is beyond the card, and what a node's host lacks for one of its ranks;
        at most 0 where nothing is missing.
        """
        cluster = self.space.cluster
        card = np.asarray(self.graded.device.high) - budget_of(cluster).low_bytes
        if cluster.host_bytes is None:
            return card
        host = np.asarray(self.graded.host_bytes) - cluster.host_bytes // cluster.per_node
        return np.where(host > 0, np.maximum(card, 0) + host, card)


def account_ahead(places: Iterable[tuple[Timed, int]], cluster: Cluster) -> None:
    """Plans that will be asked for, as (stratum, row), accounted now, shared out over processes."""
    asked = [(one, row) for one, row in dict.fromkeys(places) if row not in one.accounted]
    tasks = [partial(one.planned, cluster, row) for one, row in asked]
    known = (cluster, *(one.space.model for one, _ in asked))
    for (one, row), planned in zip(asked, share_out(tasks, known), strict=True):
        one.accounted[row] = planned


def timed_strata(grid: Grid, efficiency: Efficiency | None) -> list[Timed]:
    """Every graded stratum with its seconds. A step's time knows no traits, so strata whose choices and
    pipeline are the same are timed together.
    """
    space, own = grid.space, list[tuple[Any, Any]]()
    for one in grid.graded:
        masks = result_masks(one, space)
        own.append(
            (np.flatnonzero(masks[Result.FITS]), _rows_of_uneven_routing(one, masks[Result.UNCERTAIN]))
        )
    asked = [(one.stratum, np.concatenate(rows)) for one, rows in zip(grid.graded, own, strict=True)]
    return [
        Timed(
            engine=space.engine.name,
            graded=one,
            space=space,
            fit=fit,
            seconds=seconds[: len(fit)],
            uneven=uneven,
            uneven_seconds=seconds[len(fit) :],
            efficiency=efficiency,
        )
        for one, (fit, uneven), seconds in zip(
            grid.graded, own, seconds_of(asked, space, efficiency), strict=True
        )
    ]


def _rows_of_uneven_routing(graded: Graded, uncertain: Any) -> Any:
    """Plans whose expected bytes fit and whose high end may not, where experts are dealt to ranks."""
    stratum = graded.stratum
    routing = stratum.plan.routing
    if routing is None or routing.balanced or routing.padded:
        return np.zeros(0, dtype=np.int64)
    expected = np.asarray(graded.device.value) <= budget_of(stratum.space.cluster).low_bytes
    return np.flatnonzero(uncertain & expected & (stratum.rows["ep"] > 1))


Asked = Sequence[tuple[Stratum, Any]]
"""Strata, and some of the rows of each."""


def seconds_of(asked: Asked, space: Space, efficiency: Efficiency | None) -> list[Any]:
    """Seconds of a step of some rows of each stratum; infinite where it is not timed. Shared out over
    processes.
    """
    found = [np.zeros(0)] * len(asked)
    batches = list(_timing_batches(asked))
    parts = [batches[first : first + BATCHES_A_TASK] for first in range(0, len(batches), BATCHES_A_TASK)]
    tasks = [partial(_seconds_of_batches, asked, part, space, efficiency) for part in parts]
    for numbers, seconds in zip(batches, (one for part in share_out(tasks) for one in part), strict=True):
        start = 0
        for number in numbers:
            found[number] = seconds[start : start + len(asked[number][1])]
            start += len(asked[number][1])
    return found


def _seconds_of_batches(
    asked: Asked, batches: Sequence[Sequence[int]], space: Space, efficiency: Efficiency | None
) -> list[Any]:
    found = list[Any]()
    for numbers in batches:
        rows = [select_rows(asked[number][0].rows, asked[number][1]) for number in numbers]
        joined = {name: np.concatenate([one[name] for one in rows]) for name in rows[0]}
        found.append(_seconds_of_rows(asked[numbers[0]][0].plan, joined, space, efficiency))
    return found


def _timing_batches(asked: Asked) -> Iterator[list[int]]:
    """The numbers of strata that are timed at once: those that are alike but for their counts."""
    kin: dict[Plan, list[int]] = {}
    for number, (stratum, rows) in enumerate(asked):
        if len(rows):
            kin.setdefault(_plan_without_counts(stratum.plan), []).append(number)
    for numbers in kin.values():
        batch, size = list[int](), 0
        for number in numbers:
            if batch and size + len(asked[number][1]) > CHUNK:
                yield batch
                batch, size = [], 0
            batch.append(number)
            size += len(asked[number][1])
        yield batch


def _plan_without_counts(plan: Plan) -> Plan:
    mesh = replace(plan.mesh, **dict.fromkeys(AXES, 1))
    return replace(
        plan, mesh=mesh, workload=replace(plan.training, microbatch=1, global_batch=None), vocab_multiple=1
    )


def _seconds_of_rows(plan: Plan, rows: Rows, space: Space, efficiency: Efficiency | None) -> Any:
    size = len(rows["microbatch"])
    try:
        found = quick_s(space.model, with_counts(space, plan, rows), space.cluster, efficiency=efficiency)
    except InputError:
        found = np.inf
    return np.broadcast_to(np.asarray(found, dtype=float), (size,))
