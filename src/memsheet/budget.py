"""Whether a sheet fits a device: the budget, the verdict, and the answer that a question gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from memsheet.account import account_rank, deciding_stages
from memsheet.arith import Count, is_zero
from memsheet.formulas.states.params import idle_parameter_count, parameter_count
from memsheet.frozen import dataclass, replace
from memsheet.plan.device import Cluster
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.workload import Training
from memsheet.resolve import Resolved
from memsheet.sheet import Bytes, Component, Instant, Sheet

SHOWN = 3


@dataclass(frozen=True, slots=True)
class LibraryUse:
    """A library that trains on an engine. ``extra_bytes``: what of a plan is on each card and on no sheet, at
    the least (negative: saved) and at the most.
    """

    name: str
    extra_bytes: Callable[[ModelSpec, Plan], tuple[int, int]]


class Result(Enum):
    FITS = "fits"
    DOES_NOT_FIT = "does_not_fit"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a framework gets of a card, less what is to stay free. A range where the card's figure is
    derived.
    """

    low_bytes: int
    capacity_bytes: int
    high_bytes: int
    reserve_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a question, and the expected device bytes of the worst rank before and after it. Whoever
    adds ``key`` and ``also`` to the question gets them; on top of the answer's whole plan, which names what
    the question leaves to defaults, ``implied`` is needed, too. Keys are those of a plan, and ``gpus`` and
    ``nodes``, which lay out a cluster.
    """

    key: str
    before: Any
    after: Any
    before_bytes: int
    after_bytes: int
    words: str
    needs: str = ""  # what it costs elsewhere: host memory, more GPUs, another kind of training
    also: tuple[tuple[str, Any, Any], ...] = ()  # further keys that change with it, as (key, before, after)
    implied: tuple[tuple[str, Any, Any], ...] = ()  # and those of the whole plan whose defaults do, likewise

    @property
    def saves_bytes(self) -> int:
        return self.before_bytes - self.after_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """The changes that make a job fit, with the device bytes after all of them. ``host_short_bytes``: what a
    node needs besides of host memory that a batch script does not ask for. ``open_ended``: files leave open
    what may need more beside it. ``in_files``: of each file its name, and the changes in its own keys.
    """

    changes: tuple[Change, ...]
    device: Bytes
    host_bytes: int = 0
    host_short_bytes: int = 0
    open_ended: bool = False
    in_files: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """FITS when the high end fits, DOES_NOT_FIT when the low end does not, UNCERTAIN in between. ``rank`` is
    the worst one.
    """

    result: Result
    rank: int
    instant: Instant
    device: Bytes
    headroom_bytes: int
    largest: tuple[tuple[Component, Bytes], ...]
    cheapest_fix: Fix | None = None
    tried_changes: tuple[str, ...] = ()  # what was tried where none makes it fit, in words
    unsought: bool = False  # no change was looked for: the sheet is of another job than its files ask for
    no_most: bool = False  # what a file leaves open may need any more than the range's high end
    host_short_bytes: int = (
        0  # host memory that a node lacks for what is offloaded; the job does not fit then either
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderStep:
    """What a step at one sequence length needs on the worst rank, as it is asked and with every layer
    recomputed (None where that says nothing new).
    """

    seq_len: int
    device_bytes: int
    result: Result | None  # None where no cluster is named
    recomputed_bytes: int | None = None
    recomputed_result: Result | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEngine:
    """What the same question comes to on another engine, where nobody named one."""

    engine: str
    device: Bytes
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class WayToFit:
    """Something else that was accounted and fits, where no change on the same cards does. ``changes``: the
    plan's keys, ``gpus``, ``model``.
    """

    words: str
    changes: Mapping[str, Any]
    device: Bytes
    host_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything one question gets: the model, the whole plan, what was assumed, a sheet a distinct rank, the
    verdict.
    """

    model: ModelSpec
    parameters: int
    active_parameters: int
    plan: Plan
    assumed: tuple[str, ...]
    cluster: Cluster | None
    sheets: tuple[Sheet, ...]
    verdict: Verdict | None
    serving: Mapping[str, Any] | None = None
    trace: Mapping[str, Any] | None = (
        None  # what a traced answer says besides: events, the peak's operation, versions
    )
    notes: tuple[str, ...] = ()
    ladder: tuple[LadderStep, ...] = ()  # the lengths that were tried, where nobody said one
    other_engines: tuple[OtherEngine, ...] = ()
    ways_to_fit: tuple[WayToFit, ...] = ()
    job: Mapping[str, Any] | None = None  # of several models, as memsheet/job/1
    seeks_changes: bool = True  # whether what would be better was asked for, too


def answer_of(
    model: ModelSpec,
    resolved: Resolved,
    cluster: Cluster | None,
    sheets: tuple[Sheet, ...],
    verdict: Verdict | None,
) -> Answer:
    """The answer about a model that has been read."""
    count = parameter_count(model)
    return Answer(
        model=model,
        parameters=count,
        active_parameters=count - idle_parameter_count(model),
        plan=resolved.plan,
        assumed=resolved.assumed,
        cluster=cluster,
        sheets=sheets,
        verdict=verdict,
    )


def budget_of(cluster: Cluster, reserve_bytes: int = 0) -> Budget:
    """The budget of one device of a cluster."""
    device = cluster.device
    return Budget(
        low_bytes=device.framework_low_bytes - reserve_bytes,
        capacity_bytes=device.framework_bytes - reserve_bytes,
        high_bytes=device.framework_high_bytes - reserve_bytes,
        reserve_bytes=reserve_bytes,
    )


def worst_sheet(sheets: tuple[Sheet, ...]) -> Sheet:
    """The sheet with the most device bytes."""
    return max(sheets, key=lambda sheet: sheet.device.high)


def judge_sheets(sheets: tuple[Sheet, ...], budget: Budget) -> Verdict:
    """The verdict over all ranks, and the rank that decides it. Headroom is what the expected value leaves,
    negative where it does not fit.
    """
    devices = [sheet.device for sheet in sheets]
    highest = max(range(len(sheets)), key=lambda n: devices[n].high)
    if max(size.low for size in devices) > budget.high_bytes:
        result, at = Result.DOES_NOT_FIT, max(range(len(sheets)), key=lambda n: devices[n].low)
    else:
        result, at = Result.FITS if devices[highest].high <= budget.low_bytes else Result.UNCERTAIN, highest
    sheet, device = sheets[at], devices[at]
    return Verdict(
        result=result,
        rank=sheet.rank,
        instant=sheet.peak_instant,
        device=device,
        headroom_bytes=budget.capacity_bytes - device.value,
        largest=largest_components(sheet),
    )


def judge_on(sheets: tuple[Sheet, ...], cluster: Cluster) -> Verdict:
    """The verdict on a cluster: what does not fit its nodes' host memory does not fit either."""
    verdict, short = judge_sheets(sheets, budget_of(cluster)), host_shortage(sheets, cluster)
    return replace(verdict, result=Result.DOES_NOT_FIT, host_short_bytes=short) if short else verdict


def card_ends(
    model: ModelSpec, plan: Plan, cluster: Cluster, sheets: tuple[Sheet, ...]
) -> tuple[tuple[tuple[Sheet, ...], Cluster], ...]:
    """The sheets and the cluster that they are judged on: of a server that takes a share of a card, known as
    a range, once with the least card and once with the largest, as the share grows with the card. Between the
    two, need less room is linear in the card's size.
    """
    sizes = {cluster.device.framework_low_bytes, cluster.device.framework_high_bytes}
    if plan.cache.memory_fraction is None or len(sizes) == 1:
        return ((sheets, cluster),)
    whole = [
        replace(
            cluster,
            device=replace(
                cluster.device, framework_bytes=size, framework_low_bytes=size, framework_high_bytes=size
            ),
        )
        for size in sorted(sizes)
    ]
    return tuple(
        (tuple(account_rank(model, plan, one, sheet.stage) for sheet in sheets), one) for one in whole
    )


def judge_plan(model: ModelSpec, plan: Plan, cluster: Cluster, sheets: tuple[Sheet, ...]) -> Verdict:
    """The verdict on the sheets of a plan: what is the same with the least and with the largest of cards
    known as a range is sure.
    """
    verdict = judge_on(sheets, cluster)
    if verdict.result is not Result.UNCERTAIN:
        return verdict
    ends = {judge_on(held, card).result for held, card in card_ends(model, plan, cluster, sheets)}
    return replace(verdict, result=ends.pop()) if len(ends) == 1 else verdict


def deciding_sheets(model: ModelSpec, plan: Plan, cluster: Cluster) -> dict[int, Sheet]:
    """By stage the sheets, by shares of slack, of those stages of a training that can hold most; none of a
    plan that serves. Raises InputError as ``account_rank`` does.
    """
    if not isinstance(plan.workload, Training):
        return {}
    return {
        stage: account_rank(model, plan, cluster, stage, replays=False)
        for stage in deciding_stages(model, plan)
    }


def tensors_fit(sheets: Iterable[Sheet], cluster: Cluster) -> bool:
    """Whether what a training step's tensors add up to is enough to say that no sheet of it, by shares of
    slack, is judged not to fit: ``sheets`` are of the stages that can hold most.
    """
    most, lows = budget_of(cluster).high_bytes, list[Count]()
    for sheet in sheets:
        if not is_zero(sheet.host_bytes):
            return False
        lows += [sum([size.low for size in row.values()]) for row in sheet.sums().values()]
    return bool(lows) and max(lows) <= most


def verdict_with_extra_bytes(verdict: Verdict, cluster: Cluster, low_bytes: int, high_bytes: int) -> Verdict:
    """The verdict where from ``low_bytes`` (negative: saved) to ``high_bytes`` more are on each card than on
    its sheet; where that is nothing, the verdict as it is, whatever card it was judged on.
    """
    budget = budget_of(cluster)
    over = (
        verdict.result is Result.FITS
        and high_bytes > 0
        and verdict.device.high + high_bytes > budget.low_bytes
    )
    under = (
        verdict.result is Result.DOES_NOT_FIT
        and low_bytes < 0
        and not verdict.host_short_bytes
        and verdict.device.low + low_bytes <= budget.high_bytes
    )
    return replace(verdict, result=Result.UNCERTAIN) if over or under else verdict


def verdict_on_start(verdict: Verdict, short: Bytes) -> Verdict:
    """The verdict on a server whose own budget lacks ``short`` bytes for one sequence (negative: has left):
    it refuses to start then.
    """
    if short.high <= 0 or verdict.result is Result.DOES_NOT_FIT:
        return verdict
    result = Result.DOES_NOT_FIT if short.low > 0 else Result.UNCERTAIN
    return replace(verdict, result=result, headroom_bytes=min(verdict.headroom_bytes, -int(short.value)))


def verdict_on_held_sequences(verdict: Verdict, wanted: int, held: Bytes, missing_bytes: int) -> Verdict:
    """The verdict on ``wanted`` sequences of which a server's pool holds ``held``; what does not start holds
    none.
    """
    if verdict.result is Result.DOES_NOT_FIT or (held.low >= wanted and verdict.result is Result.FITS):
        return verdict
    result = Result.DOES_NOT_FIT if held.high < wanted else Result.UNCERTAIN
    return replace(
        verdict,
        result=result,
        headroom_bytes=min(verdict.headroom_bytes, -missing_bytes)
        if missing_bytes
        else verdict.headroom_bytes,
    )


def host_shortage(sheets: tuple[Sheet, ...], cluster: Cluster) -> int:
    """Bytes of host memory that a node lacks for its ranks; 0 where it has enough or nobody said how much it
    has. Where processor and device share their memory, the host has what the device leaves; what is too
    large for the device itself is told by that.
    """
    # a server may be one process for all cards, which one of them says
    ranks = sum(1 + len(sheet.same_as) for sheet in sheets if sheet.host_bytes)
    needed = max(sheet.host_bytes for sheet in sheets) * min(cluster.per_node, ranks)
    short = max(0, needed - cluster.host_bytes) if cluster.host_bytes is not None else 0
    shared = cluster.device.shared_bytes
    if shared is None or not needed:
        return short
    most = cluster.device.framework_high_bytes
    both = (s.host_bytes + int(s.device.low) for s in sheets if s.host_bytes and s.device.low <= most)
    return max(short, (max(both, default=0) - shared) * cluster.per_node)


def largest_components(sheet: Sheet) -> tuple[tuple[Component, Bytes], ...]:
    """The components that take most at the peak, largest first."""
    peak = sheet.sums()[sheet.peak_instant]
    sizes = [(component, peak[component]) for component in Component if component in peak]
    return tuple(sorted((pair for pair in sizes if pair[1].value), key=lambda pair: -pair[1].value)[:SHOWN])
