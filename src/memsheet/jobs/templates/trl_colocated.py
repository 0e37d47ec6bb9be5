"""vLLM in the process of those trainers of TRL that only sometimes generate by it.

Lines are of huggingface/trl f2cd577, under trl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memsheet.frozen import NamedTuple
from memsheet.jobs.templates.planned import known_share
from memsheet.jobs.templates.trl import CONTEXT_AT_MOST, MOST_TOKENS

Values = Mapping[str, Any]
SHARES = {"GOLD": 0.9, "distillation": 0.3, "IWOPD": 0.3}
"""Of the card, where nothing is said (experimental/gold/gold_config.py, distillation_config.py)."""
ONLINE_SHARE = 0.55
"""Of those that stand on online DPO (experimental/online_dpo/online_dpo_config.py)."""
UNSAID_MODE = (
    "vllm_mode is not said: counted on the same cards, as releases since 1.0 take it, and on others' before"
)


def with_mode_of_release(values: Values, release: str) -> Values:
    """Where vLLM is by the release that is named, where nobody says it: on the trainer's cards since 1.0
    (huggingface/trl v1.0.0 trl/trainer/grpo_config.py, vllm_mode), a server before.
    """
    major = release.partition(".")[0]
    if not major.isdecimal() or values.get("vllm_mode") is not None or values.get("use_vllm") is not True:
        return values
    return {**values, "vllm_mode": "colocate" if int(major) >= 1 else "server"}


def card_of_its_own(values: Values) -> str | None:
    """``server`` where a file says vLLM's device, as releases had it that gave it a card beside the trainer's
    (huggingface/trl v0.14.0 trl/trainer/grpo_config.py, vllm_device); None where it does not.
    """
    return "server" if values.get("vllm_device") is not None else None


def may_be_elsewhere(words: Sequence[str]) -> tuple[str, ...]:
    """The server's role where nobody says whether it is on the trainer's cards."""
    return ("rollout",) if UNSAID_MODE in words else ()


class Beside(NamedTuple):
    """The server's role, the phases before what is learnt, and what the phases of what trains have beside."""

    role: dict[str, Any]
    phases: list[dict[str, Any]]
    more: dict[str, Any]
    words: tuple[str, ...]


def serves_beside(values: Values) -> bool:
    """Whether vLLM is on the trainer's cards."""
    return values.get("use_vllm") not in (None, False) and values.get("vllm_mode") != "server"


def vllm_beside(values: Values, model: str, *, sequences: Any, longest: Any, share: float) -> Beside | None:
    """A server of so many ``sequences`` of the ``longest`` length, with ``share`` of the card where nothing
    is said; None where one of them is no number (generation/vllm_generation.py:350-363;
    experimental/online_dpo/online_dpo_trainer.py:455-484).
    """
    tensor, given = (
        values.get("vllm_tensor_parallel_size", 1),
        known_share(values.get("vllm_gpu_memory_utilization", share), share),
    )
    counts = [tensor, sequences, longest or 1]
    known = all(type(one) is int and one > 0 for one in counts) and values.get("use_vllm") is True
    if not known or given is None:
        return None
    serving = {
        "memory_fraction": given, "max_sequences": sequences, "max_batched_tokens": MOST_TOKENS, **({"max_model_len": longest} if longest else {}),
    }  # fmt: skip
    plan = {"task": "infer", "engine": "vllm", "mesh": {"tp": tensor}, "serving": serving}
    pool = {
        "component": "kv_cache", "path": "pool_beside", "bytes": [0, 0, CONTEXT_AT_MOST], "role": "rollout",
        "why": "vLLM's budget counts memory beside torch from its own start, after the trainer's context",
    }  # fmt: skip
    sleeps = values.get("vllm_enable_sleep_mode") is True
    more: dict[str, Any] = {"residents": {"rollout": "asleep-2"}} if sleeps else {"items": [pool]}
    phases: list[dict[str, Any]] = [{"name": "gen", "active": "rollout", "items": [pool]}]
    if sleeps:
        phases.insert(0, {"name": "update_weights", "residents": {"rollout": "parameters"}})
    words = () if values.get("vllm_mode") is not None else (UNSAID_MODE,)
    return Beside({"model": model, "plan": plan, "process": "trainer"}, phases, more, words)
