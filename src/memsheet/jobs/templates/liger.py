"""What Liger's losses of a policy and of a student make in place of whole logits.

Counted of linkedin/Liger-Kernel ead96b6 src/liger_kernel/chunked_loss with torch 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.frozen import NamedTuple
from memsheet.jobs.templates.planned import Sizes, extra_item
from memsheet.jobs.templates.preferences import READ_OF_KTO
from memsheet.sheet import Instant

PART = 2048 * 4096 * 11
"""Bytes of the logits that are made at once: of 2,048 tokens and 4,096 words (fused_linear_ppo.py:7-8)."""
OF_STUDENT: Mapping[bool, tuple[int, int]] = {True: (28, 44), False: (38, 72)}
"""Bytes of a logit of 1,024 tokens, of both models: with inputs of bf16 and of fp32, where the divergence is
of one end, and between both (jsd_loss.py:23-58, fused_linear_distillation.py).
"""
STUDENT_TOKENS = 1024
HEAD, OF_LOSS = "lm_head", Instant.LOSS.value
BYTES = {"fp32": 4}
IN_FP32 = ("fp32", "bf16-autocast", "fp16-autocast", "fsdp2-mixed")
"""Names of precisions whose weights are fp32 (``plan.defaults``)."""


def head_gradient_items(sizes: Sizes, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of ``LigerFusedLinearGRPOLoss``, while the loss is made: the output matrix's gradient of the row at
    hand, in fp32 and in the matrix's own dtype (fused_linear_ppo.py:93-94, 157-160), beside that of all rows,
    which stands for the matrix's own, and is made where it does not learn, too (:246-250, 264).
    """
    width, words = BYTES.get(_width_of(plan), 2), sizes.vocab * sizes.hidden
    summed = 0 if _learns_head(plan) else width * words
    row = (4 if width == 4 else 4 + width) * words
    why = "gradients of the output matrix by rows, and logits of a part (Liger's fused_linear_ppo.py)"
    most = summed + row + PART
    return [extra_item("temporaries", "liger", (summed + width * words, most, most), why, OF_LOSS)]


def _learns_head(plan: Mapping[str, Any]) -> bool:
    """Whether the output matrix has a gradient of its own, as it has without adapters."""
    adapter = plan.get("adapter") or {}
    named = (*(adapter.get("targets") or ()), *(adapter.get("full_modules") or ()))
    return not adapter or HEAD in named


def _width_of(plan: Mapping[str, Any]) -> str:
    """The dtype of what learns, of a plan that says each or names all at once."""
    precision = plan.get("precision") or {}
    if isinstance(precision, str):
        return "fp32" if precision in IN_FP32 else "bf16"
    return str(precision.get("parameters"))


def student_chunk_items(sizes: Sizes, tokens: int, *, between: bool) -> list[dict[str, Any]]:
    """Of ``LigerFusedLinearJSDLoss``: both models' logits of a chunk, and what the divergence makes of them.
    ``tokens``: of a micro-batch; ``between``: whether it is of neither end.
    """
    narrow, wide = OF_STUDENT[not between]
    each = min(tokens, STUDENT_TOKENS) * sizes.vocab
    why = "logits of 1,024 tokens of both models and their divergence (Liger's jsd_loss.py)"
    return [extra_item("temporaries", "liger", (0, narrow * each, wide * each), why, OF_LOSS)]


OF_POLICIES = ("trl-recipe", "trl-grpo", "swift-grpo", "axolotl-grpo")
OF_STUDENTS = ("trl-gkd", "trl-gold", "trl-distillation", "swift-gkd")
"""Jobs, by their names, that this module says of what a loss makes in place of whole logits."""
OF_MARKED = "kto"


class FusedLoss(NamedTuple):
    """What stands in place of whole logits that are learnt from: items, logits that are left, and whether
    passes that only read make theirs all the same.
    """

    items: list[dict[str, Any]]
    logits: dict[str, Any] | None = None
    reads: bool = False


def fused_loss(name: str, plan: Mapping[str, Any], sizes: Sizes) -> FusedLoss:
    """The fused loss of a job by its name. ``plan``: of what trains."""
    if name in OF_POLICIES:
        return FusedLoss(head_gradient_items(sizes, plan), reads=True)
    if name in OF_STUDENTS:
        tokens = int(plan.get("microbatch") or 1) * int(plan.get("seq_len") or 0)
        return FusedLoss(student_chunk_items(sizes, tokens, between=True), reads=True)
    if name.rpartition("-")[2] == OF_MARKED:
        return FusedLoss([], {"bytes": list(READ_OF_KTO), "why": "of the mismatched answers, read only"})
    return FusedLoss([])
