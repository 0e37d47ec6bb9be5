"""The headline of a server without a card: a pool is as large as its card, and the sum of what it may start
is nobody's question.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.budget import Answer
from memsheet.report.shared.look import Look
from memsheet.sheet import Component, Sheet

TAKEN = ("serving.max_sequences = ", "serving.max_model_len = ")
"""How ``Answer.assumed`` begins where nobody said how many sequences are served, or how long they are."""


def cache_size_phrases(answer: Answer, sheet: Sheet, look: Look) -> Iterator[str]:
    """Weights, a token's cache and a sequence's, on one GPU; nothing where sequences and their length were
    told, or a card sizes the pool.
    """
    plan, serving = answer.plan, answer.serving or {}
    a_token = int(serving.get("kv_bytes_per_token_per_rank") or serving.get("kv_bytes_per_token") or 0)
    if (
        answer.cluster is not None
        or plan.cache.memory_fraction is None
        or not a_token
        or plan.serving.phase is not None
    ):
        return
    if plan.serving.pooled is None and not any(line.startswith(TAKEN) for line in answer.assumed):
        return
    each = " a GPU" if int(plan.mesh.gpus) > 1 else ""
    yield f"{look.need(int(sheet.of(Component.PARAMETERS).value), 2)} of weights{each}"
    yield f"{look.need(a_token, 2)} of cache for a token"
    if (
        plan.serving.max_model_len is not None
        and int(plan.mesh.pp) == 1
        and (whole := int(serving.get("kv_bytes_per_sequence") or 0))
    ):
        share = whole * a_token // max(1, int(serving.get("kv_bytes_per_token") or a_token))
        yield f"{look.need(share, 2)} for a sequence of {int(plan.serving.max_model_len):,} tokens"
    yield "--gpus says how many a card holds"
