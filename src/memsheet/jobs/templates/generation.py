"""A model that generates itself between its own steps, with the trainer's tensors.

Lines are of huggingface/trl f2cd577, under trl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.jobs.templates.planned import extra_item


def own_generation(actor: Mapping[str, Any], model: str, *, rows: int, new: int) -> dict[str, Any]:
    """The role that generates ``new`` tokens for each of ``rows``; where ZeRO divides them, with a whole
    copy that is gathered (models/utils.py, unwrap_model_for_generation).
    """
    width = (actor.get("precision") or {}).get("compute", "bf16")
    length = int(actor["seq_len"])
    serving = {"max_model_len": length, "max_sequences": rows, "prompt_tokens": max(1, length - new)}
    plan = {
        "task": "infer", "engine": "transformers", "precision": {"parameters": width, "compute": width}, "serving": serving,
    }  # fmt: skip
    gathered = actor.get("engine") == "deepspeed" and actor.get("zero") == 3
    return {
        "model": model,
        "plan": plan,
        "process": "trainer",
        **({} if gathered else {"weights_of": "actor"}),
    }


def generating_phase(actor: Mapping[str, Any], elements: int) -> dict[str, Any]:
    """The phase of it. Beside weights in fp32 rotary angles are too, which make keys fp32, and a cache takes
    values in the dtype of its first keys (huggingface/transformers v5.3.0 src/transformers/cache_utils.py,
    DynamicLayer.lazy_initialization): as much of the cache again, and nothing of models that cast keys back.
    ``elements``: of the cache of all rows.
    """
    phase: dict[str, Any] = {"name": "gen", "active": "rollout"}
    if (actor.get("precision") or {}).get("parameters") == "fp32":
        cache = 2 * elements
        why = "keys that rotary angles in fp32 make fp32, and values that are kept as keys are"
        phase["items"] = [extra_item("kv_cache", "cache_in_fp32", (0, cache, cache), why)]
    return phase


def is_own_generation(role: Mapping[str, Any]) -> bool:
    """Whether a role generates with the trainer's own code, whose cache grows with its rows; a server's pool
    is there whatever they are.
    """
    plan = role["plan"]
    return bool(plan.get("task") == "infer" and plan.get("engine") == "transformers")
