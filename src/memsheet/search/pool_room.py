"""What a server's pool lacks, or has left, for the sequences that are asked for: memory alone says nothing,
as a pool takes what there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.formulas.serving.servers import sequence_room, server_facts
from memsheet.frozen import dataclass
from memsheet.plan.device import Cluster
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.sheet import Bytes, Sheet


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """``lacks``: bytes of a rank that are missing for what is asked, negative where there are more;
    ``sequences``: of the length asked about that it holds, at least, as expected and at most.
    """

    lacks: Bytes
    sequences: Bytes


def pool_of(
    model: ModelSpec, plan: Plan, cluster: Cluster, sheets: tuple[Sheet, ...], wanted: int
) -> Pool | None:
    """The pool of a replica against ``wanted`` sequences of the length that is asked about; None for engines
    without one, and where only weights are asked about.
    """
    if not pools_cache(plan) or plan.serving.phase == "load":
        return None
    wanted = group_share(plan, wanted)
    facts = server_facts(model, plan, cluster, sheets)
    tokens, full = requested_tokens(plan), int(plan.serving.max_model_len or 1)
    held = room_of(model, plan, cluster, facts, tokens)
    longest = max(
        1, int(facts.get("kv_bytes_per_sequence") or 0) // int(plan.mesh.attention_tp * plan.mesh.pp)
    )
    each = max(1, longest * tokens // full)
    short: Bytes = facts["short_bytes"] if "short_bytes" in facts else Bytes(-longest, -longest, -longest)
    lacks = Bytes(
        *(
            max((wanted - count) * each, int(least)) if wanted > 1 else int(least)
            for count, least in zip(
                (held.high, held.value, held.low), (short.low, short.value, short.high), strict=True
            )
        )
    )
    return Pool(lacks=lacks, sequences=held)


def pools_cache(plan: Plan) -> bool:
    """Whether the engine's cache is a pool that takes what memory is left."""
    return engine_of(plan).serving.pools_cache


def group_share(plan: Plan, sequences: int) -> int:
    """Of the sequences that are asked for, those of one group that attends by itself, where the engine's
    limit is of all groups.
    """
    return -(-sequences // int(plan.mesh.attn_dp)) if engine_of(plan).serving.limits_all_groups else sequences


def requested_tokens(plan: Plan) -> int:
    """Of a sequence at its longest: its prompt and answer where both are told, else all that the server
    takes.
    """
    full = int(plan.serving.max_model_len or 1)
    return (
        min(full, int(plan.serving.prompt_tokens + plan.serving.output_tokens))
        if plan.serving.prompt_tokens is not None and plan.serving.output_tokens
        else full
    )


def room_of(model: ModelSpec, plan: Plan, cluster: Cluster, facts: Mapping[str, Any], length: int) -> Bytes:
    """Sequences of a length on one replica: as its pool counts them, where it has one."""
    if not pools_cache(plan):
        return sequences_of(facts, length)
    return sequence_room(model, plan, cluster)(length)


def sequences_of(facts: Mapping[str, Any], length: int) -> Bytes:
    """Sequences of a length on one replica: at least, as expected and at most, as the pool's tokens may vary.
    Of a length that is not told, those of the next longer one.
    """
    told = {int(tokens): int(count) for tokens, count in facts["max_sequences"].items()}
    room, tokens = (
        told.get(min((one for one in told if one >= length), default=-1), 0),
        int(facts.get("kv_tokens") or 0),
    )
    ends = (int(facts.get(f"kv_tokens_{end}") or tokens) for end in ("low", "high"))
    low, high = (room * end // tokens if tokens else room for end in ends)
    return Bytes(min(low, room), room, max(high, room))
