"""The best of what fits: every legal plan weighed as arrays, the fastest accounted and timed again one by
one.

Memory comes before time: only plans whose whole range fits are timed. The exact accounting replays the step's
allocations, so a plan that fitted by shares may fall out; the next one takes its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from typing import Any

import numpy as np

from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.frozen import dataclass, field, replace
from memsheet.plan.device import Cluster
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.hardware import emulated_bf16
from memsheet.plan.model import ModelSpec
from memsheet.processes import share_out
from memsheet.search.progress import tell_progress
from memsheet.search.train.cloud import time_memory_points
from memsheet.search.train.families import Family, families_of
from memsheet.search.train.grid import Grid, LegalPlans, account_legal_plans, legal_plans
from memsheet.search.train.lattice import Array
from memsheet.search.train.space import OFFLOAD, Request, Space, space_of
from memsheet.search.train.strata import Stratum, reason_of
from memsheet.search.train.timed import APART, Planned, Scaled, Timed, account_ahead, timed_strata
from memsheet.search.train.uneven_routing import Uneven, fits_uneven
from memsheet.search.train.unsure_plans import possible_plans

LOOKED_AT = 8
"""Plans that are accounted again for each one that is shown."""
HOST_DOUBT = 0.12
"""How much faster a plan has to be that moves states to the host: what step times are known within before
anything is measured there (``step_time``: operator tables are met within 12 %; nothing is known of how fast a
host's processors and its shared links are).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan on the front of memory against time: none takes less of both."""

    seconds: float
    device_bytes: int
    engine: str
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """``plans``: those that fit, the fastest first, and of equals the simplest; ``least``: where none does,
    the plan that lacks least, and ``unsure``: those that may fit, the nearest to it first. ``replicas``:
    whole copies of the model (DDP), the fastest of each engine that fits. ``looked_at``: plans by their
    verdict.
    """

    model: ModelSpec
    cluster: Cluster
    engines: tuple[str, ...]
    plans: tuple[Planned, ...]
    least: Planned | None
    unsure: tuple[Planned, ...]
    replicas: tuple[Planned, ...]
    families: tuple[Family, ...]
    front: tuple[Point, ...]
    looked_at: Mapping[Result, int]
    refused: Mapping[str, int]
    notes: tuple[str, ...]
    by_engine: tuple[Planned, ...] = ()
    """The best plan of each engine, in the order of ``engines``; of one that has none that fits there is
    none.
    """
    cloud: tuple[tuple[float, int], ...] = ()
    """Seconds and expected bytes of plans that fit, one of those that a picture could not tell apart."""
    uneven: Uneven | None = None
    """A faster plan of a routed model that fits at a published imbalance of routing, and may not at the
    worst.
    """
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The request, which every plan shares."""

    @property
    def legal(self) -> int:
        return sum(self.looked_at.values())

    @property
    def result(self) -> Result | None:
        """Whether a plan is sure to fit, may, or none can; None where none is legal."""
        if self.plans:
            return Result.FITS
        if self.least is None:
            return None
        possible = self.looked_at.get(Result.FITS, 0) + self.looked_at.get(Result.UNCERTAIN, 0)
        doubted = self.least.verdict.result is not Result.DOES_NOT_FIT
        return Result.UNCERTAIN if self.unsure or possible or doubted else Result.DOES_NOT_FIT

    def equals(self, planned: Planned) -> bool:
        """Whether its time cannot be told from the fastest one's."""
        return planned.seconds <= min(plan.seconds for plan in self.plans) * (1 + APART)


def rank_training_plans(
    model: ModelSpec,
    cluster: Cluster,
    request: Mapping[str, Any],
    engines: Iterable[str],
    *,
    top: int,
    scaled: Scaled = lambda _: None,
    searched: Searched | None = None,
) -> Ranking:
    """Every legal plan of some engines, the ``top`` fastest that fit. ``searched``: the same, found before.

    Raises InputError where no engine can be asked at all: with the first one's problems.
    """
    found_there = searched or search_engines(model, cluster, request, engines, scaled)
    grids, timed, notes = found_there.legal()
    seen: Counter[Result] = Counter()
    for found in grids.values():
        seen.update(found.counts())
    order = _fastest_rows(timed, top)
    orders = {name: _fastest_rows([one for one in timed if one.engine == name], 1) for name in grids}
    firsts = (rows[:1] for rows in (*orders.values(), _replicated_rows(timed, cluster)))
    account_ahead((*order[:top], *(one for rows in firsts for one in rows)), cluster)
    plans, unsure = _best_plans(timed, cluster, top)
    notes = (
        *notes,
        *filter(None, dict.fromkeys(emulated_bf16(planned.plan, cluster.device) for planned in plans)),
    )
    return Ranking(
        model=model,
        cluster=cluster,
        engines=tuple(grids),
        plans=plans,
        unsure=unsure,
        least=None if plans else next(iter(unsure), None) or _least_lacking_plan(timed, cluster),
        families=tuple(families_of(timed, plans[0] if plans else None)),
        replicas=tuple(_fastest_replicated_plans(timed, cluster)),
        by_engine=tuple(_best_plan_per_engine(timed, cluster, plans, orders)),
        front=tuple(_time_memory_front(timed)),
        uneven=fits_uneven(timed, cluster, plans[0] if plans else None),
        cloud=time_memory_points(one.points() for one in timed),
        asked=dict(request),
        looked_at=seen,
        refused=sum((found.refused for found in grids.values()), Counter[str]()),
        notes=notes,
    )


def fastest_fitting_plan(
    searched: Searched, cluster: Cluster
) -> tuple[Planned | None, Result | None, tuple[str, ...]]:
    """The first of the plans that ``rank_training_plans`` finds, the result of the search, and its notes,
    without what else it tells. Raises InputError as it does.
    """
    grids, timed, notes = searched.legal()
    plans, unsure = _best_plans(timed, cluster, 1)
    if plans:
        return plans[0], Result.FITS, notes
    least = next(iter(unsure), None) or _least_lacking_plan(timed, cluster)
    if least is None:
        return None, None, notes
    certain = all(not found.counts().keys() & {Result.FITS, Result.UNCERTAIN} for found in grids.values())
    denied = certain and least.verdict.result is Result.DOES_NOT_FIT
    return None, Result.DOES_NOT_FIT if denied else Result.UNCERTAIN, notes


def _best_plans(
    timed: list[Timed], cluster: Cluster, top: int
) -> tuple[tuple[Planned, ...], tuple[Planned, ...]]:
    """The fastest that fit; where none is sure to by shares, those that do by their step's own allocations,
    or else those that may.
    """
    if plans := tuple(fastest_fitting_plans(timed, cluster, top)):
        return plans, ()
    possible = possible_plans(timed, cluster, top)
    sure = (one for one in possible if one.verdict.result is Result.FITS)
    plans = tuple(sorted(sure, key=lambda one: one.seconds))
    return plans, () if plans else tuple(possible)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The legal plans of each engine that has any, their times, why the others have none, and the first
    engine's problems where it could not be asked.
    """

    grids: Mapping[str, Grid]
    timed: list[Timed]
    notes: tuple[str, ...]
    problems: InputError | None

    def legal(self) -> tuple[Mapping[str, Grid], list[Timed], tuple[str, ...]]:
        """Raises InputError where no engine could be asked at all: with the first one's problems."""
        if not self.grids and self.problems is not None:
            raise self.problems
        return self.grids, self.timed, self.notes


NOTHING_SEARCHED = Searched(grids={}, timed=[], notes=(), problems=None)


def search_engines(
    model: ModelSpec,
    cluster: Cluster,
    request: Mapping[str, Any],
    engines: Iterable[str],
    scaled: Scaled,
    *,
    tells: bool = False,
) -> Searched:
    """All plans of some engines, accounted and timed. ``tells``: how far it is, to whoever listens."""
    return search_global_batches(
        model, cluster, request, engines, scaled, (request.get("global_batch"),), tells=tells
    )[0]


def search_global_batches(
    model: ModelSpec,
    cluster: Cluster,
    request: Mapping[str, Any],
    engines: Iterable[str],
    scaled: Scaled,
    batches: Sequence[int | None],
    *,
    tells: bool = False,
) -> list[Searched]:
    """All plans of some engines at each of some global batches, which are accounted together. ``tells``: how
    far the first of them is.
    """
    found, names = [NOTHING_SEARCHED] * len(batches), tuple(engines)
    spaces = [
        _spaces_of_requests(
            model, cluster, [{**request, "global_batch": batch, "engine": engine} for batch in batches]
        )
        for engine in names
    ]
    for engine, own, legal in zip(names, spaces, _legal_plans_of_engines(spaces), strict=True):
        for place, grid in enumerate(_grids_of_spaces(own, legal)):
            found[place] = with_engine_searched(found[place], engine, grid, scaled)
        if tells and engine in found[0].grids:
            tell_progress(lambda: _found_so_far(engine, found[0]))  # noqa: B023 it is called at once
    return found


Spaces = Sequence[Space | InputError]
"""The spaces of some requests to one engine that differ in their global batch alone, or why one has none."""


def _spaces_of_requests(model: ModelSpec, cluster: Cluster, requests: Iterable[Request]) -> Spaces:
    spaces = list[Space | InputError]()
    for request in requests:
        try:
            spaces.append(space_of(model, cluster, request))
        except InputError as error:
            spaces.append(error)
    return spaces


def _legal_plans_of_engines(engines: Sequence[Spaces]) -> list[LegalPlans | InputError]:
    """The legal plans of each engine, shared out over processes, or why it has none."""
    known = [[space for space in spaces if isinstance(space, Space)] for spaces in engines]
    held = [one for spaces in known for space in spaces for one in (space, space.model, space.cluster)]
    return share_out([partial(_legal_plans_or_error, spaces) for spaces in known], held)


def _legal_plans_or_error(spaces: Sequence[Space]) -> LegalPlans | InputError:
    try:
        return legal_plans(spaces)
    except InputError as error:
        return error


def _grids_of_spaces(spaces: Spaces, legal: LegalPlans | InputError) -> Iterator[Grid | InputError]:
    """The plans of each space, or why there are none."""
    try:
        if isinstance(legal, InputError):
            raise legal
        grids: Iterator[Grid | InputError] = iter(account_legal_plans(legal))
    except InputError as error:
        grids = iter([error] * len(spaces))
    return (space if isinstance(space, InputError) else next(grids) for space in spaces)


def with_engine_searched(before: Searched, engine: str, found: Grid | InputError, scaled: Scaled) -> Searched:
    """What was searched, and the plans of another engine, or why it has none."""
    if isinstance(found, InputError):
        notes = (*before.notes, f"{engine}: {reason_of(found)}")
        return replace(before, notes=notes, problems=before.problems or found)
    if not found.plans:
        return replace(
            before, notes=(*before.notes, f"{engine}: no legal plan ({_commonest_refusal(found)})")
        )
    timed = [*before.timed, *timed_strata(found, scaled(engine))]
    return replace(before, grids={**before.grids, engine: found}, timed=timed)


def _found_so_far(engine: str, searched: Searched) -> Mapping[str, Any]:
    fits = [one for one in searched.timed if len(one.fit)]
    found = {
        "engine": engine,
        "plans": sum(grid.plans for grid in searched.grids.values()),
        "fit": sum(len(one.fit) for one in fits),
    }
    if not fits:
        return found
    fastest = min(fits, key=lambda one: float(np.min(one.seconds)))
    row = int(np.argmin(fastest.seconds))
    size = int(np.asarray(fastest.graded.device.value)[fastest.fit[row]])
    return {**found, "step_seconds": float(fastest.seconds[row]), "device_bytes": size}


def _commonest_refusal(found: Grid) -> str:
    """The commonest reason that is no matter of what divides what: those are of combinations that nobody
    would try.
    """
    ordered = [reason for reason, _ in found.refused.most_common()]
    asked = (
        [reason for reason in ordered if "divide" not in reason]
        or [reason for reason in ordered if "global batch" in reason]
        or ordered
    )
    return asked[0] if asked else "nothing to combine"


def fastest_fitting_plans(
    timed: list[Timed], cluster: Cluster, top: int, known: float = np.inf
) -> list[Planned]:
    """The fastest plans that fit when they are accounted by themselves, none beside one that is both faster
    and smaller; of those whose times cannot be told apart, the simplest first. One that keeps states on the
    host comes first only where it is faster beyond doubt. Where no step is timed: the simplest. ``known``:
    seconds from which on others may come between.
    """
    order = _fastest_rows(timed, top, known)
    if not order and known == np.inf:
        return _simplest_fitting_plans(timed, cluster, top)
    account_ahead(order[:top], cluster)
    return _fitting_plans_in_order(order, cluster, top)


def _fitting_plans_in_order(order: Iterable[tuple[Timed, int]], cluster: Cluster, top: int) -> list[Planned]:
    """The first that fit, none beside one that is both faster and smaller."""
    found = list[Planned]()
    for one, row in order:
        planned = one.planned(cluster, row)
        if planned.verdict.result is Result.FITS:
            found.append(planned)
        if len(found) == top:
            break
    return [one for one in found if not any(plan_dominates(other, one) for other in found)]


def _fastest_rows(timed: list[Timed], top: int, known: float = np.inf) -> list[tuple[Timed, int]]:
    """The plans that ``fastest_fitting_plans`` looks at for as many as ``top``, in its order."""
    kept = [one for one in pareto_optimal_rows(timed) if one[0] < known]
    best = min((float(s) for s, *_ in kept), default=0.0)
    pairs = (
        (
            s > best * (1 + APART),
            plan_effort_key(_choice_of(timed[n]), timed[n].counts(row)) if s <= best * (1 + APART) else (),
            s,
            n,
            row,
        )
        for s, n, row in kept
    )
    return [(timed[number], row) for *_, number, row in nsmallest(top * LOOKED_AT, pairs)]


def _simplest_fitting_plans(timed: list[Timed], cluster: Cluster, top: int) -> list[Planned]:
    """Plans that fit and whose steps are not timed, by ``plan_effort_key``: of those that ask the same the
    smallest, and each further one smaller than those before it.
    """
    found = list[Planned]()
    lowest: float = np.inf
    for _, size, number, row in _smallest_rows_by_effort(timed):
        if size >= lowest:
            continue
        planned = timed[number].planned(cluster, row)
        need = planned.verdict.device.value
        if planned.verdict.result is Result.FITS and need < lowest:
            found, lowest = [*found, planned], need
        if len(found) == top:
            break
    return found


def _smallest_rows_by_effort(timed: list[Timed]) -> list[tuple[tuple[int, ...], int, int, int]]:
    """Of the plans that fit, the smallest of each effort of a stratum, the least effort first: (effort,
    bytes, stratum, row).
    """
    best: dict[tuple[int, tuple[int, ...]], tuple[tuple[int, ...], int, int, int]] = {}
    for number, one in enumerate(timed):
        sizes, choice = np.asarray(one.graded.device.value), _choice_of(one)
        for row in map(int, one.fit):
            effort = plan_effort_key(choice, one.counts(row))
            found = (effort, int(sizes[row]), number, row)
            best[number, effort] = min(best.get((number, effort), found), found)
    return sorted(best.values())


def pareto_optimal_rows(timed: list[Timed]) -> list[tuple[float, int, int]]:
    """Of the plans that fit those that none beats in time and memory at once: (seconds, stratum, row). What
    asks for memory of the host, or for another optimizer's states, beats nothing that does without.
    """
    numbers = [np.full(len(one.fit), n) for n, one in enumerate(timed)]
    if not sum(map(len, numbers)):
        return []
    number, row = np.concatenate(numbers), np.concatenate([one.fit for one in timed])
    seconds = np.concatenate([seconds_with_doubt(one.stratum, one.seconds) for one in timed])
    size = np.concatenate([np.asarray(one.graded.device.value)[one.fit] for one in timed])
    asks = np.concatenate([np.full(len(one.fit), other_costs(_choice_of(one))) for one in timed])
    found = list[tuple[float, int, int]]()
    for grade in sorted({int(one) for one in asks}):
        order = np.flatnonzero((asks & ~grade) == 0)
        order = order[np.lexsort((asks[order], size[order], seconds[order]))]
        lowest = np.minimum.accumulate(np.concatenate(([np.iinfo(np.int64).max], size[order][:-1])))
        best = order[(size[order] < lowest) & (asks[order] == grade)]
        found += [(float(seconds[i]), int(number[i]), int(row[i])) for i in best]
    return found


def seconds_with_doubt(stratum: Stratum, seconds: Array) -> Array:
    """Seconds of some plans of a stratum, by which they are ranked."""
    return seconds * (1 + HOST_DOUBT * plan_offloads(stratum.request))


def other_costs(choice: Request) -> int:
    """What a plan asks for that time and memory do not say, a bit each: memory of the host, an optimizer with
    other states, an engine whose sharding divides nothing.
    """
    return (
        int(plan_offloads(choice))
        | 2 * int(choice.get("optimizer.name") != "adamw")
        | 4 * int(_divides_nothing(choice))
    )


def _choice_of(one: Timed) -> Request:
    """What a stratum asks, with the engine that it is of."""
    return {**one.stratum.request, "engine": one.engine}


def _divides_nothing(choice: Request) -> bool:
    """Whether a plan is of an engine that shards in the model's own code, and shards nothing."""
    engine = find_engine(str(choice.get("engine")))
    return engine is not None and engine.layers is None and max(engine.zero) > 0 and not choice.get("zero")


def plan_dominates(one: Planned, other: Planned) -> bool:
    """Whether a plan is no slower and no larger than another, better in one of them, and asks for nothing
    that the other does without.
    """
    if other_costs(one.request) & ~other_costs(other.request) or one is other:
        return False
    mine, theirs = ((plan.seconds, plan.verdict.device.value) for plan in (one, other))
    return mine[0] <= theirs[0] and mine[1] <= theirs[1] and mine != theirs


def _best_plan_per_engine(
    timed: list[Timed],
    cluster: Cluster,
    plans: tuple[Planned, ...],
    orders: Mapping[str, list[tuple[Timed, int]]],
) -> Iterator[Planned]:
    """The best plan of each engine, of the orders in which they are looked at, shared out over processes;
    those that are among the best of all, or the first of their engine and fit, are not accounted again.
    """
    found = {
        engine: next((plan for plan in plans if plan.request["engine"] == engine), None)
        or next(iter(_fitting_plans_in_order(order[:1], cluster, 1)), None)
        for engine, order in orders.items()
    }
    rest = [engine for engine, best in found.items() if best is None]
    tasks = [partial(_best_plan_of_engine, timed, cluster, engine, orders[engine]) for engine in rest]
    found |= zip(rest, share_out(tasks, (cluster, *(one.space.model for one in timed))), strict=True)
    return (best for best in found.values() if best is not None)


def _best_plan_of_engine(
    timed: list[Timed], cluster: Cluster, engine: str, order: list[tuple[Timed, int]]
) -> Planned | None:
    """The first of an order that fits; the simplest that does where no step is timed."""
    own = [one for one in timed if one.engine == engine and not order]
    return next(
        iter(_fitting_plans_in_order(order, cluster, 1) or _simplest_fitting_plans(own, cluster, 1)), None
    )


def plan_offloads(choice: Request) -> bool:
    """Whether a plan lives on what the host gives: its memory's rate and a link that devices may share."""
    return any(map(choice.get, OFFLOAD))


def plan_effort_key(choice: Request, counts: Mapping[str, int]) -> tuple[int, ...]:
    """What a plan asks of whoever runs it, the worst first: memory of the host, other optimizer states, ranks
    that share a layer, an engine whose sharding divides nothing, recompute, a loss from another library,
    chunks of a stage, states in parts.
    """
    idle = _divides_nothing(choice)
    shared = sum(counts[axis] > 1 for axis in ("tp", "cp", "ep")) + (choice.get("mesh.pp", 1) > 1)
    return (
        sum(bool(choice.get(key)) for key in OFFLOAD),
        choice.get("optimizer.name") != "adamw", shared, idle, choice.get("recompute.mode") != "none", choice.get("loss") != "plain",
        int(choice.get("mesh.vpp") or 1), int(choice.get("zero") or 0), counts["dp_replicate"] > 1 and counts["dp_shard"] > 1,
    )  # fmt: skip


def _fastest_replicated_plans(timed: list[Timed], cluster: Cluster) -> Iterator[Planned]:
    """The fastest plan of each engine that keeps the whole model, and all states, on every device."""
    for one, row in _replicated_rows(timed, cluster):
        planned = one.planned(cluster, row)
        if planned.verdict.result is Result.FITS and planned.time is not None:
            yield planned


def _replicated_rows(timed: list[Timed], cluster: Cluster) -> list[tuple[Timed, int]]:
    """The same before they are accounted by themselves."""
    best: dict[str, tuple[bool, float, int, int]] = {}
    for number, one in enumerate(timed):
        asked = one.stratum.request
        if asked.get("zero") or asked["mesh.pp"] > 1 or not len(one.seconds):
            continue
        rows = one.stratum.rows
        alone = np.flatnonzero(
            (rows["dp_replicate"] == cluster.count)[one.fit] & (rows["ep"] * rows["etp"] == 1)[one.fit]
        )
        if len(alone):
            place = int(alone[np.argmin(one.seconds[alone])])
            found = (
                asked.get("optimizer.name") != "adamw",
                float(one.seconds[place]),
                number,
                int(one.fit[place]),
            )
            best[one.engine] = min(best.get(one.engine, found), found)
    return [(timed[number], row) for *_, number, row in sorted(best.values())]


def _least_lacking_plan(timed: list[Timed], cluster: Cluster) -> Planned | None:
    """The plan that lacks least, on the card and on the host."""
    pairs = [(int(one.lacks.min()), n) for n, one in enumerate(timed)]
    if not pairs:
        return None
    one = timed[min(pairs)[1]]
    return one.planned(cluster, int(np.argmin(one.lacks)))


def _time_memory_front(timed: list[Timed]) -> Iterator[Point]:
    """Plans that fit and that none beats in both memory and time, fastest first."""
    lowest = np.inf
    pairs = sorted(
        (float(s), int(np.asarray(one.graded.device.value)[row]), n, int(row))
        for n, one in enumerate(timed)
        for s, row in zip(one.seconds, one.fit, strict=True)
    )
    for seconds, size, number, row in pairs:
        if size < lowest and np.isfinite(seconds):
            lowest = size
            yield Point(
                seconds=seconds,
                device_bytes=size,
                engine=timed[number].engine,
                request=timed[number].request(row),
            )
