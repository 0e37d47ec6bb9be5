"""prime-rl's jobs: a trainer on FSDP2 and vLLM's servers on other cards; and supervised training.

Lines are of PrimeIntellect-ai/prime-rl at 559b447, under src/prime_rl. Old log-probabilities are the servers'
own, and no reference is read by the trainer (trainer/rl/train.py:381-490). The optimizer's states are on the
host but for its step, when no activations are there (trainer/optim/state_offload.py:9-57).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.prime_rl.places import (
    VLLM,
    head_chunk,
    is_supervised,
    keeps_states_away,
    served_cards,
    trained_cards,
    trainer_value,
    trains_on_host,
)
from memsheet.exchange.shared.file_format import Values
from memsheet.jobs.templates.planned import (
    SCHEMA,
    JobDraft,
    Sizes,
    card_count,
    extra_item,
    on_cards,
    planned_actor,
)
from memsheet.jobs.templates.servers import option_group, vllm_server

COPIES = frozenset({"data_parallel_size"})
"""vLLM's options that say how many of its engines there are, as cards do (configs/rl.py:668-673)."""
WHOLE, SUPERVISED = (10, 14, 18), (6, 10, 12)
"""Bytes of a logit without a fused head: divided by temperatures in fp32, with its log-softmax and two
gradients (trainer/rl/train.py:438-443, trainer/rl/loss.py:50); of supervised training the cross-entropy's, in
the model's dtype (trainer/sft/train.py:332).
"""
CHUNK_WORDS, CHUNKED = 8192, (0, 14, 20)
"""Words that a fused head multiplies at once, and bytes of each logit of a part in backward
(trainer/models/layers/lm_head.py:114, 168-200).
"""
COMPILED = "layers are counted as they run uncompiled"
UNDROPPED = "parts of layers that are recomputed are counted as kept"
UNMOVED = "gradients and weights are counted whole, which leave the card as they come"


def prime_rl_job(values: Values, plan: Mapping[str, Any], model: str, sizes: Sizes) -> JobDraft | None:
    """The job of a configuration's values. ``plan``: of the trainer, as its own sheet has it. None where
    cards are said in no number.
    """
    actor, _ = planned_actor(plan)
    ranks, served = trained_cards(values), served_cards(values)
    server = vllm_server(option_group(values, VLLM), VLLM, accounted=COPIES)
    if ranks is None or served is None or server is None or served % server.cards:
        return None
    if served and ranks != card_count(actor):
        actor = on_cards(actor, ranks)
    ranks = card_count(actor)
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    placement = {"actor": [0, ranks]}
    if served:
        named = str(values.get(f"{VLLM}.model") or model)
        roles["rollout"] = {"model": named, "plan": server.plan}
        placement["rollout"] = [ranks, served]
    document = {"schema": SCHEMA, "name": "prime-rl", "roles": roles, "placement": placement, "phases": _prime_phases(values, sizes, served=bool(served))}  # fmt: skip
    compiled = trainer_value(values, "compile", True) is not False
    over = {
        COMPILED: compiled, UNDROPPED: trainer_value(values, "ac.mode", "full") == "selective", UNMOVED: trains_on_host(values),
    }  # fmt: skip
    return JobDraft(
        document,
        (*server.left_words, *_unlike_servers(values)),
        shorter_rows=not is_supervised(values),
        over_words=tuple(words for words, counted in over.items() if counted),
        accounted=ACCOUNTED,
    )


ACCOUNTED = frozenset({"$.compiled"})
"""Keys that are accounted, or counted as if they were not said."""


def _prime_phases(values: Values, sizes: Sizes, *, served: bool) -> list[dict[str, Any]]:
    """Those of a step (trainer/rl/train.py:266-620)."""
    rest = {"actor": "parameters"} if keeps_states_away(values) or trains_on_host(values) else {}
    found: list[dict[str, Any]] = []
    if served:
        table = 2 * sizes.vocab * sizes.hidden
        sent = extra_item(
            "communication", "sent", (0, table, 2 * table), "the largest tensor, gathered and sent"
        )
        found += [
            {"name": "update_weights", "residents": rest, "items": [sent]},
            {"name": "gen", "active": "rollout", "residents": rest},
        ]
    found.append({"name": "update_actor", "active": "actor", "residents": rest, **_head_part(values, sizes)})
    return found


def _head_part(values: Values, sizes: Sizes) -> dict[str, Any]:
    chunk = head_chunk(values)
    if chunk is None:
        each = SUPERVISED if is_supervised(values) else WHOLE
        return {
            "logits": {
                "bytes": list(each),
                "why": "of all tokens, with their gradients (trainer/rl/loss.py:50)",
            }
        }
    elements = chunk * min(CHUNK_WORDS, sizes.vocab)
    low, value, high = (elements * one for one in CHUNKED)
    why = "logits of a part of the tokens and of the vocabulary (trainer/models/layers/lm_head.py:168-200)"
    return {"items": [extra_item("temporaries", "head", (low, value, high), why, "loss")]}


def _unlike_servers(values: Values) -> tuple[str, ...]:
    if values.get("inference.deployment.type") == "disaggregated":
        return ("servers that read prompts are counted as those that write",)
    return ()
