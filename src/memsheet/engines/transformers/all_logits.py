"""Logits of a whole prompt, which earlier releases of transformers made when they generated."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.engines.transformers.releases import (
    copies_logits,
    keeps_first_logits,
    makes_all_logits,
)
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import TRANSFORMERS, formula

MASKED = "masked_lm"
"""The head of a model that is read once and makes no tokens (plan/model.py, Head)."""


@formula(
    cites=TRANSFORMERS,
    at=(
        "before 4.45 LlamaForCausalLM.forward: logits of every position in the compute dtype, and all of "
        "them in fp32; BertForMaskedLM.forward: of every position, beside the last hidden state and "
        "what they are made of"
    ),
)
def prompt_logits_bytes(spec: ModelSpec, plan: Plan, tokens: Count, sequences: Count) -> Count:
    """Bytes at the end of a prompt's pass; 0 where the last position's alone are made."""
    if spec.head.kind == MASKED:
        return plan.precision.compute.nbytes(
            sequences * tokens * (spec.head.width + 2 * spec.stacks[-1].hidden)
        )
    if not makes_all_logits(spec, plan.engine_version):
        return 0
    elements = sequences * tokens * spec.head.width
    copied = copies_logits(spec) and plan.precision.compute is not FP32
    return plan.precision.compute.nbytes(elements) + (FP32.nbytes(elements) if copied else 0)


@formula(
    cites=TRANSFORMERS,
    at="before 4.42 generation/utils.py: a step's outputs are named until the next step's are there",
)
def first_step_logits_bytes(spec: ModelSpec, plan: Plan, tokens: Count, sequences: Count) -> Count:
    """Bytes of a prompt's logits that stay while the first token after it is made."""
    if not makes_all_logits(spec, plan.engine_version) or not keeps_first_logits(plan.engine_version):
        return 0
    kept = FP32 if copies_logits(spec) else plan.precision.compute
    return kept.nbytes(sequences * tokens * spec.head.width)
