"""GRPO by Unsloth, of a script's values: adapters that train beside a base, and vLLM in the same process,
which runs with the base's own tensors.

Lines are of unsloth and unsloth_zoo 2026.10.9, by their wheels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.jobs.templates.generation import generating_phase, own_generation
from memsheet.jobs.templates.option import logits_key
from memsheet.jobs.templates.planned import (
    SCHEMA,
    JobDraft,
    Sizes,
    extra_item,
    known_share,
    planned_actor,
)
from memsheet.jobs.templates.trl import CONTEXT_AT_MOST
from memsheet.units import GIB

Values = Mapping[str, Any]
UPDATES, ROWS, ROUNDS = (
    "steps_per_generation",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
)
SHARE = 0.5
"""Of what is free, where nothing is said (unsloth/models/llama.py:3504)."""
STANDBY_SHARES = (
    (90, 0.925, 0.9), (40, 0.925, 0.875), (25, 0.9, 0.85), (20, 0.825, 0.825), (14, 0.8, 0.8), (10, 0.775, 0.75), (0, 0.75, 0.7),
)  # fmt: skip
HELD_BACK = 0.95
"""By GiB of a card, the share that a server takes that sleeps, whatever is said, which is then so many times
less; and the one beside vLLM before 0.11, which is not (unsloth_zoo/vllm_utils.py:4453-4480).
"""
SEQUENCES = (
    (2, 2048, 8), (4, 2048, 16), (8, 4096, 32), (12, 4096, 48), (16, 6144, 64), (24, 6144, 80), (40, 8192, 96), (48, 8192, 112), (80, 8192, 128),
)  # fmt: skip
MOST_SEQUENCES = (8192, 256)
"""By GiB that are left for a cache, tokens of a pass and sequences at once (vllm_utils.py:4799-4808)."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Of adapters that vLLM takes; it is given the next larger one (vllm_utils.py, determine_max_lora_rank)."""
ESTIMATED = 16
"""Bytes of an element by which it finds how many rows it can update at once (rl_replacements.py:850-896)."""
OF_FREE = 0.8
"""The share of what is free of a card that those rows may take, by the same function."""
MADE, CAST, MASKED = 2, 4, 4
"""Bytes of a logit as it is made, in fp32, and without the token's own beside it; the head's product is made
of a part of the rows at a time (rl_replacements.py:184-335).
"""
LEAST_PARTS, TOKENS_OF_PART = 4, 4096
"""Parts of a row's logits, and tokens of one beyond them, by the same function."""
ANSWER, OF_ANSWER = "max_completion_length", 256
"""Tokens of the longest answer, and how many by itself (huggingface/trl f2cd577 trl/trainer/grpo_config.py).
"""


def unsloth_grpo_document(
    values: Values,
    plan: Mapping[str, Any],
    model: str,
    sizes: Sizes,
    token_elements: int,
    card_bytes: int,
    weight_bytes: int,
) -> JobDraft | None:
    """The job. ``values``: the script's own, ``served.*`` what its server is told; ``plan``: of what trains;
    ``token_elements``: what one token adds to the cache; ``card_bytes``, ``weight_bytes``: of a card, and of
    the base's weights on it. None where a size is none or the model trains whole.
    """
    actor, _ = planned_actor(plan)
    counts = _step_counts(actor, values)
    served, stands_by = values.get("share") is not None, values.get("served.standby") is True
    share = known_share(values["share"], SHARE) if served else SHARE
    if counts is None or share is None or not actor.get("adapter"):
        return None
    rows, length, new = counts
    taken = _server_share(share, card_bytes, stands_by=stands_by)
    free = card_bytes * (1 if stands_by or not served else 1 - taken) - weight_bytes
    at_once = _rows_at_once(rows, length, sizes, free)
    phases = _passes(values, rows, at_once, length)
    notes = []
    if served:
        rollout = _server(values, actor, model, taken, card_bytes, weight_bytes)
        phases = _phases_beside_server(
            phases, _open_pool(taken, card_bytes, stands_by=stands_by), stands_by=stands_by
        )
        notes.append("the server runs with the base's own tensors, which are counted once, with what trains")
    else:
        rounds = values.get(ROUNDS)
        made = rows * (rounds if isinstance(rounds, int) else 1)
        rollout = own_generation(actor, model, rows=made, new=min(new, length - 1))
        absent = {"residents": {"rollout": "absent"}}
        own = generating_phase(actor, token_elements * made * length)
        phases = [own, *({**one, **absent} for one in phases)]
    if (first := values.get("served.rows")) is not None:
        notes.append(f"Unsloth makes {ROWS} of {first} the {rows} answers of a group")
    roles = {
        "actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}, "rollout": rollout,
    }  # fmt: skip
    document = {
        "schema": SCHEMA, "name": "unsloth-grpo", "roles": roles, "phases": phases, "notes": notes,
    }  # fmt: skip
    told = f"Unsloth updates as many rows at once as it finds room for: {at_once} of {rows}"
    words = (told,) if at_once < rows else ()
    return JobDraft(document, words, shorter_rows=True, accounted=frozenset({"loss"}))


def _step_counts(actor: Mapping[str, Any], values: Values) -> tuple[int, int, int] | None:
    """Rows of a micro-batch, tokens of a row and of its answer, half of it where nobody says how many; None
    where one is no number.
    """
    rows, length, new = actor.get("microbatch"), actor.get("seq_len"), values.get(ANSWER, OF_ANSWER)
    if not isinstance(rows, int) or not isinstance(length, int) or min(rows, length) < 1:
        return None
    return rows, length, new if isinstance(new, int) and new > 0 else max(1, length // 2)


def _phases_beside_server(
    phases: list[dict[str, Any]], pool: dict[str, Any], *, stands_by: bool
) -> list[dict[str, Any]]:
    """Generation, and what trains beside a server that is awake, or of which its weights alone are there."""
    rests = {"residents": {"rollout": "parameters"}} if stands_by else {"items": [pool]}
    gen: dict[str, Any] = {"name": "gen", "active": "rollout", "items": [pool]}
    return [gen, *({**one, **rests} for one in phases)]


def _server_share(share: float, card_bytes: int, *, stands_by: bool) -> float:
    """Of the whole card: what is free when it starts is without the process's context."""
    if stands_by:
        share = _standby_shares(card_bytes)[0]
    return share * max(0, card_bytes - CONTEXT) / card_bytes


CONTEXT = GIB
"""The most that a process's context takes of what is free before its server starts."""


def _standby_shares(card_bytes: int) -> tuple[float, float]:
    """Of a server that sleeps, and of one beside an older vLLM."""
    newer, older = next(row[1:] for row in STANDBY_SHARES if card_bytes >= row[0] * GIB)
    return newer * HELD_BACK, older


def _open_pool(taken: float, card_bytes: int, *, stands_by: bool) -> dict[str, Any]:
    """What the server's pool may be larger by: contexts are smaller than the most, vLLM counts memory beside
    torch from its own start, and an older one in standby is given more.
    """
    newer, older = _standby_shares(card_bytes) if stands_by else (0.0, 0.0)
    more, of_older = int(taken * CONTEXT), int(max(0.0, older - newer) * card_bytes)
    why = "the server's share is of what is free when it starts, beside a context of 0 to 1 GiB"
    sizes = (0, more // 2, more + CONTEXT_AT_MOST + of_older)
    return {**extra_item("kv_cache", "pool_beside", sizes, why), "role": "rollout"}


def _server(
    values: Values, actor: Mapping[str, Any], model: str, taken: float, card_bytes: int, weight_bytes: int
) -> dict[str, Any]:
    """Its vLLM (unsloth_zoo/vllm_utils.py, load_vllm; unsloth/models/llama.py:4255-4276)."""
    left = (taken * card_bytes - weight_bytes) / GIB
    tokens, sequences = next((row[1:] for row in SEQUENCES if left <= row[0]), MOST_SEQUENCES)
    length = values.get("served.length")
    longest = length if isinstance(length, int) else actor["seq_len"]
    rank = max(int(values.get("served.rank") or 16), int(actor["adapter"]["rank"]))
    width = (actor.get("precision") or {}).get("compute", "bf16")
    stored = (actor.get("quantization") or {}).get("weights")
    plan: dict[str, Any] = {
        "task": "infer", "engine": "vllm", "precision": {"parameters": width, "compute": width},
        "adapter": {"kind": "lora", "rank": next((one for one in RANKS if one >= rank), RANKS[-1])},
        "serving": {
            "memory_fraction": taken, "max_model_len": longest, "max_sequences": sequences,
            "max_batched_tokens": max(sequences, min(tokens, sequences * longest)),
            **({"kv_dtype": "fp8"} if values.get("served.fp8_cache") is True else {}),
        },
    }  # fmt: skip
    if stored:
        plan["quantization"] = {"weights": stored}
    return {"model": model, "plan": plan, "process": "trainer", "weights_of": "actor"}


def _rows_at_once(rows: int, length: int, sizes: Sizes, free: float) -> int:
    """Rows of a pass: as many as it finds room for, by its own estimate; the fewest of four and all where
    even one has none.
    """
    parts = _parts(length)
    for some in range(rows, 0, -1):
        logits = some * some * length * sizes.vocab // (rows * parts)
        if ESTIMATED * (some * length * sizes.hidden + logits) <= OF_FREE * free:
            return some
    return min(4, rows)


def _parts(length: int) -> int:
    return max(LEAST_PARTS, length // TOKENS_OF_PART)


def _passes(values: Values, rows: int, at_once: int, length: int) -> list[dict[str, Any]]:
    """The passes of the trainer: earlier log-probabilities where a generation serves several updates, those
    of the base where ``beta`` is any, and the update. A scorer of older releases keeps every part's logits
    for its backward.
    """
    parts = _parts(length)
    tokens = -(-at_once * length // parts)
    read = logits_key(tokens, (0, MADE + CAST, MADE + CAST + MASKED), "of a part of the rows, read only")
    kept = min(250, MADE + CAST + MASKED + CAST * parts * -(-rows // at_once))
    learnt = logits_key(tokens, (0, MADE + CAST + MASKED, kept), "of a part of the rows, with gradients")
    some = {"plan": {"microbatch": at_once}} if at_once < rows else {}
    found: list[dict[str, Any]] = []
    if any(values.get(at) not in (None, 1) for at in ("num_iterations", UPDATES, "generation_batch_size")):
        found.append({"name": "old_log_prob", "active": "actor", "work": "forward", "logits": read, **some})
    if values.get("beta") not in (None, 0, 0.0) or values.get("loss_type") in ("bnpo", "grpo"):
        found.append({"name": "ref", "active": "actor", "work": "forward", "logits": read, **some})
    return [*found, {"name": "update_actor", "active": "actor", "logits": learnt, **some}]
