"""Whether a server's pool holds the sequences that were asked for: it starts without that room too, and then
computes some of them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.account import account_rank
from memsheet.errors import InputError, raise_if_problems
from memsheet.formulas.serving.servers import sequence_room, server_facts
from memsheet.frozen import dataclass
from memsheet.plan.device import Cluster
from memsheet.plan.hardware import FP8_UNITS, is_older_device, unsupported_choices
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.resolve import resolve_request
from memsheet.search.pool_room import group_share, pools_cache, requested_tokens
from memsheet.sheet import Bytes

STEP = 64
"""Tokens that lengths are looked at in multiples of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSequences:
    """``wanted`` sequences of ``tokens`` on one replica, how many its pool ``held``s, at least, as expected
    and at most, and what they lack.
    """

    wanted: int
    tokens: int
    held: Bytes
    missing_bytes: int

    @property
    def facts(self) -> Mapping[str, Any]:
        """As a sheet says it."""
        return {
            "sequences": self.wanted, "tokens": self.tokens, "held": self.held.value, "held_low": self.held.low, "held_high": self.held.high,
            "missing_bytes": self.missing_bytes,
        }  # fmt: skip


def requested_sequences(model: ModelSpec, plan: Plan, cluster: Cluster, wanted: int) -> AskedSequences | None:
    """The pool of a replica against ``wanted`` sequences of the length that is asked about; None for engines
    whose cache is made for them.
    """
    if not pools_cache(plan) or plan.serving.phase == "load":
        return None
    each, tokens = group_share(plan, wanted), requested_tokens(plan)
    room = sequence_room(model, plan, cluster)(tokens)
    held = Bytes(*(min(each, count) for count in (room.low, room.value, room.high)))
    facts = server_facts(model, plan, cluster, ())
    a_token = int(facts.get("kv_bytes_per_token_per_rank") or 0)
    return AskedSequences(
        wanted=each, tokens=tokens, held=held, missing_bytes=(each - held.value) * tokens * a_token
    )


def holds_instead(
    model: ModelSpec, request: Mapping[str, Any], cluster: Cluster, asked: AskedSequences
) -> list[Mapping[str, Any]]:
    """Single changes with which the pool is sure to hold what is asked, each accounted again: fewer or
    shorter sequences, a smaller cache.
    """
    changes: list[Mapping[str, Any]] = []
    if asked.held.low:
        changes.append({"serving.max_sequences": asked.held.low})
    if request.get("serving.prompt_tokens") is None and (
        tokens := _longest_held_tokens(model, request, cluster, asked)
    ):
        changes.append({"serving.max_model_len": tokens})
    kept = resolve_request(request, model, cluster).plan.cache.kv_dtype
    if kept is not None and kept.bits >= 16 and not is_older_device(cluster.device, FP8_UNITS):
        changes.append({"serving.kv_dtype": "fp8"})
    return [one for one in changes if _surely_holds_sequences(model, {**request, **one}, cluster)]


def _surely_holds_sequences(model: ModelSpec, request: Mapping[str, Any], cluster: Cluster) -> bool:
    found = _sequences_of_request(model, request, cluster)
    return found is not None and found.held.low >= found.wanted


def _sequences_of_request(
    model: ModelSpec, request: Mapping[str, Any], cluster: Cluster
) -> AskedSequences | None:
    try:
        plan = resolve_request(request, model, cluster).plan
        raise_if_problems(unsupported_choices(plan, cluster, model))
        account_rank(model, plan, cluster)
        return requested_sequences(model, plan, cluster, int(plan.serving.max_sequences or 1))
    except InputError:
        return None


def _longest_held_tokens(
    model: ModelSpec, request: Mapping[str, Any], cluster: Cluster, asked: AskedSequences
) -> int:
    """The longest sequences of which the pool as it is surely holds as many; 0 where it holds none so
    short.
    """
    plan = resolve_request(request, model, cluster).plan
    room = sequence_room(model, plan, cluster)
    low, high = 0, asked.tokens // STEP + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if room(middle * STEP).low >= asked.wanted else (low, middle)
    return low * STEP
