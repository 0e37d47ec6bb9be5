"""Of which lengths a server's answer tells, and how many requests run at once of those that are asked
about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.errors import input_error
from memsheet.plan.plan import Plan
from memsheet.sheet import Bytes

LENGTHS = (1024, 4096, 8192, 32768, 131072)


def check_shared(plan: Plan, *, caches: bool, why: str) -> None:
    """Raise InputError where prompts share a beginning that the engine keeps for each. ``why``: it does, in
    words.
    """
    if plan.serving.shared_prefix_tokens and not caches:
        raise input_error(
            "serving.shared_prefix_tokens",
            plan.serving.shared_prefix_tokens,
            f"is kept for each sequence: {why}",
            "leave it out",
        )


def lengths_of(plan: Plan) -> list[int]:
    """Lengths that are told about: usual ones beyond what prompts share, the longest, and those that are
    asked about.
    """
    full = plan.serving.max_model_len or 1
    asked = (plan.serving.prompt_tokens or 0) + (plan.serving.output_tokens or 0)
    return sorted(
        {
            *(n for n in LENGTHS if plan.serving.shared_prefix_tokens < n <= full),
            full,
            *([asked] if asked else []),
        }
    )


def concurrency_facts(
    plan: Plan, sequences: Callable[[int], Bytes], contiguous: int, waste_bytes: int
) -> Mapping[str, Any]:
    """Concurrency for the lengths that are asked about, what paging saves, and whether requests may have to
    be computed again. ``sequences``: how many of a length have room.
    """
    full, limit = plan.serving.max_model_len or 1, int(plan.serving.max_sequences or 1)
    most = sequences(full).value
    found: dict[str, Any] = {
        "limit": limit, "replicas": int(plan.mesh.dp_replicate), "contiguous": contiguous, "waste_per_sequence_bytes": waste_bytes,
        "worst": min(limit, most), "preempts": most < limit,
    }  # fmt: skip
    if plan.serving.prompt_tokens is None:
        return found
    prompt, answer = (
        int(plan.serving.prompt_tokens),
        int(plan.serving.output_tokens or max(0, full - plan.serving.prompt_tokens)),
    )
    middle, end = sequences(max(1, prompt + answer // 2)), sequences(max(1, prompt + answer))
    return {
        **found, "prompt_tokens": prompt, "output_tokens": answer, "expected": min(limit, middle.value), "expected_low": min(limit, middle.low),
        "worst": min(limit, end.value), "preempts": end.value < limit,
    }  # fmt: skip
