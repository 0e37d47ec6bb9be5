"""Assisted generation in transformers: an assistant model beside the model, or words of the prompt, and
logits of every drafted token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.arith import Count
from memsheet.formulas.serving.drafts import (
    PREFIX,
    draft_facts,
    draft_of,
    prefix_draft_items,
    verified_tokens,
)
from memsheet.formulas.serving.kv_cache import bytes_per_token
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan, SpeculativeMethod
from memsheet.references import TRANSFORMERS, formula
from memsheet.sheet import Bytes, Cited, Component, Instant, Item

KEPT = (Component.PARAMETERS, Component.BUFFERS, Component.KV_CACHE, Component.ALLOCATOR_SLACK)
AT_LOGITS = Cited(
    TRANSFORMERS, "5.23 generation/utils.py:4084 _assisted_decoding, candidate_generator.py:333"
)


def assistant_items(
    spec: ModelSpec, plan: Plan, alone: Callable[[ModelSpec, Plan], list[Item]]
) -> list[Item]:
    """An assistant's weights and cache, and the logits that are compared. ``alone``: the items of a model by
    itself. What an assistant computes with is gone when the model computes.
    """
    if plan.speculative is None:
        return []
    draft = draft_of(spec, plan)
    kept = (
        prefix_draft_items(item for item in alone(draft.whole, draft.plan) if item.component in KEPT)
        if draft
        else []
    )
    return [
        *kept,
        Item(
            Component.TEMPORARIES, f"{PREFIX}logits", {Instant.DECODE: compared_bytes(spec, plan)}, AT_LOGITS
        ),
    ]


@formula(
    cites=TRANSFORMERS,
    at=(
        "5.23 generation/utils.py:4084: logits of the drafted tokens and one more, in fp32 and a copy of "
        "that; candidate_generator.py:333 the assistant's own"
    ),
)
def compared_bytes(spec: ModelSpec, plan: Plan) -> Bytes:
    """Bytes of the logits of a step: at least those in fp32, at most with the softmax of both sides where
    tokens are sampled.
    """
    assert plan.speculative is not None
    rows: Count = verified_tokens(plan) * spec.head.width
    own: Count = (
        plan.speculative.tokens * spec.head.width if plan.speculative.method is SpeculativeMethod.DRAFT else 0
    )
    value = plan.precision.compute.nbytes(rows) + 2 * FP32.nbytes(rows) + FP32.nbytes(own)
    return Bytes(FP32.nbytes(rows), value, value + FP32.nbytes(rows) + FP32.nbytes(own))


def assistant_facts(spec: ModelSpec, plan: Plan, items: tuple[Item, ...]) -> Mapping[str, Any]:
    """What an assistant costs."""
    draft = draft_of(spec, plan)
    assert plan.cache.kv_dtype is not None
    return draft_facts(items, plan, bytes_per_token(draft.whole, plan.cache.kv_dtype) if draft else 0)
