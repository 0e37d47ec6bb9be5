"""What was searched for, as JSON (``memsheet/plans/1``): every plan can be asked again, and exported."""

from collections.abc import Iterator
from typing import Any, Literal

from memsheet import budget
from memsheet.frozen import NamedTuple, replace
from memsheet.plan.document import model_reference, plan_document
from memsheet.report.json.document import ByteRange, Document, Natural, Plan, Result, optional_key, read_from
from memsheet.report.shared.look import Look
from memsheet.report.shared.plans.families import family_sort_key, uneven_lines
from memsheet.report.shared.plans.family_reason import family_rejection_reason
from memsheet.report.shared.plans.words import choice_words, plan_command
from memsheet.resolve import resolve_request
from memsheet.search.advice import Advice
from memsheet.search.train.families import Family
from memsheet.search.train.rank import Ranking
from memsheet.search.train.timed import Planned
from memsheet.sheet import Instant


class Ranked(NamedTuple):
    """A plan of a ranking. ``tokens``: a budget of training, told in GPU-hours."""

    planned: Planned
    ranking: Ranking
    tokens: int | None


class SearchResult(NamedTuple):
    """The search, how long it took, and the budget."""

    advice: Advice
    seconds: float
    tokens: int | None

    @property
    def ranking(self) -> Ranking:
        return self.advice.ranking

    def ranked(self, *plans: Planned) -> list[Ranked]:
        return [Ranked(planned, self.ranking, self.tokens) for planned in plans]

    def ranked_if(self, planned: Planned | None) -> Ranked | None:
        return Ranked(planned, self.ranking, self.tokens) if planned else None


class Interval(Document):
    """Seconds, or hours; the true value is expected between ``low`` and ``high``."""

    low: float
    value: float
    high: float


class Search(Document):
    """``plans``: combinations that were made; ``legal``: those an engine can run; ``results``: of the legal
    ones.
    """

    plans: Natural = read_from(lambda found: found.ranking.legal + sum(found.ranking.refused.values()))
    legal: Natural = read_from("ranking.legal")
    seconds: float
    engines: list[str] = read_from("ranking.engines")
    results: dict[Result, Natural] = read_from(
        lambda found: {result: found.ranking.looked_at.get(result, 0) for result in budget.Result}
    )


def _plan_request(ranked: Ranked) -> dict[str, Any]:
    ranking = ranked.ranking
    return plan_document(ranked.planned.plan, model=model_reference(ranking.model), cluster=ranking.cluster)


def _worst_allocated(ranked: Ranked) -> Any:
    return max(ranked.planned.tried.sheets, key=lambda sheet: sheet.device.high).allocated


def _gpu_hours(ranked: Ranked) -> Any:
    time = ranked.planned.time
    return time.gpu_hours(ranked.tokens) if time and ranked.tokens else None


class RankedPlan(Document):
    """One plan, accounted and timed; ``plan`` can be asked again."""

    plan: Plan = read_from(_plan_request)
    assumed: list[str] = read_from("planned.tried.assumed")
    verdict: Result = read_from("planned.verdict.result")
    allocated_bytes: Natural = read_from(_worst_allocated)
    device: ByteRange = read_from("planned.verdict.device")
    capacity_bytes: Natural = read_from("ranking.cluster.device.framework_bytes")
    headroom_bytes: int = read_from("planned.verdict.headroom_bytes")
    host_bytes: Natural = read_from("planned.host_bytes")
    rank: int = read_from("planned.verdict.rank")
    instant: Instant = read_from("planned.verdict.instant")
    step_time_s: Interval | None = read_from("planned.time")
    tokens_per_s: float | None = read_from("planned.time.tokens_per_s")
    parts_s: dict[str, float] | None = read_from("planned.time.parts")
    mfu: float | None = read_from("planned.time.mfu")
    calibrated: str | None = read_from("planned.time.calibrated")
    gpu_hours: Interval | None = read_from(_gpu_hours)
    command: str = read_from(lambda ranked: plan_command(ranked.ranking, ranked.planned))


class Expected(Document):
    value: float


class Point(Document):
    """A plan that none beats in both memory and time."""

    plan: Plan
    device_bytes: Natural
    step_time_s: Expected


def _front_points(found: SearchResult) -> Iterator[tuple[Any, ...]]:
    model, cluster = found.ranking.model, found.ranking.cluster
    for point in found.ranking.front:
        plan = resolve_request(point.request, model, cluster).plan
        document = plan_document(plan, model=model_reference(model), cluster=cluster)
        yield document, point.device_bytes, (point.seconds,)


class Rejected(Document):
    """A family of plans that is not the best one and why; ``family`` null: a rule that ruled out so many
    combinations.
    """

    family: str | None = read_from(lambda family: " · ".join((family.engine, *choice_words(family.choice))))
    reason: str = read_from(lambda family: family_rejection_reason(family, Look()))
    plans: Natural
    engine: str = optional_key()
    choice: dict[str, Any] = optional_key()
    fit: Natural = optional_key()
    step_time_s: float | None = optional_key("seconds")
    missing_bytes: Natural = optional_key()
    host_missing_bytes: Natural = optional_key()
    rank: int = optional_key()
    stage: int = optional_key()
    instant: Instant | None = optional_key()
    slower: str | None = optional_key(lambda family: family.slower or None)
    slower_s: float = optional_key()


def _rejected_families(found: SearchResult) -> Iterator[Family | tuple[None, str, int]]:
    """Families that were weighed and are not the best, then what was ruled out before, by rule."""
    ranking = found.ranking
    for family in sorted(ranking.families, key=family_sort_key):
        if not ranking.plans or family.fit == 0 or family.slower:
            yield family
    for rule, count in sorted(ranking.refused.items(), key=lambda pair: -pair[1]):
        yield None, rule, count


class StoryStep(Document):
    """A step of the story; ``costs_time`` in seconds of a step, ``saves_bytes`` negative where it costs."""

    question: str = read_from("asks")
    change: str
    flag: str
    why: str
    engine: str
    device_bytes: Natural = read_from("device")
    saves_bytes: int
    step_time_s: float | None = read_from("seconds")
    costs_time: float | None = read_from("costs_s")
    host_bytes: Natural
    fits: bool
    taken: bool
    shares_batch: bool = read_from("shares")
    without_states_bytes: Natural | None = read_from(lambda step: step.part_bytes or None)


class Exchanged(Document):
    gathered_bytes: Natural
    gathers: Natural
    gathered_s: float
    reduced_bytes: Natural
    reductions: Natural
    reduced_s: float


class Replicas(Document):
    """Whole copies (DDP), and the same with every state divided (ZeRO-3)."""

    fastest: RankedPlan
    plain: RankedPlan | None
    sharded: RankedPlan | None
    exchanged: dict[Literal["plain", "sharded"], Exchanged]


def _whole_copies(found: SearchResult) -> tuple[Any, ...] | None:
    copies = found.advice.replicas
    if copies is None:
        return None
    exchanged = {"plain": copies.plain_exchange, "sharded": copies.sharded_exchange}
    plans = (found.ranked_if(planned) for planned in (copies.fastest, copies.plain, copies.sharded))
    return (*plans, {side: told for side, told in exchanged.items() if told is not None})


class Undone(Document):
    saving: str
    missing_bytes: Natural
    step_time_s: Interval | None = read_from("planned.time")
    gains_s: float


class Alternative(Document):
    """Another method on the same GPUs, or more of them (``kind`` gpus)."""

    kind: str
    gpus: Natural
    best: RankedPlan | None
    reason: str | None


def _alternatives(found: SearchResult) -> Iterator[tuple[str, int, Ranked | None, str | None]]:
    for method, planned, why in found.advice.methods:
        yield method, found.ranking.cluster.count, found.ranked_if(planned), why or None
    if found.advice.more is not None:
        cluster, planned = found.advice.more
        yield (
            "gpus",
            cluster.count,
            Ranked(planned, replace(found.ranking, cluster=cluster), found.tokens),
            None,
        )


class Nodes(Document):
    """Devices of a node, nodes, and the host memory of one where it was said."""

    per_node: Natural
    nodes: Natural
    host_bytes: Natural | None


class SweptBatch(Document):
    """One of the global batches that were looked at where none was asked for."""

    global_batch: int
    best: RankedPlan | None
    result: Result | None


class Plans(Document):
    """``memsheet/plans/1``: the fastest plans that fit, and why the others are not. ``result``: whether one
    is sure to fit, one of ``unsure`` may, or none can; null where none is legal.
    """

    schema_: str = "memsheet/plans/1"
    model: str = read_from("ranking.model.name")
    gpus: str = read_from(lambda found: f"{found.ranking.cluster.count}x{found.ranking.cluster.device.name}")
    cluster: Nodes = read_from("ranking.cluster")
    search: Search = read_from()
    plans: list[RankedPlan] = read_from(lambda found: found.ranked(*found.ranking.plans))
    by_engine: dict[str, RankedPlan] = read_from(
        lambda found: {at.planned.plan.engine: at for at in found.ranked(*found.ranking.by_engine)}
    )
    least: RankedPlan | None = read_from(lambda found: found.ranked_if(found.ranking.least))
    result: Result | None = read_from("ranking.result")
    unsure: list[RankedPlan] = read_from(lambda found: found.ranked(*found.ranking.unsure))
    pareto: list[Point] = read_from(_front_points)
    rejected: list[Rejected] = read_from(_rejected_families)
    story: list[StoryStep] = read_from("advice.story")
    replicas: Replicas | None = read_from(_whole_copies)
    undone: list[Undone] = read_from("advice.undone")
    alternatives: list[Alternative] = read_from(_alternatives)
    notes: list[str] = read_from(lambda found: [*uneven_lines(found.ranking), *found.ranking.notes])
    batches: list[SweptBatch] = optional_key(
        lambda found: tuple((size, found.ranked_if(best), one) for size, best, one in found.advice.batches)
    )


def plans_document(advice: Advice, *, seconds: float, tokens: int | None = None) -> dict[str, Any]:
    """The search as plain values. ``seconds``: how long it took; ``tokens``: a budget of training, told in
    GPU-hours.
    """
    return Plans.document_of(SearchResult(advice, seconds, tokens))
