"""What a deployment is asked to hold, and how a plan answers: users, memory and latencies, each surely,
perhaps or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any

from memsheet.budget import Result, Verdict
from memsheet.errors import input_error
from memsheet.formulas.serving.dp_attention import group_plan
from memsheet.formulas.serving_time import Seconds
from memsheet.frozen import dataclass
from memsheet.plan.device import Cluster
from memsheet.plan.plan import Plan
from memsheet.sheet import Bytes, Sheet
from memsheet.units import format_bytes


class Holds(IntEnum):
    """Whether a plan holds what is asked, from the ends of its ranges; better ones come first."""

    YES = 0
    PERHAPS = 1
    NO = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``context``: tokens of every user's sequence at its longest; ``users`` at once; seconds to the first
    token and between tokens; tokens of prompts and answers where they are known. None: not asked.
    """

    context: int
    users: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def prompt(self) -> int:
        """Tokens that are read before the first answer: of the whole context where nobody says."""
        return self.prompt_tokens if self.prompt_tokens is not None else self.context

    @property
    def middle(self) -> int:
        """Tokens that a sequence holds while it answers: all of its context, or the prompt and half of the
        answer.
        """
        if self.prompt_tokens is None:
            return self.context
        return min(self.context, self.prompt_tokens + (self.output_tokens or 0) // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that is asked, and what comes of it."""

    asks: str  # memory, users, tpot, ttft
    holds: Holds
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One plan with what it takes and holds. ``sequences``: of the context on one replica, at least and as
    expected, and ``at_most``; ``batch``: those that decode at once when ``decode`` is timed; ``within``:
    users of the context on one replica within the latency asked, surely and as expected.
    """

    request: Mapping[str, Any]
    plan: Plan
    assumed: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    verdict: Verdict
    serving: Mapping[str, Any]
    weights_bytes: int
    kv_bytes: int
    sequences: tuple[int, int]
    at_most: int
    batch: int
    decode: Seconds | None
    prefill: Seconds | None
    within: tuple[int, int]
    reasons: tuple[Reason, ...]

    @property
    def holds(self) -> Holds:
        return max((reason.holds for reason in self.reasons), default=Holds.YES)

    @property
    def replicas(self) -> int:
        """Ranks or groups of them that have a cache of their own."""
        return groups_of(self.plan)

    @property
    def gpus_each(self) -> int:
        """GPUs of one replica; with data-parallel attention, of one group."""
        return int(self.plan.mesh.attention_tp * self.plan.mesh.pp)

    @property
    def in_all(self) -> int:
        """Sequences of the context that all replicas hold."""
        return self.sequences[1] * self.replicas

    @property
    def tokens_per_s(self) -> float | None:
        """Of all replicas while ``batch`` sequences decode on each."""
        return self.batch * self.replicas / self.decode.value if self.decode else None

    @property
    def users(self) -> int:
        """Users of a replica within the latency asked, as expected."""
        return self.within[1]

    @property
    def users_per_gpu(self) -> float:
        return self.users / self.gpus_each

    def gpus_for(self, users: int) -> int | None:
        """GPUs of as many replicas as surely hold so many users; None where one surely holds none. Groups of
        one replica are not had one by one.
        """
        groups = int(self.plan.mesh.attn_dp)
        runs = int(group_plan(self.plan).serving.max_sequences or self.sequences[0])
        sure = min(self.sequences[0], self.within[0], runs) * groups
        return -(-users // sure) * self.gpus_each * groups if sure else None


def groups_of(plan: Plan) -> int:
    """How many caches there are: of replicas, and of the groups in each that attend to requests of their
    own.
    """
    return int(plan.mesh.dp_replicate * plan.mesh.attn_dp)


def most_within_latency(limit: int, seconds: Callable[[int], float], asked_s: float) -> int:
    """The most sequences up to ``limit`` that take no more than ``asked_s``. Latencies only grow with them,
    and nearly in proportion, so the next count that is looked at is where a line between the two ends would
    cross what is asked; the middle, where that left more than half of them.
    """
    if limit < 1 or (least_s := seconds(1)) > asked_s:
        return 0
    if limit == 1 or (most_s := seconds(limit)) <= asked_s:
        return limit
    low, high, halves = 1, limit, False
    while (width := high - low) > 1:
        step = width // 2 if halves else int(width * (asked_s - least_s) / (most_s - least_s))
        middle = low + min(max(step, 1), width - 1)
        found_s = seconds(middle)
        if found_s <= asked_s:
            low, least_s = middle, found_s
        else:
            high, most_s = middle, found_s
        halves = not halves and 2 * (high - low) > width
    return low


def reasons_of(
    verdict: Verdict,
    cluster: Cluster,
    held: Bytes,
    replicas: int,
    load: Load,
    times: tuple[Seconds | None, Seconds | None],
) -> Iterator[Reason]:
    """Every thing that is asked of a plan, with its answer. ``times``: between tokens, and to the first."""
    tpot, ttft = times
    sequences = held.low, held.value
    yield _memory_reason(verdict, cluster, sequences, load)
    if verdict.result is Result.DOES_NOT_FIT or not sequences[1]:
        return
    if load.users is not None:
        low, value, high = (int(count) * replicas for count in (held.low, held.value, held.high))
        holds = Holds.YES if low >= load.users else Holds.PERHAPS if high >= load.users else Holds.NO
        yield Reason(
            asks="users", holds=holds, words=f"has room for {value:,} users of {load.context:,} tokens"
        )
    for asks, asked, found, what in (
        ("tpot", load.tpot_s, tpot, "a token takes"),
        ("ttft", load.ttft_s, ttft, "the first token takes"),
    ):
        if asked is None:
            continue
        if found is None:
            yield Reason(asks=asks, holds=Holds.PERHAPS, words=f"{asks.upper()} is not timed on this card")
            continue
        holds = Holds.YES if found.high <= asked else Holds.PERHAPS if found.value <= asked else Holds.NO
        yield Reason(
            asks=asks,
            holds=holds,
            words=(
                f"{what} {format_latency(found.value)} ({format_latency(found.low)} to "
                f"{format_latency(found.high)})"
            ),
        )


_LATENCY = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s)")


def parse_latency_s(value: Any, field: str) -> float | None:
    """Seconds, of a number of them or of a text with its unit: 50ms, 0.5s. Raises InputError for anything
    else.
    """
    if value is None:
        return None
    if isinstance(value, str):
        match = _LATENCY.fullmatch(value.strip().lower())
        if match is None:
            raise input_error(field, value, "is no time", "with its unit, for example 50ms or 0.5s")
        value = float(match[1]) * (1e-3 if match[2] == "ms" else 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_S:
        raise input_error(
            field, value, f"is not between nothing and {LONGEST_S:,} seconds", "for example 50ms"
        )
    return float(value)


LONGEST_S = 3600


def _memory_reason(verdict: Verdict, cluster: Cluster, sequences: tuple[int, int], load: Load) -> Reason:
    gives = cluster.device.framework_bytes
    if verdict.device.low > gives:
        words = (
            f"needs {format_bytes(int(verdict.device.value), digits=1)} of a GPU that gives "
            f"{format_bytes(gives, headroom=True, digits=1)}"
        )
        return Reason(asks="memory", holds=Holds.NO, words=words)
    if verdict.result is Result.DOES_NOT_FIT or not sequences[1]:
        return Reason(
            asks="memory", holds=Holds.NO, words=f"has no room for one sequence of {load.context:,} tokens"
        )
    sure = verdict.result is Result.FITS and sequences[0] > 0
    return Reason(
        asks="memory", holds=Holds.YES if sure else Holds.PERHAPS, words="fits" if sure else "may not fit"
    )


def format_latency(seconds: float) -> str:
    """A latency as people say it."""
    if seconds >= 10:
        return f"{seconds:,.0f} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    thousandths = seconds * 1e3
    return f"{thousandths:.0f} ms" if thousandths >= 20 else f"{thousandths:.1f} ms"
