"""Values of one quantity in the order of growing need, each resolved, accounted and judged as `memsheet train` does, and the edge between
those that fit and those that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memsheet.account import account
from memsheet.budget import Result, Verdict, budget_of, host_shortage, judge
from memsheet.errors import InputError, Problem, require
from memsheet.resolve import resolve
from memsheet.sheet import Sheet
from memsheet.spec.device import Cluster
from memsheet.spec.hardware import unsupported
from memsheet.spec.model import ModelSpec
from memsheet.spec.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One whole question: what is run, how, on what."""

    model: ModelSpec
    request: Mapping[str, Any]
    cluster: Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A value and what it comes to."""

    value: int
    model: ModelSpec
    cluster: Cluster
    plan: Plan
    assumed: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    verdict: Verdict

    @property
    def spare_bytes(self) -> int:
        """What the high end of the range leaves of the least that the card gives; negative where that is not sure to fit."""
        least = budget_of(self.cluster).low_bytes - max(sheet.device.high for sheet in self.sheets)
        return int(min(least, -self.verdict.host_short_bytes)) if self.verdict.host_short_bytes else int(least)

    @property
    def expected_spare_bytes(self) -> int:
        """The same of the expected bytes."""
        left = budget_of(self.cluster).capacity_bytes - max(sheet.device.value for sheet in self.sheets)
        return int(min(left, -self.verdict.host_short_bytes)) if self.verdict.host_short_bytes else int(left)

    @property
    def stage(self) -> int:
        """The pipeline stage of the rank that decides."""
        return next(sheet.stage for sheet in self.sheets if sheet.rank == self.verdict.rank)


def attempt(value: int, question: Question, *, replays: bool) -> Tried:
    """The verdict on a question, as an answer to it would give it. Raises InputError where it is no legal one."""
    model, cluster = question.model, question.cluster
    resolved = resolve(question.request, model, cluster)
    require(unsupported(resolved.plan, cluster))
    stages = range(resolved.plan.mesh.pp)
    sheets = tuple(account(model, resolved.plan, cluster, stage, replays=replays) for stage in stages)
    verdict, short = judge(sheets, budget_of(cluster)), host_shortage(sheets, cluster)
    if short:
        verdict = replace(verdict, result=Result.DOES_NOT_FIT, host_short_bytes=short)
    return Tried(
        value=value, model=model, cluster=cluster, plan=resolved.plan, assumed=resolved.assumed, sheets=sheets, verdict=verdict
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """``values`` in the order of growing need, and the question that each one asks. What was tried once is remembered."""

    values: Sequence[int]
    asks: Callable[[int], Question]
    known: dict[tuple[int, bool], Tried | tuple[Problem, ...]] = field(default_factory=dict)

    def at(self, index: int, *, replays: bool = False) -> Tried:
        """What the value at ``index`` comes to. Raises InputError where it is not legal."""
        key = index, replays
        if key not in self.known:
            value = self.values[index]
            try:
                self.known[key] = attempt(value, self.asks(value), replays=replays)
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

    def legal(self, indices: Iterable[int]) -> int | None:
        """The first of ``indices`` whose value is legal."""
        return next((index for index in indices if not self.problems(index)), None)


Spare = Callable[[Tried], int]
PATIENCE = 2
"""Guesses along a line that may move the same end of a bracket before it is halved."""


@dataclass(slots=True)
class _Bracket:
    """The last index known to fit and the first known not to, with what each has to spare; -1 and the number of values stand for none."""

    low: int
    high: int
    low_spare: int = 0
    high_spare: int = 0
    moved: int = 0  # times in a row that the same end moved: positive the low one, negative the high one

    def put(self, index: int, spare: int) -> None:
        if spare >= 0:
            self.low, self.low_spare, self.moved = index, spare, max(self.moved, 0) + 1
        else:
            self.high, self.high_spare, self.moved = index, spare, min(self.moved, 0) - 1

    def guess(self) -> int:
        """Where a line between the ends crosses zero, farther from an end that keeps moving, in the end the middle."""
        if abs(self.moved) > PATIENCE:
            self.moved = 0
            return (self.low + self.high) // 2
        crossing = self.low + (self.high - self.low) * self.low_spare // max(1, self.low_spare - self.high_spare)
        step = 1 << max(0, abs(self.moved) - 1)
        near = max(crossing, self.low + step) if self.moved > 0 else min(crossing, self.high - step)
        return min(max(near, self.low + 1), self.high - 1)


def edge(trials: Trials, spare: Spare, *, replays: bool = False, probes: Iterable[int] = ()) -> tuple[int | None, int | None]:
    """The last index that fits and the next legal one that does not, None where there is none.

    Need is not taken to grow evenly: whatever happens between, the first of the two was found to fit and the second not to, with no legal
    value between them. ``probes`` are indices to look at first. Raises InputError where no value is legal.
    """
    count = len(trials.values)
    first, last = trials.legal(range(count)), trials.legal(reversed(range(count)))
    if first is None or last is None:
        raise InputError(trials.problems(0))
    bracket = _Bracket(-1, count)
    for index in (*probes, last, first):
        wanted = bracket.low < index < bracket.high and not (index == first and bracket.low >= 0)
        if wanted and not trials.problems(index):
            bracket.put(index, spare(trials.at(index, replays=replays)))
    if bracket.low < 0:
        return None, bracket.high
    if bracket.high == count:
        return bracket.low, None
    bracket.moved = 0
    while (index := _between(trials, bracket)) is not None:
        bracket.put(index, spare(trials.at(index, replays=replays)))
    return bracket.low, bracket.high


def _between(trials: Trials, bracket: _Bracket) -> int | None:
    """The legal index nearest to a bracket's guess: downwards first, then upwards."""
    if bracket.high - bracket.low < 2:
        return None
    guess = bracket.guess()
    return trials.legal((*range(guess, bracket.low, -1), *range(guess + 1, bracket.high)))
