"""What libraries do in training that an engine's sheet does not hold, in bytes beside it: of questions that name one, and of its files."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.exchange import find_format
from memsheet.spec.dtypes import FP32
from memsheet.spec.exchange import Moved
from memsheet.spec.model import ModelSpec
from memsheet.spec.plan import AttentionKind, Loss, Plan

WIDER = 2 + 2 + 2 * 2 + 2
"""Bytes more of an element that is kept in fp32 beside sixteen bits: itself, its gradient, two moments, and the copy that products are made of."""


def moved_by(library: str, model: ModelSpec, plan: Plan) -> Iterator[Moved]:
    """Bytes that the library adds or saves."""
    if library == "trl" and plan.loss is Loss.CHUNKED and (moves := find_format("trl").moves) is not None:
        width = "float32" if plan.precision.parameters is FP32 else "bfloat16"
        sizes = {
            "@tokens": int(plan.microbatch) * int(plan.seq_len),
            "@vocab": model.vocab,
            "@hidden": model.hidden,
            "@loss": plan.loss.value,
        }
        yield from moves({"dtype": width}, {**sizes, "precision.gradients": plan.precision.gradients.name})
    if library == "unsloth" and plan.loss is Loss.CHUNKED:
        sizes = {"@tokens": int(plan.microbatch) * int(plan.seq_len), "@vocab": model.vocab, "@hidden": model.hidden}
        if (moves := find_format("transformers").moves) is not None:
            yield from moves({"script.unsloth": True}, sizes)
    if (
        library == "axolotl"
        and plan.adapter is None
        and plan.precision.parameters is not FP32
        and plan.attention is not AttentionKind.FLASH
    ):
        wide = 2 * model.vocab + 8 * sum(stack.layers for stack in model.stacks) + 1  # both tables, and every norm of a layer
        why = "axolotl leaves embeddings, output layer and norms in fp32 with this attention (src/axolotl/loaders/model.py:422-476)"
        yield Moved(at="attention", why=why, low_bytes=0, high_bytes=wide * model.hidden * WIDER)
