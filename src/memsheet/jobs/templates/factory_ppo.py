"""LLaMA-Factory's PPO: a policy that has a head of one value beside the vocabulary's, which generates by
itself, a copy of it as reference and a model that rewards.

Lines are of hiyouga/LLaMA-Factory ff6d4d1, src/llamafactory; its trainer stands on huggingface/trl v0.9.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import UNSET, Values
from memsheet.jobs.templates.planned import JobDraft, planned_actor, planned_reference

ANSWER, CUTOFF = 1024, 2048
"""``max_new_tokens`` (hparams/generating_args.py), ``cutoff_len`` (hparams/data_args.py:40) by themselves."""
LEARNT = (10, 18, 26)
"""Bytes of a logit: as computed and in fp32, which the model with a value hands out, its log-softmax,
gradients of both, and the probabilities of an entropy (trl v0.9.6 models/modeling_value_head.py, forward;
core.py, logprobs_from_logits, entropy_from_logits; trainer/ppo_trainer.py, batched_forward_pass).
"""
READ = (6, 10, 14)
ACCOUNTED = frozenset({"reward_model", "reward_model_type", "ref_model"})
"""Keys that name the other models."""
OF_REWARD = "the model that rewards is counted in the width of the policy's weights"
BUFFERED = "answers of a step are generated a micro-batch at a time"


def factory_ppo_document(
    values: Values, plan: Mapping[str, Any], model: str, token_elements: int
) -> JobDraft | None:
    """The job of ``stage: ppo``. ``plan``: of what trains; ``token_elements``: what one token adds to its
    cache. None where rows or lengths are no numbers.
    """
    actor, _ = planned_actor(plan)
    prompt, new = values.get("cutoff_len", CUTOFF), values.get("max_new_tokens", ANSWER)
    rows = actor.get("microbatch")
    if not (isinstance(prompt, int) and isinstance(new, int) and isinstance(rows, int)):
        return None
    if min(prompt, new, rows) < 1:
        return None
    actor["seq_len"] = prompt + new
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    given = values.get("ref_model")
    if given is not None or not actor.get("adapter"):  # train/trainer_utils.py:123-148
        roles["reference"] = planned_reference(actor, str(given or model))
    words = []
    kind, named = values.get("reward_model_type", "lora"), values.get("reward_model")
    if kind == "full" and isinstance(named, str) and named != UNSET:
        roles["reward"] = {**planned_reference(actor, named), "head": "values"}
        words.append(OF_REWARD)
    elif kind == "lora":
        words.append("the adapters that reward, beside those that are trained, are not counted")
    elif kind != "api":
        words.append(f"a reward model of type {kind} is not counted")
    cache = 2 * token_elements * rows * (prompt + new)
    held = {
        "component": "kv_cache",
        "path": "cache",
        "bytes": [cache, cache, 2 * cache],
        "why": "the cache of a generation",
    }
    read = {"logits": {"bytes": list(READ), "why": "of all tokens, in fp32, read only (trl v0.9.6 core.py)"}}
    phases: list[dict[str, Any]] = [
        {"name": "gen", "items": [held]}, {"name": "old_log_prob", "active": "actor", "work": "forward", **read},
    ]  # fmt: skip
    if "reference" in roles:
        phases.append({"name": "ref", "active": "reference", "work": "forward", **read})
    if "reward" in roles:
        phases.append({"name": "reward", "active": "reward", "work": "forward"})
    why = "of all tokens, in fp32, with their gradients (trl v0.9.6 core.py)"
    phases.append({"name": "update_actor", "active": "actor", "logits": {"bytes": list(LEARNT), "why": why}})
    document = {
        "schema": "memsheet/job/1",
        "name": "llamafactory-ppo",
        "roles": roles,
        "phases": phases,
        "notes": [BUFFERED],
    }
    return JobDraft(document, tuple(words), shorter_rows=True, accounted=ACCOUNTED)
