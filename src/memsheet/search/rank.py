"""The best of what fits: every legal plan weighed as arrays, the fastest accounted and timed again one by one.

Memory comes before time: only plans whose whole range fits are timed. The exact accounting replays the step's allocations, so a plan that
fitted by shares may fall out; the next one takes its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

import numpy as np

from memsheet.account import account
from memsheet.budget import Result, Verdict, budget_of
from memsheet.errors import InputError
from memsheet.formulas.step_time import Efficiency, StepTime, quick_s, step_time
from memsheet.search.cloud import cloud
from memsheet.search.grid import Graded, Grid, grid, one_plan, results
from memsheet.search.space import Request, Space, space_of
from memsheet.search.strata import Stratum, reason_of, with_counts
from memsheet.search.trials import Question, Tried, attempt
from memsheet.sheet import Instant
from memsheet.spec.device import Cluster
from memsheet.spec.model import ModelSpec
from memsheet.spec.plan import Plan

LOOKED_AT = 8
"""Plans that are accounted again for each one that is shown."""
APART = 0.03
"""Plans whose times differ by less are told as equals: what a calibrated step time tells apart."""

HOST_DOUBT = 0.12
"""How much faster a plan has to be that moves states to the host: what step times are known within before anything is measured there
(``step_time``: operator tables are met within 12 %; nothing is known of how fast a host's processors and its shared links are).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan that was accounted and timed. ``time`` is None where a step is not timed."""

    request: Request
    tried: Tried
    time: StepTime | None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Plans of one engine that share how they save memory: how many there are and fit. Where some do, the fastest one's ``seconds`` (None where a
    step is not timed) and what takes most of the time that it loses to the best plan; where none does, by how many bytes the nearest
    misses, on which rank of which stage, when.
    """

    engine: str
    choice: Request
    plans: int
    fit: int
    seconds: float | None = None
    slower: str = ""
    slower_s: float = 0.0
    missing_bytes: int = 0
    rank: int = 0
    stage: int = 0
    instant: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan on the front of memory against time: none takes less of both."""

    seconds: float
    device_bytes: int
    engine: str
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """``plans``: those that fit, the fastest first, and of equals the simplest; ``least``: where none does, the plan that needs least. ``replicas``: whole
    copies of the model (DDP), the fastest of each engine that fits. ``looked_at``: plans by their verdict.
    """

    model: ModelSpec
    cluster: Cluster
    engines: tuple[str, ...]
    plans: tuple[Planned, ...]
    least: Planned | None
    replicas: tuple[Planned, ...]
    families: tuple[Family, ...]
    front: tuple[Point, ...]
    looked_at: Mapping[Result, int]
    refused: Mapping[str, int]
    notes: tuple[str, ...]
    cloud: tuple[tuple[float, int], ...] = ()
    """Seconds and expected bytes of plans that fit, one of those that a picture could not tell apart."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The request, which every plan shares."""

    @property
    def legal(self) -> int:
        return sum(self.looked_at.values())

    def equals(self, planned: Planned) -> bool:
        """Whether its time cannot be told from the fastest one's."""
        return planned.seconds <= min(plan.seconds for plan in self.plans) * (1 + APART)


Scaled = Callable[[str], Efficiency | None]
"""What a measured step said of the rates under an engine; None where none was measured."""


def ranked(
    model: ModelSpec, cluster: Cluster, request: Mapping[str, Any], engines: Iterable[str], *, top: int, scaled: Scaled = lambda _: None
) -> Ranking:  # fmt: skip
    """Every legal plan of some engines, the ``top`` fastest that fit.

    Raises InputError where no engine can be asked at all: with the first one's problems.
    """
    grids, notes = dict[str, Grid](), list[str]()
    problems: InputError | None = None
    for engine in engines:
        try:
            found = grid(space_of(model, cluster, {**request, "engine": engine}))
        except InputError as error:
            problems, reason = problems or error, reason_of(error)
            notes.append(f"{engine}: {reason}")
            continue
        if found.plans:
            grids[engine] = found
        else:
            notes.append(f"{engine}: no legal plan ({_commonest(found)})")
    if not grids and problems is not None:
        raise problems
    timed = [_Timed.of(engine, one, found.space, scaled(engine)) for engine, found in grids.items() for one in found.graded]
    seen: Counter[Result] = Counter()
    for found in grids.values():
        seen.update(found.counts())
    plans = tuple(_fastest(timed, cluster, top))
    return Ranking(
        model=model, cluster=cluster, engines=tuple(grids), plans=plans, least=None if plans else _least(timed, cluster),
        families=tuple(_families(timed, cluster, plans[0] if plans else None)), replicas=tuple(_replicas(timed, cluster)), front=tuple(_front(timed)), cloud=cloud(one.points() for one in timed), asked=dict(request), looked_at=seen,
        refused=sum((found.refused for found in grids.values()), Counter[str]()), notes=tuple(notes),
    )  # fmt: skip


def _commonest(found: Grid) -> str:
    return next((reason for reason, _ in found.refused.most_common(1)), "nothing to combine")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Timed:
    """A graded stratum with the rows that fit and their seconds; infinite where a step is not timed."""

    engine: str
    graded: Graded
    space: Space
    fit: Any
    seconds: Any
    efficiency: Efficiency | None

    @classmethod
    def of(cls, engine: str, graded: Graded, space: Space, efficiency: Efficiency | None) -> _Timed:
        fit = np.flatnonzero(results(graded, space)[Result.FITS])
        seconds = seconds_of(graded.stratum, fit, space, efficiency)
        return cls(engine=engine, graded=graded, space=space, fit=fit, seconds=seconds, efficiency=efficiency)

    def planned(self, cluster: Cluster, row: int) -> Planned:
        return planned_of(self.space.model, cluster, self.request(row), self.efficiency)

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
    def high(self) -> Any:
        """The high end of every plan's bytes."""
        return np.asarray(self.graded.device.high)


def seconds_of(stratum: Stratum, rows: Any, space: Space, efficiency: Efficiency | None) -> Any:
    """Seconds of a step of some rows; infinite where it is not timed."""
    if not len(rows):
        return np.zeros(0)
    plan = with_counts(space, stratum.plan, {name: column[rows] for name, column in stratum.rows.items()})
    try:
        found = quick_s(space.model, plan, space.cluster, efficiency=efficiency)
    except InputError:
        found = np.inf
    return np.broadcast_to(np.asarray(found, dtype=float), (len(rows),))


def _fastest(timed: list[_Timed], cluster: Cluster, top: int) -> Iterator[Planned]:
    """The fastest plans that fit when they are accounted by themselves; of those whose times cannot be told apart, the simplest first. One that
    keeps states on the host comes first only where it is faster beyond doubt.
    """
    weighed = [one.seconds * (1 + HOST_DOUBT * offloads(one.stratum.request)) for one in timed]
    best = min((float(each.min()) for each in weighed if len(each)), default=0.0)
    pairs = (
        (s > best * (1 + APART), effort(one.stratum.request, one.counts(row)) if s <= best * (1 + APART) else (), float(s), n, int(row))
        for n, (one, each) in enumerate(zip(timed, weighed, strict=True))
        for s, row in zip(each.tolist(), one.fit.tolist(), strict=True)
    )  # fmt: skip
    found = 0
    for *_, number, row in nsmallest(top * LOOKED_AT, pairs):
        planned = timed[number].planned(cluster, row)
        if planned.verdict.result is Result.FITS:
            found += 1
            yield planned
        if found == top:
            return


def offloads(choice: Request) -> bool:
    """Whether a plan lives on what the host gives: its memory's rate and a link that devices may share."""
    return any(choice.get(key) for key in ("offload.optimizer", "offload.parameters", "offload.activations"))


def _replicas(timed: list[_Timed], cluster: Cluster) -> Iterator[Planned]:
    """The fastest plan of each engine that keeps the whole model, and all states, on every device."""
    best: dict[str, tuple[float, int, int]] = {}
    for number, one in enumerate(timed):
        asked = one.stratum.request
        if asked.get("zero") or asked["mesh.pp"] > 1 or not len(one.seconds):
            continue
        rows = one.stratum.rows
        alone = np.flatnonzero((rows["dp_replicate"] == cluster.count)[one.fit] & (rows["ep"] * rows["etp"] == 1)[one.fit])
        if len(alone):
            place = int(alone[np.argmin(one.seconds[alone])])
            found = float(one.seconds[place]), number, int(one.fit[place])
            best[one.engine] = min(best.get(one.engine, found), found)
    for _, number, row in sorted(best.values()):
        planned = timed[number].planned(cluster, row)
        if planned.verdict.result is Result.FITS and planned.time is not None:
            yield planned


def effort(choice: Request, counts: Mapping[str, int]) -> tuple[int, ...]:
    """What a plan asks of whoever runs it, the worst first: memory of the host, other optimizer states, ranks that share a layer, recompute,
    a loss from another library, states in parts.
    """
    shared = sum(counts[axis] > 1 for axis in ("tp", "cp", "ep")) + (choice.get("mesh.pp", 1) > 1)
    return (
        sum(bool(choice.get(key)) for key in ("offload.optimizer", "offload.parameters", "offload.activations")),
        choice.get("optimizer.name") != "adamw", shared, choice.get("recompute.mode") != "none", choice.get("loss") != "plain",
        int(choice.get("zero") or 0), counts["dp_replicate"] > 1 and counts["dp_shard"] > 1,
    )  # fmt: skip


def planned_of(model: ModelSpec, cluster: Cluster, request: Request, efficiency: Efficiency | None = None) -> Planned:
    """A request resolved, accounted with its step replayed, judged and timed. Raises InputError where it is not legal."""
    tried = attempt(0, Question(model=model, request=request, cluster=cluster), replays=True)
    try:
        time = step_time(model, tried.plan, cluster, efficiency=efficiency)
    except InputError:
        time = None
    return Planned(request=request, tried=tried, time=time)


def _least(timed: list[_Timed], cluster: Cluster) -> Planned | None:
    """The plan whose high end is lowest."""
    pairs = [(int(one.high.min()), n) for n, one in enumerate(timed)]
    if not pairs:
        return None
    one = timed[min(pairs)[1]]
    return one.planned(cluster, int(np.argmin(one.high)))


FAMILY = ("zero", "recompute.mode", "optimizer.name", "loss", "offload.optimizer", "offload.parameters", "offload.activations")
"""How plans save memory besides dividing it."""


def _families(timed: list[_Timed], cluster: Cluster, best: Planned | None) -> Iterator[Family]:
    grouped: dict[tuple[Any, ...], list[_Timed]] = {}
    for one in timed:
        asked = one.stratum.request
        grouped.setdefault((one.engine, *((key, asked[key]) for key in FAMILY if asked.get(key))), []).append(one)
    for (engine, *choice), members in grouped.items():
        fit = sum(len(one.fit) for one in members)
        told = _beaten(members, best) if fit else _missed(members, cluster)
        yield Family(engine=engine, choice=dict(choice), plans=sum(len(one.graded) for one in members), fit=fit, **told)


def _beaten(members: list[_Timed], best: Planned | None) -> dict[str, Any]:
    """The fastest plan of a family, and what takes most of the time that it loses."""
    seconds, number, place = min(
        (float(one.seconds.min()), n, int(np.argmin(one.seconds))) for n, one in enumerate(members) if len(one.seconds)
    )
    if not np.isfinite(seconds):
        return {}
    one = members[number]
    if best is None or best.time is None or seconds <= best.seconds * (1 + APART):
        return {"seconds": seconds}
    time = step_time(one.space.model, one_plan(one.stratum, int(one.fit[place])), one.space.cluster, efficiency=one.efficiency)
    part, more = next(iter(time.against(best.time).items()))
    return {"seconds": seconds, "slower": part, "slower_s": float(more)}


def _missed(members: list[_Timed], cluster: Cluster) -> dict[str, Any]:
    """What the nearest plan of a family lacks, where and when."""
    _, number, row = min((int(one.high.min()), n, int(np.argmin(one.high))) for n, one in enumerate(members))
    one = members[number]
    stage = int(one.graded.stage[row])
    sheet = account(one.space.model, one_plan(one.stratum, row), cluster, stage)
    missing = int(one.high[row]) - budget_of(cluster).low_bytes
    return {"missing_bytes": max(0, missing), "stage": stage, "rank": sheet.rank, "instant": sheet.peak_instant}


def _front(timed: list[_Timed]) -> Iterator[Point]:
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
            yield Point(seconds=seconds, device_bytes=size, engine=timed[number].engine, request=timed[number].request(row))
