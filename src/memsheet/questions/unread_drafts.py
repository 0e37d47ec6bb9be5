"""Who drafts for a server and is known by its name alone: whether the verdict holds whatever it takes."""

from __future__ import annotations

from memsheet.budget import Answer, Result
from memsheet.plan.dtypes import FP32


def room_for_draft(strange: str, answer: Answer | None, tokens: int | None) -> str:
    """Why a draft of which nothing is known does not change that a server starts, in words; nothing where it
    may. ``strange``: who drafts, in words.
    """
    if not strange or not _has_room_for_draft(answer, tokens):
        return ""
    return (
        f"{strange.partition(' and ')[0]}: its weights and cache come off the pool, which has room for "
        "one as large as the model itself; the pool's tokens and sequences are counted without it"
    )


def _has_room_for_draft(answer: Answer | None, tokens: int | None) -> bool:
    """Whether a server's pool, which gives who drafts its room, is sure to hold one as large as the model
    itself with a sequence of its cache, and the card the logits of all ``tokens`` that are verified at
    once, in the model's dtype and in fp32.
    """
    serving = (answer.serving or {}) if answer is not None else {}
    if answer is None or answer.cluster is None or answer.verdict is None or not serving.get("budget"):
        return False
    if not isinstance(tokens, int):
        return False
    plan, model = answer.plan, answer.model
    if answer.verdict.result is not Result.FITS or "short_bytes" not in serving or model is None:
        return False
    ranks = int(plan.mesh.tp) * int(plan.mesh.pp)
    again = serving["budget"]["weights"].high * ranks + int(serving["kv_bytes_per_sequence"])
    active = serving["budget"].get("peak_activation")
    again += int(active.high) if active is not None else 0
    rows = (tokens + 1) * int(plan.serving.max_sequences or 1)
    logits = rows * model.vocab * (FP32.bits + 16) // 8
    free = answer.cluster.device.framework_low_bytes - int(answer.verdict.device.high)
    return again <= -int(serving["short_bytes"].high) and logits <= free
