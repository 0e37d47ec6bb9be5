"""The way from the naive run to one that fits, told in the order practitioners reason. It stops as soon as
the job fits.

Each step is resolved, accounted and judged like any plan. A step that fits is accounted again with its
allocations replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.budget import Result, budget_of
from memsheet.errors import InputError
from memsheet.formulas.step_time import quick_s
from memsheet.frozen import dataclass, replace
from memsheet.plan.device import Cluster
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import ModelSpec
from memsheet.search.fixes.levers import LEVERS, Lever, TrialPlan, default_precision, naive_trial_plan
from memsheet.search.train.timed import Planned, Scaled
from memsheet.search.trials import Question, Tried, account_trial
from memsheet.sheet import Bytes, Component, Instant

STATES = (Component.MASTER_WEIGHTS, Component.GRADIENTS, Component.OPTIMIZER_STATES)
PASSES = (Instant.FORWARD, Instant.LOSS, Instant.BACKWARD)
WORTH = 0.01
"""Of the card: a lever that saves less is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change on the way, and the question it answers. ``change``: in words, empty where nothing had to
    change; ``flag``: what turns it on; ``device``: what the worst GPU then needs; ``saves_bytes``: against
    the step before, negative where it costs; ``seconds``: a step's time where it can be told; ``costs_s``:
    against the step before. ``taken``: False where it was tried and taken back, for the job did not fit with
    it.
    """

    change: str
    flag: str
    why: str
    device: Bytes
    saves_bytes: int
    seconds: float | None
    costs_s: float | None
    fits: bool
    asks: str = ""
    taken: bool = True
    host_bytes: int = 0
    host_short_bytes: int = 0  # what a node's host lacks
    engine: str = ""
    # whether its ranks share the batch that was asked for; else it is no plan for it, and bytes are a
    # micro-batch's
    shares: bool = True
    part_bytes: int = (
        0  # parameters and activations without gradients and states, where the question is about them
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """Where the way has come to."""

    way: TrialPlan
    tried: Tried
    seconds: float | None

    @property
    def fits(self) -> bool:
        """Whether it is a plan for what was asked: also the ranks share the batch."""
        return self.tried.verdict.result is Result.FITS and not self.alone

    @property
    def alone(self) -> bool:
        """Whether its ranks cannot share the batch that was asked for, so that its bytes are those of a
        micro-batch alone.
        """
        return self.tried.plan.training.global_batch is None

    @property
    def high(self) -> int:
        return max(int(sheet.device.high) for sheet in self.tried.sheets)

    @property
    def value(self) -> int:
        """Expected bytes of the GPU that may need most."""
        return int(max(self.tried.sheets, key=lambda sheet: sheet.device.high).device.value)

    @property
    def kept_bytes(self) -> int:
        """The most without gradients and states: parameters, and what forward keeps."""
        peaks = (sheet.at(instant, without=STATES).value for sheet in self.tried.sheets for instant in PASSES)
        return int(max(peaks))

    @property
    def room_bytes(self) -> int:
        return budget_of(self.way.cluster).low_bytes


def story_steps(
    model: ModelSpec,
    cluster: Cluster,
    request: Mapping[str, Any],
    chosen: Planned,
    scaled: Scaled = lambda _: None,
) -> tuple[Step, ...]:
    """From the naive run, under the engine of ``chosen``, to the first that fits. Empty where not even the
    naive run is legal.
    """
    engine = find_engine(chosen.plan.engine)
    if engine is None:
        return ()
    asked = {
        key: value for key, value in request.items() if value is not None and key not in ("engine", "task")
    } | {"task": "train"}
    way = naive_trial_plan(
        engine, cluster, model, asked, min(int(chosen.plan.training.microbatch), int(asked["global_batch"]))
    )
    ways = (
        replace(way, zero=zero, precision=name)
        for zero in sorted({way.zero, *engine.zero})
        for name in dict.fromkeys((way.precision, None))
    )
    start = next((at for one in ways if (at := _account_trial_plan(model, one, scaled)) is not None), None)
    return tuple(_walk_levers(model, start, scaled)) if start is not None else ()


def _walk_levers(model: ModelSpec, at: _At, scaled: Scaled) -> Iterator[Step]:
    yield _story_step(
        at, None, asks="Does it fit at all?", change=_naive_plan_words(at.way), flag="", why="nothing saved"
    )
    for lever in LEVERS:
        if at.fits:
            return
        if lever.keeps and at.kept_bytes <= at.room_bytes:
            if lever.name == "recompute":
                yield _story_step(
                    at, at, asks=lever.asks, change="", flag="", why="", part_bytes=at.kept_bytes
                )
            continue
        found = _gentlest_lever_option(model, at, lever, scaled)
        if found is None:
            continue
        change, flag, to = found
        taken = to.fits or not lever.spares
        yield _story_step(
            to,
            at,
            asks=lever.asks,
            change=change,
            flag=flag,
            why=lever.why,
            taken=taken,
            part_bytes=to.kept_bytes * lever.keeps,
        )
        at = to if taken else at


def _naive_plan_words(way: TrialPlan) -> str:
    whole = (
        "everything kept"
        if way.cluster.count == 1
        else "a copy on every GPU"
        if way.zero == 0
        else f"ZeRO-{way.zero}"
    )
    return f"{way.precision or default_precision(way)}, {whole}"


def _gentlest_lever_option(
    model: ModelSpec, at: _At, lever: Lever, scaled: Scaled
) -> tuple[str, str, _At] | None:
    """The gentlest option that does; else the one that needs least, where it is worth telling."""
    found = list[tuple[str, str, _At]]()
    for change, flag, way in lever.options(at.way):
        to = _account_trial_plan(model, way, scaled)
        if to is None:
            continue
        found.append((change, flag, to))
        if to.fits or (lever.keeps and to.kept_bytes <= to.room_bytes):
            return found[-1]
    if not found:
        return None
    needs = [to.kept_bytes if lever.keeps else to.high for _, _, to in found]
    least = min(needs)
    before = at.kept_bytes if lever.keeps else at.high
    return found[needs.index(least)] if least <= before - WORTH * at.room_bytes else None


def _account_trial_plan(model: ModelSpec, way: TrialPlan, scaled: Scaled) -> _At | None:
    """What a way comes to; None where it is not legal."""
    if not way.ranks:
        return None
    question = Question(model=model, request=way.request(), cluster=way.cluster)
    try:
        tried = account_trial(0, question, replays=False)
        tried = account_trial(0, question, replays=True) if tried.verdict.result is Result.FITS else tried
    except InputError:
        return None
    return _At(way=way, tried=tried, seconds=_trial_step_s(model, way, tried, scaled))


def _trial_step_s(model: ModelSpec, way: TrialPlan, tried: Tried, scaled: Scaled) -> float | None:
    """A step of the global batch that was asked for; another one's time says nothing."""
    if tried.plan.training.global_batch is None:
        return None
    try:
        return float(quick_s(model, tried.plan, way.cluster, efficiency=scaled(tried.plan.engine)))
    except InputError:
        return None


def _story_step(
    to: _At, before: _At | None, *, taken: bool = True, part_bytes: int = 0, **words: str
) -> Step:
    worst = max(to.tried.sheets, key=lambda sheet: sheet.device.high)
    return Step(
        device=worst.device,
        saves_bytes=before.value - to.value if before else 0,
        shares=not to.alone,
        seconds=to.seconds,
        costs_s=_added_step_s(to, before),
        fits=to.fits,
        taken=taken,
        host_bytes=max(sheet.host_bytes for sheet in to.tried.sheets),
        host_short_bytes=to.tried.verdict.host_short_bytes,
        engine=to.way.named,
        part_bytes=part_bytes,
        **words,
    )


def _added_step_s(to: _At, before: _At | None) -> float | None:
    if before is None or before.seconds is None or to.seconds is None:
        return None
    return to.seconds - before.seconds
