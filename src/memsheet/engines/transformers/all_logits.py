"""Logits of a whole prompt, which transformers made before 4.45 when it generated."""

from __future__ import annotations

import re

from memsheet.arith import Count
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import TRANSFORMERS, formula

ONE_POSITION = (4, 45)
"""The first version whose generate asks for the last position's logits alone (generation/utils.py,
num_logits_to_keep).
"""
ONE_POSITION_SINCE = "2024-09"
"""When that version came out."""


def of_all_positions(version: str | None) -> bool:
    """Whether a version, or what was out at a date ("2023-11"), makes logits of every position."""
    text = version or ""
    if date := re.match(r"(20\d{2}-\d{2})\b", text):
        return date[1] < ONE_POSITION_SINCE
    named = re.match(r"(\d{1,2})\.(\d{1,3})\b", text)
    return bool(named) and (int(named[1]), int(named[2])) < ONE_POSITION if named else False


@formula(
    cites=TRANSFORMERS,
    at=(
        "before 4.45 LlamaForCausalLM.forward: logits of every position in the compute dtype, and all of "
        "them in fp32"
    ),
)
def prompt_logits_bytes(spec: ModelSpec, plan: Plan, tokens: Count, sequences: Count) -> Count:
    """Bytes at the end of a prompt's pass; 0 in versions that make the last position's alone."""
    if not of_all_positions(plan.engine_version):
        return 0
    elements = sequences * tokens * spec.head.width
    return plan.precision.compute.nbytes(elements) + (
        0 if plan.precision.compute is FP32 else FP32.nbytes(elements)
    )
