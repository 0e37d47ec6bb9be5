"""Values of one quantity in the order of growing need, each resolved, accounted and judged as `memsheet
train` does, and the edge between those that fit and those that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from memsheet.account import account_rank, deciding_stages
from memsheet.budget import (
    Answer,
    LibraryUse,
    Verdict,
    answer_of,
    budget_of,
    card_ends,
    judge_plan,
    verdict_on_start,
    verdict_with_extra_bytes,
)
from memsheet.errors import InputError, Problem, raise_if_problems
from memsheet.frozen import dataclass, field, replace
from memsheet.plan.device import Cluster
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.hardware import unsupported_choices
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.workload import Training
from memsheet.resolve import Resolved, resolve_request
from memsheet.search.pool_room import Pool, pool_of
from memsheet.sheet import Component, Sheet


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One whole question: what is run, how, on what."""

    model: ModelSpec
    request: Mapping[str, Any]
    cluster: Cluster
    library: LibraryUse | None = None
    """What is on each card beside the sheet, where a library is named."""
    at_once: int = 1
    """Sequences that a server's pool is to hold."""


SLACK = (Component.ALLOCATOR_SLACK,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A value and what it comes to."""

    value: int
    model: ModelSpec
    cluster: Cluster
    resolved: Resolved
    replayed: bool
    sheets: tuple[Sheet, ...]
    verdict: Verdict
    pool: Pool | None = None  # of a server that has one
    beside_high_bytes: int = 0  # on the card and on no sheet, at the most

    @property
    def plan(self) -> Plan:
        return self.resolved.plan

    @property
    def assumed(self) -> tuple[str, ...]:
        return self.resolved.assumed

    @property
    def as_answered(self) -> bool:
        """Whether this is what an answer says: of engines whose steps can be replayed, with this one
        replayed.
        """
        engine = find_engine(self.plan.engine)
        return (
            self.replayed
            or engine is None
            or not engine.replays
            or not isinstance(self.plan.workload, Training)
        )

    @property
    def answer(self) -> Answer:
        """The same as an answer to the question."""
        return answer_of(self.model, self.resolved, self.cluster, self.sheets, self.verdict)

    @property
    def spare_bytes(self) -> int:
        """What the high end of the range leaves of the least that the card gives; negative where that is not
        sure to fit.
        """
        ends = card_ends(self.model, self.plan, self.cluster, self.sheets)
        least = min(
            budget_of(card).low_bytes - max(sheet.device.high for sheet in sheets) for sheets, card in ends
        ) - max(0, self.beside_high_bytes)
        least = min(least, -self.pool.lacks.high) if self.pool else least
        return (
            int(min(least, -self.verdict.host_short_bytes)) if self.verdict.host_short_bytes else int(least)
        )

    @property
    def expected_spare_bytes(self) -> int:
        """The same of the expected bytes."""
        left = budget_of(self.cluster).capacity_bytes - max(sheet.device.value for sheet in self.sheets)
        left = min(left, -self.pool.lacks.value) if self.pool else left
        return int(min(left, -self.verdict.host_short_bytes)) if self.verdict.host_short_bytes else int(left)

    def spare_with_slack(self, percent: int) -> int:
        """The same of the expected bytes, were the allocator's slack so much of what is allocated."""
        needs = (
            sheet.at(when, without=SLACK).value + sheet.at(when).value * percent // 100
            for sheet in self.sheets
            for when in sheet.instants
        )
        return int(budget_of(self.cluster).capacity_bytes - max(needs))

    @property
    def stage(self) -> int:
        """The pipeline stage of the rank that decides."""
        return next(sheet.stage for sheet in self.sheets if sheet.rank == self.verdict.rank)


def account_trial(value: int, question: Question, *, replays: bool, decides: bool = False) -> Tried:
    """The verdict on a question, as an answer to it would give it. ``decides``: by the stages of a pipeline
    that can hold most alone, each of which stands for those that have the same layers. Raises InputError
    where it is no legal one.
    """
    model, cluster = question.model, question.cluster
    resolved = resolve_request(question.request, model, cluster)
    raise_if_problems(unsupported_choices(resolved.plan, cluster, model))
    alike = (
        deciding_stages(model, resolved.plan) if decides else dict.fromkeys(range(resolved.plan.mesh.pp), ())
    )
    sheets = tuple(
        _stage_sheet(question, resolved.plan, stage, others, replays=replays)
        for stage, others in alike.items()
    )
    pool = pool_of(model, resolved.plan, cluster, sheets, question.at_once)
    low, high = question.library.extra_bytes(model, resolved.plan) if question.library else (0, 0)
    verdict = verdict_with_extra_bytes(judge_plan(model, resolved.plan, cluster, sheets), cluster, low, high)
    return Tried(
        value=value,
        model=model,
        cluster=cluster,
        resolved=resolved,
        replayed=replays,
        sheets=sheets,
        pool=pool,
        beside_high_bytes=high,
        verdict=verdict_on_start(verdict, pool.lacks) if pool else verdict,
    )


def _stage_sheet(
    question: Question, plan: Plan, stage: int, others: Iterable[int], *, replays: bool
) -> Sheet:
    """The sheet of a stage's ranks, and of those of ``others``, which hold no more."""
    sheet = account_rank(question.model, plan, question.cluster, stage, replays=replays)
    ranks = 1 + len(sheet.same_as)
    more = (rank for other in others for rank in range(other * ranks, (other + 1) * ranks))
    return replace(sheet, same_as=(*sheet.same_as, *more))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """``values`` in the order of growing need, and the question that each one asks. What was tried once is
    remembered.
    """

    values: Sequence[int]
    asks: Callable[[int], Question]
    known: dict[tuple[int, bool], Tried | tuple[Problem, ...]] = field(default_factory=dict)
    probes: int = 16
    """Values that are replayed over the stretch where slack decides, before those around each change of the
    verdict.
    """
    say: Callable[[int], None] = lambda _: None
    """Told of each value whose step is about to be replayed."""

    def at(self, index: int, *, replays: bool = False) -> Tried:
        """What the value at ``index`` comes to. Raises InputError where it is not legal."""
        key = index, replays
        if key not in self.known:
            value = self.values[index]
            if replays:
                self.say(value)
            try:
                self.known[key] = account_trial(value, self.asks(value), replays=replays)
            except InputError as error:
                self.known[key] = error.problems
        found = self.known[key]
        if isinstance(found, tuple):
            raise InputError(found)
        return found

    def problems(self, index: int) -> tuple[Problem, ...]:
        """Why a value is not legal; empty where it is."""
        try:
            self.at(index)
        except InputError as error:
            return error.problems
        return ()

    @property
    def tried(self) -> tuple[Tried, ...]:
        """What was accounted as an answer is, in the order of values."""
        return tuple(found for _, found in self.answered)

    @property
    def answered(self) -> tuple[tuple[int, Tried], ...]:
        """The same with its indices."""
        known = {
            index: found
            for (index, _), found in self.known.items()
            if isinstance(found, Tried) and found.as_answered
        }
        return tuple(sorted(known.items(), key=lambda item: item[0]))

    def legal(self, indices: Iterable[int]) -> int | None:
        """The first of ``indices`` whose value is legal."""
        return next((index for index in indices if not self.problems(index)), None)


Spare = Callable[[Tried], int]
Edge = tuple[int | None, int | None]
"""The last index that fits and the next legal one that does not; None where there is none."""


def fitting_edge(trials: Trials, spare: Spare) -> Edge:
    """Where what fits ends, by shares of slack: the ends are tried, and the bracket between them is halved.

    Need is not taken to grow evenly: whatever happens between, the first of the two was found to fit and the
    second not to, with no legal value between them. Raises InputError where no value is legal.
    """
    count = len(trials.values)
    first, last = trials.legal(range(count)), trials.legal(reversed(range(count)))
    if first is None or last is None:
        raise InputError(min(map(trials.problems, range(count)), key=len))
    if spare(trials.at(last)) >= 0:
        return last, None
    low, high = (first, last) if spare(trials.at(first)) >= 0 else _bracket_backwards(trials, spare, last)
    return (None, first) if low is None else _bisect_bracket(trials, spare, low, high)


def _bracket_backwards(trials: Trials, spare: Spare, last: int) -> tuple[int | None, int]:
    """The nearest of 1, 2, 4 … steps before the end that fits, and the one after it: need may fall and rise
    again, as it does where so many GPUs share a model that padding outweighs their shares.
    """
    high = last
    for step in (1 << power for power in range(last.bit_length())):
        index = trials.legal(range(last - step, -1, -1))
        if index is None:
            break
        if spare(trials.at(index)) >= 0:
            return index, high
        high = index
    return None, high


def _narrow_bracket(ends: tuple[int, int], at: int, *, fits: bool) -> tuple[int, int]:
    return (at, ends[1]) if fits else (ends[0], at)


def _bisect_bracket(trials: Trials, spare: Spare, low: int, high: int) -> Edge:
    """A bracket halved until no legal value lies in it."""
    while high - low > 1:
        middle = (low + high) // 2
        index = trials.legal((*range(middle, low, -1), *range(middle + 1, high)))
        if index is None:
            break
        low, high = _narrow_bracket((low, high), index, fits=spare(trials.at(index)) >= 0)
    return low, high
