"""verl's critic: the actor's engine with a dtype, batches and ranks that share rows of its own.

Lines are of volcengine/verl b178a3cd5, under verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.verl.batches import row_length
from memsheet.exchange.formats.verl.sharded import DTYPES
from memsheet.exchange.formats.verl.strategies import (
    ACTOR,
    data_ranks,
    held_value,
    is_on,
    is_sharded,
    sequence_ranks,
    whole_number,
)
from memsheet.exchange.shared.file_format import Values
from memsheet.jobs.templates.planned import card_count, on_cards

REF, CRITIC = "actor_rollout_ref.ref", "critic"
OF_CRITICS_FSDP = f"{CRITIC}.fsdp."
SHARED_ROWS = "ulysses_sequence_parallel_size"
UNSAID_ROWS = 1
"""Of a pass whose rows nobody says, the least that it can take."""
LEARNT_DTYPES = ("parameters", "gradients", "moments")


def in_own_dtype(
    values: Values, plan: Mapping[str, Any], at: str = f"{REF}.fsdp_config.model_dtype", usual: str = ""
) -> dict[str, Any]:
    """A reference's or a critic's plan with the dtype that it is loaded in where FSDP divides it
    (workers/fsdp_workers.py:309-313, 1285): the actor's where nobody says one, or ``usual``.
    """
    said = held_value(values, at, usual)
    word, precision = DTYPES.get(str(said)), plan.get("precision")
    if word is None or not is_sharded(values) or not isinstance(precision, Mapping):
        return dict(plan)
    learns = dict.fromkeys(LEARNT_DTYPES if usual else ("parameters",), word)
    return {
        **plan,
        "precision": {**precision, **{key: held for key, held in learns.items() if key in precision}},
    }


def critic_model(values: Values, model: str) -> str:
    return str(held_value(values, "critic.model.path", model))


def critic_plan(values: Values, actor: Mapping[str, Any]) -> dict[str, Any]:
    """The critic as the actor is sharded, with batches of its own (trainer/config/critic/dp_critic.yaml)."""
    recompute = is_on(values, "critic.model.enable_gradient_checkpointing", usual=True)
    own = {key: held for key, held in actor.items() if key not in ("adapter", "vocab_multiple")}
    batch = {**(critic_batch(values) or {}), "global_batch": None}
    if is_sharded(values):
        own = in_own_dtype(values, own, f"{critic_place(values)}.model_dtype", "fp32")
        return {**own, **batch, "recompute": {"mode": "full" if recompute else "none"}}
    return on_cards(
        {**own, **batch, "mesh": {**own.get("mesh", {}), **_critic_degrees(values)}}, card_count(own)
    )


def _critic_degrees(values: Values) -> dict[str, int]:
    """Of a critic on Megatron-Core, one by one (trainer/config/critic/megatron_critic.yaml): its own, else
    none.
    """
    names = {
        "tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model", "etp": "expert_tensor",
    }  # fmt: skip
    return {
        axis: whole_number(values, f"{CRITIC}.megatron.{name}_parallel_size", 1) or 1
        for axis, name in names.items()
    }


def critic_ranks(values: Values) -> int:
    """Ranks of Ulysses that share a row of the critic (workers/fsdp_workers.py:1209; 1dda039
    trainer/config/critic/dp_critic.yaml): one on Megatron-Core.
    """
    if not is_sharded(values):
        return 1
    of_engine = whole_number(values, f"{critic_place(values)}.{SHARED_ROWS}", 1)
    return whole_number(values, f"{CRITIC}.{SHARED_ROWS}", of_engine) or 1


def critic_batch(values: Values) -> dict[str, int] | None:
    """Rows of the critic's step, and tokens of each that a rank has."""
    length, shared = row_length(values), critic_ranks(values)
    rows = whole_number(values, f"{CRITIC}.ppo_micro_batch_size_per_gpu", None)
    if is_on(
        values, f"{CRITIC}.use_dynamic_bsz", usual=is_on(values, f"{ACTOR}.use_dynamic_bsz", usual=False)
    ):
        tokens = whole_number(values, f"{CRITIC}.ppo_max_token_len_per_gpu", 32768)
        return packed_tokens(tokens, length, shared) if tokens and length else None
    old, ranks = whole_number(values, f"{CRITIC}.ppo_micro_batch_size", None), _critic_groups(values)
    rows = rows or (max(1, old // ranks) if old and ranks else UNSAID_ROWS)
    return {"microbatch": rows, "seq_len": -(-length // shared)} if length else None


def _critic_groups(values: Values) -> int | None:
    """Ranks, or groups of them that share rows, that have rows of the critic of their own."""
    groups = data_ranks(values)
    if groups is None or not is_sharded(values):
        return groups
    return groups * (sequence_ranks(values) or 1) // critic_ranks(values) or None


def packed_tokens(tokens: int, length: int, shared: int) -> dict[str, int]:
    """As many tokens as a GPU takes, one row's at the least, of which ``shared`` ranks have a part each."""
    return {"microbatch": 1, "seq_len": -(-max(length, tokens * shared) // shared)}


def values_plan(values: Values) -> dict[str, int]:
    """The micro-batch of a pass that reads values (trainer/config/critic/critic.yaml: forward_… is as the
    update's where nothing is said).
    """
    length, batch = row_length(values), critic_batch(values) or {}
    tokens = whole_number(values, f"{CRITIC}.forward_max_token_len_per_gpu", None)
    rows = whole_number(values, f"{CRITIC}.forward_micro_batch_size_per_gpu", None)
    shared = critic_ranks(values)
    if batch.get("microbatch") == 1 and tokens and length:
        return packed_tokens(tokens, length, shared)
    by_rows = length and batch.get("seq_len") == -(-length // shared)
    return {**batch, "microbatch": rows} if rows and by_rows else batch


def critic_place(values: Values) -> str:
    """Where the critic's engine is set: of FSDP beside its model in newer releases (1dda039
    trainer/config/critic/dp_critic.yaml), inside of it before.
    """
    if not is_sharded(values):
        return f"{CRITIC}.megatron"
    newer = any(at.startswith(OF_CRITICS_FSDP) for at in values)
    return OF_CRITICS_FSDP.removesuffix(".") if newer else "critic.model.fsdp_config"
