"""Models that make vectors, as an engine serves their release where nobody says how."""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import Head, ModelSpec

NAMED = "embedding"
"""In the names of bundled decoders whose checkpoints hold how they are pooled, which a server looks for first
(vllm-project/vllm v0.33.0 config/model.py:1290).
"""


def is_embedder(model: ModelSpec) -> bool:
    """Whether a decoder's name says that its checkpoint holds how it is pooled."""
    return model.head.kind == "causal_lm" and NAMED in model.name.lower()


def embedder_as_served(model: ModelSpec, engine: object) -> ModelSpec:
    """The model as an engine serves its release where nobody says how."""
    found = find_engine(str(engine)) if engine is not None else None
    if found is None or not found.serving.pools_embedders or not is_embedder(model):
        return model
    return without_vocabulary(model, engine)


def without_vocabulary(model: ModelSpec, engine: object) -> ModelSpec:
    """A model without what makes logits; without a cache where the engine has its layers attend both ways."""
    found = find_engine(str(engine))
    if found is not None and is_embedder(model) and model.model_type in found.serving.embeds_both_ways:
        return read_at_once(model) or model
    note = "the server makes vectors or scores with the model, and has no output matrix"
    source = replace(model.source, notes=(*model.source.notes, note))
    return replace(model, head=Head(kind="none", width=model.head.width), source=source)


def read_at_once(model: ModelSpec | None) -> ModelSpec | None:
    """A decoder that reads whole texts, as an encoder does: without an output matrix, and without a cache,
    which nothing would read (huggingface/text-embeddings-inference v1.8 backends/candle/src/models/
    flash_qwen3.rs, flash_mistral.rs; vllm v0.33.0 model_executor/models/gemma3.py:168). None of any other
    model.
    """
    if model is None or not any(stack.role == "decoder" for stack in model.stacks) or len(model.stacks) > 1:
        return None
    note = "the server reads whole texts at once, and keeps no cache of them"
    source = replace(model.source, notes=(*model.source.notes, note))
    stacks = tuple(replace(stack, role="encoder") for stack in model.stacks)
    return replace(model, stacks=stacks, head=Head(kind="none", width=model.head.width), source=source)
