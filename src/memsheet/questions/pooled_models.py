"""Models that a server makes vectors or scores with: they have neither an output matrix nor a sampler."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.exchange.shared.file_format import Read
from memsheet.exchange.shared.stand_in_server import WHOLE_TEXTS
from memsheet.frozen import replace
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import Head, ModelSpec
from memsheet.questions.named_models import model_of

POOLS = {
    "--runner": ("pooling",),
    "--convert": ("embed", "classify", "reward"),
    "--task": ("embed", "embedding", "score", "classify", "reward", "encode"),
}
"""Flags of servers and their words for it (vllm-project/vllm v0.33.0 config/model.py:1307 _get_runner_type,
v0.9.2 config.py TaskOption): what is made then has no output (v0.33.0 model_executor/models/adapters.py:147,
v0.11.0 :190).
"""
NAMED = "embedding"
"""In the names of bundled decoders whose checkpoints hold how they are pooled, which a server looks for first
(v0.33.0 config/model.py:1290).
"""


def without_output(
    name: str | ModelSpec | None, reads: Mapping[str, Read]
) -> tuple[str | ModelSpec | None, dict[str, Read]]:
    """The model without what makes logits where the files' server pools it, and the files without the flags
    that say so; both as they are of any other.
    """
    if name is not None and any(read.values.get(WHOLE_TEXTS) for read in reads.values()):
        return _read_at_once(model_of(name)) or name, dict(reads)
    model = model_of(name) if name is not None and any(map(_looks_for_pooling, reads.values())) else None
    if model is None or model.head.kind != "causal_lm":
        return name, dict(reads)
    if not any(_keeps_pool(read) or (is_embedder(model) and _is_open(read)) for read in reads.values()):
        return model if is_embedder(model) else name, dict(reads)
    engine = next((read.request.get("engine") for read in reads.values() if _looks_for_pooling(read)), None)
    return _pooled(model, engine), {at: _without_flags(read) for at, read in reads.items()}


def is_embedder(model: ModelSpec) -> bool:
    """Whether a decoder's name says that its checkpoint holds how it is pooled."""
    return model.head.kind == "causal_lm" and NAMED in model.name.lower()


def as_released(model: ModelSpec, engine: object) -> ModelSpec:
    """The model as an engine serves its release where nobody says how."""
    found = find_engine(str(engine)) if engine is not None else None
    if found is None or not found.serving.pools_embedders or not is_embedder(model):
        return model
    return _pooled(model, engine)


def _pooled(model: ModelSpec, engine: object) -> ModelSpec:
    """A model without what makes logits; without a cache where the engine has its layers attend both ways."""
    found = find_engine(str(engine))
    if found is not None and is_embedder(model) and model.model_type in found.serving.embeds_both_ways:
        return _read_at_once(model) or model
    note = "the server makes vectors or scores with the model, and has no output matrix"
    source = replace(model.source, notes=(*model.source.notes, note))
    return replace(model, head=Head(kind="none", width=model.head.width), source=source)


def _read_at_once(model: ModelSpec | None) -> ModelSpec | None:
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


def _looks_for_pooling(read: Read) -> bool:
    return any(row.at == "--runner" for row in read.form.keys) or "--runner" in read.form.unmodelled


def _keeps_pool(read: Read) -> bool:
    return _looks_for_pooling(read) and any(read.values.get(at) in words for at, words in POOLS.items())


def _is_open(read: Read) -> bool:
    """Whether no flag says what the server makes."""
    return _looks_for_pooling(read) and not any(read.values.get(at, "auto") != "auto" for at in POOLS)


def _without_flags(read: Read) -> Read:
    return replace(read, unmodelled=tuple((at, value) for at, value in read.unmodelled if at not in POOLS))
