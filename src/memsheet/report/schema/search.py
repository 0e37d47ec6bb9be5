"""What searches print, as types: ranked plans (``memsheet/plans/1``) and what was solved for
(``memsheet/solution/1``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from memsheet.report.schema.types import Bytes, Fix, Plan, Strict, WayToFit
from memsheet.sheet import Component, Instant

Result = Literal["fits", "does_not_fit", "uncertain"]
Count = Annotated[int, Field(ge=0)]


class Interval(Strict):
    """Seconds, or hours; the true value is expected between ``low`` and ``high``."""

    low: float
    value: float
    high: float


class Search(Strict):
    """``plans``: combinations that were made; ``legal``: those an engine can run; ``results``: of the legal
    ones.
    """

    plans: Count
    legal: Count
    seconds: float
    engines: list[str]
    results: dict[Result, Count]


class RankedPlan(Strict):
    """One plan, accounted and timed; ``plan`` can be asked again."""

    plan: Plan
    assumed: list[str]
    verdict: Result
    allocated_bytes: Bytes
    device_bytes: Bytes
    device_low_bytes: Bytes
    device_high_bytes: Bytes
    capacity_bytes: Bytes
    headroom_bytes: int
    host_bytes: Bytes
    rank: int
    instant: Instant
    step_time_s: Interval | None
    tokens_per_s: float | None
    parts_s: dict[str, float] | None
    mfu: float | None
    calibrated: str | None
    gpu_hours: Interval | None
    command: str


class Expected(Strict):
    value: float


class Point(Strict):
    """A plan that none beats in both memory and time."""

    plan: Plan
    device_bytes: Bytes
    step_time_s: Expected


class Rejected(Strict):
    """A family of plans that is not the best one and why; ``family`` null: a rule that ruled out so many
    combinations.
    """

    family: str | None
    reason: str
    plans: Count
    engine: str | None = None
    choice: dict[str, Any] | None = None
    fit: Count | None = None
    step_time_s: float | None = None
    missing_bytes: Bytes | None = None
    host_missing_bytes: Bytes | None = None
    rank: int | None = None
    stage: int | None = None
    instant: Instant | None = None
    slower: str | None = None
    slower_s: float | None = None


class Told(Strict):
    """A step of the story; ``costs_time`` in seconds of a step, ``saves_bytes`` negative where it costs."""

    question: str
    change: str
    flag: str
    why: str
    engine: str
    device_bytes: Bytes
    saves_bytes: int
    step_time_s: float | None
    costs_time: float | None
    host_bytes: Bytes
    fits: bool
    taken: bool
    shares_batch: bool
    without_states_bytes: Bytes | None


class Exchanged(Strict):
    gathered_bytes: Bytes
    gathers: Count
    gathered_s: float
    reduced_bytes: Bytes
    reductions: Count
    reduced_s: float


class Replicas(Strict):
    """Whole copies (DDP), and the same with every state divided (ZeRO-3)."""

    fastest: RankedPlan
    plain: RankedPlan | None
    sharded: RankedPlan | None
    exchanged: dict[Literal["plain", "sharded"], Exchanged]


class Undone(Strict):
    saving: str
    missing_bytes: Bytes
    step_time_s: Interval | None
    gains_s: float


class Alternative(Strict):
    """Another method on the same GPUs, or more of them (``kind`` gpus)."""

    kind: str
    gpus: Count
    best: RankedPlan | None
    reason: str | None


class Nodes(Strict):
    """Devices of a node, nodes, and the host memory of one where it was said."""

    per_node: Count
    nodes: Count
    host_bytes: Bytes | None


class SweptBatch(Strict):
    """One of the global batches that were looked at where none was asked for."""

    global_batch: int
    best: RankedPlan | None
    result: Result | None


class Plans(Strict):
    """``memsheet/plans/1``: the fastest plans that fit, and why the others are not. ``result``: whether one
    is sure to fit, one of ``unsure`` may, or none can; null where none is legal.
    """

    schema_: Literal["memsheet/plans/1"] = Field(alias="schema")
    model: str
    gpus: str
    cluster: Nodes
    search: Search
    plans: list[RankedPlan]
    by_engine: dict[str, RankedPlan]
    least: RankedPlan | None
    result: Result | None
    unsure: list[RankedPlan]
    pareto: list[Point]
    rejected: list[Rejected]
    story: list[Told]
    replicas: Replicas | None
    undone: list[Undone]
    alternatives: list[Alternative]
    notes: list[str]
    batches: list[SweptBatch] | None = None


class Sized(Strict):
    name: str
    parameters: int
    layers: int
    hidden: int


class Large(Strict):
    component: Component
    bytes: Bytes


class TriedValue(Strict):
    value: int
    gpus: Count
    model: Sized
    replayed: bool
    result: Result
    rank: int
    stage: int
    instant: Instant
    device_bytes: Bytes
    device_low_bytes: Bytes
    device_high_bytes: Bytes
    headroom_bytes: int
    host_short_bytes: int
    largest: list[Large]


class Card(Strict):
    name: str
    capacity_bytes: Bytes
    count: Count


class SizePoint(Strict):
    gpus: Count
    parameters: int | None


class Sizes(Strict):
    name: str
    zero: int
    engine: str
    points: list[SizePoint]
    reason: str | None


class SkippedValue(Strict):
    value: int
    reason: str


class TriedResult(Strict):
    value: int
    result: Result


class Looked(Strict):
    values: str
    accounted: Count
    skipped: list[SkippedValue]
    tried: list[TriedResult]


class Solution(Strict):
    """``memsheet/solution/1``: the last value up to which every one tried fits, the next that does not, the
    last tried that fits (another where the verdict alternates), the last tried whose expected bytes do. Each
    is what an answer to it says.
    """

    schema_: Literal["memsheet/solution/1"] = Field(alias="schema")
    solve: str
    result: Result
    unit: str
    value: int | None
    found: TriedValue | None
    next: TriedValue | None
    last_fitting: TriedValue | None
    expected: TriedValue | None
    possible: TriedValue | None
    least: TriedValue | None
    plan: Plan
    assumed: list[str]
    device: Card
    search: Looked
    sizes: list[Sizes] | None = None
    cheapest_fix: Fix | None
    notes: list[str]
    ways_to_fit: list[WayToFit] | None = None
