"""What a search for a way to serve prints, as types (``memsheet/serve-plans/1``)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memsheet.report.schema.search import Count, Interval, Result
from memsheet.report.schema.types import Bytes, Plan, Strict
from memsheet.sheet import Instant

Holds = Literal["yes", "perhaps", "no"]


class Load(Strict):
    """What is to be held; what nobody asked is null."""

    context: Count
    users: Count | None
    ttft_s: float | None
    tpot_s: float | None
    prompt_tokens: Count | None
    output_tokens: Count | None


class Looked(Strict):
    """``plans``: cuts that were tried; ``legal``: those that could be accounted."""

    plans: Count
    legal: Count
    seconds: float | None
    engines: list[str]


class Reason(Strict):
    """One thing that is asked of a plan, and its answer."""

    asks: Literal["memory", "users", "tpot", "ttft"]
    holds: Holds
    words: str


class Counted(Strict):
    """At least, and as expected."""

    low: Count
    value: Count


class ServePlan(Strict):
    """One plan, accounted and timed; ``plan`` can be asked again. ``sequences``: of the context, on all
    replicas; ``users``: of those, within the latency asked; ``decode_s``: between tokens while
    ``decode_batch`` sequences decode on a replica; ``prefill_s``: to the first token.
    """

    plan: Plan
    assumed: list[str]
    cut: str
    holds: Holds
    reasons: list[Reason]
    verdict: Result
    device_bytes: Bytes
    device_low_bytes: Bytes
    device_high_bytes: Bytes
    capacity_bytes: Bytes
    headroom_bytes: int
    rank: int
    instant: Instant
    weights_bytes: Bytes
    kv_cache_bytes: Bytes
    replicas: Count
    gpus_per_replica: Count
    sequences_per_replica: Counted
    sequences: Count
    users: Count
    users_low: Count
    users_per_gpu: float
    decode_batch: Count
    tokens_per_s: float | None
    decode_s: Interval | None
    decode_parts_s: dict[str, float] | None
    prefill_s: Interval | None
    command: str


class Rejected(Strict):
    family: str
    reason: str


class Way(Strict):
    """A change under which the load is held."""

    change: str
    best: ServePlan


class ServePlans(Strict):
    """The best plan first; ``comparison``: the places of those without stages, by size of group."""

    schema_: Literal["memsheet/serve-plans/1"] = Field(alias="schema")
    model: str
    gpus: str
    load: Load
    search: Looked
    holds: Holds
    plans: list[ServePlan]
    comparison: list[Count]
    rejected: list[Rejected]
    ways: list[Way]
    notes: list[str]
