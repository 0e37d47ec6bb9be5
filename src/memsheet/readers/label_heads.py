"""Decoders with a head that tells labels apart, in place of a vocabulary's tokens: reward models, classifiers
and rerankers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.frozen import replace
from memsheet.plan.model import Head, ModelSpec

OF_LABELS = ("ForSequenceClassification", "ForTokenClassification")
"""Heads that the library puts on any decoder: one matrix of a row a label (transformers 5.23.0
modeling_layers.py, GenericForSequenceClassification, GenericForTokenClassification).
"""
LABELLED = "the model tells labels apart"


def without_vocabulary(model: ModelSpec | None, why: str) -> ModelSpec | None:
    """A decoder with a head of few labels, which takes next to nothing, in place of the vocabulary's; None of
    any other model. ``why``: what the head is for, in words.
    """
    if model is None or model.head.kind != "causal_lm" or model.recording is not None:
        return None
    note = f"{why}: it has no output matrix, and the head in its place is left out"
    source = replace(model.source, notes=(*model.source.notes, note))
    return replace(model, head=Head(kind="none", width=model.head.width), source=source)


def with_head_of_class(model: ModelSpec, data: Mapping[str, Any]) -> ModelSpec:
    """The model with the head of the class that its config.json names."""
    named = data.get("architectures")
    first = str(named[0]) if isinstance(named, list) and named else ""
    return (without_vocabulary(model, LABELLED) if first.endswith(OF_LABELS) else None) or model
