"""What Liger's losses of a policy and of a student make in place of whole logits.

Counted of linkedin/Liger-Kernel ead96b6 src/liger_kernel/chunked_loss with torch 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.jobs.templates.planned import Sizes, extra_item

PART = 2048 * 4096 * 11
"""Bytes of the logits that are made at once: of 2,048 tokens and 4,096 words (fused_linear_ppo.py:7-8)."""
OF_STUDENT: Mapping[bool, tuple[int, int]] = {True: (28, 44), False: (38, 72)}
"""Bytes of a logit of 1,024 tokens, of both models: with inputs of bf16 and of fp32, where the divergence is
of one end, and between both (jsd_loss.py:23-58, fused_linear_distillation.py).
"""
STUDENT_TOKENS = 1024
BYTES = {"fp32": 4}


def head_gradient_items(sizes: Sizes, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of ``LigerFusedLinearGRPOLoss``: gradients of the output matrix, those of all rows and of the row at
    hand, whether it learns or not (fused_linear_ppo.py:185, 246-250, 264).
    """
    width = BYTES.get(str((plan.get("precision") or {}).get("parameters")), 2)
    matrix = sizes.vocab * sizes.hidden * width
    why = "two gradients of the output matrix, and logits of a part (Liger's fused_linear_ppo.py)"
    return [extra_item("temporaries", "liger", (matrix, 2 * matrix + PART, 2 * matrix + PART), why)]


def student_chunk_items(sizes: Sizes, tokens: int, *, between: bool) -> list[dict[str, Any]]:
    """Of ``LigerFusedLinearJSDLoss``: both models' logits of a chunk, and what the divergence makes of them.
    ``tokens``: of a micro-batch; ``between``: whether it is of neither end.
    """
    narrow, wide = OF_STUDENT[not between]
    each = min(tokens, STUDENT_TOKENS) * sizes.vocab
    why = "logits of 1,024 tokens of both models and their divergence (Liger's jsd_loss.py)"
    return [extra_item("temporaries", "liger", (0, narrow * each, wide * each), why)]
