"""Models that a server makes vectors or scores with: they have neither an output matrix nor a sampler."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.shared.script_places import SCRIPT, TRAINS_STATES
from memsheet.exchange.shared.stand_in_server import WHOLE_TEXTS
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec
from memsheet.questions.named_models import model_of
from memsheet.questions.question_parts import read_named_model
from memsheet.questions.released_embedders import is_embedder, read_at_once, without_vocabulary
from memsheet.questions.trained_embedders import states_alone

POOLS = {
    "--runner": ("pooling",),
    "--convert": ("embed", "classify", "reward"),
    "--task": ("embed", "embedding", "score", "classify", "reward", "encode"),
}
"""Flags of servers and their words for it (vllm-project/vllm v0.33.0 config/model.py:1307 _get_runner_type,
v0.9.2 config.py TaskOption): what is made then has no output (v0.33.0 model_executor/models/adapters.py:147,
v0.11.0 :190).
"""


VECTORS = frozenset({"pooling", "embed", "embedding", "encode"})
"""Words of theirs with which an encoder is served as it is, without a head on top of it."""


def without_output(
    name: str | ModelSpec | None, reads: Mapping[str, FileReading]
) -> tuple[str | ModelSpec | None, dict[str, FileReading]]:
    """The model without what makes logits where the files' server pools it, and the files without the flags
    that say so; both as they are of any other.
    """
    if name is not None and any(read.values.get(WHOLE_TEXTS) for read in reads.values()):
        return read_at_once(model_of(name)) or name, dict(reads)
    if name is not None and any(read.values.get(f"{SCRIPT}.{TRAINS_STATES}") for read in reads.values()):
        return _with_states_alone(name), dict(reads)
    model = model_of(name) if name is not None and any(map(_looks_for_pooling, reads.values())) else None
    if model is not None and model.head.kind == "none":  # vectors are all that it makes
        return name, {
            at: _without_flags(read) if _makes_vectors(read) else read for at, read in reads.items()
        }
    if model is None or model.head.kind != "causal_lm":
        return name, dict(reads)
    if not any(_keeps_pool(read) or (is_embedder(model) and _is_open(read)) for read in reads.values()):
        return model if is_embedder(model) else name, dict(reads)
    engine = next((read.request.get("engine") for read in reads.values() if _looks_for_pooling(read)), None)
    return without_vocabulary(model, engine), {at: _without_flags(read) for at, read in reads.items()}


def _with_states_alone(name: str | ModelSpec) -> str | ModelSpec:
    """A decoder as sentence-transformers loads and trains any: without what makes logits."""
    model = name if isinstance(name, ModelSpec) else read_named_model(name, "train")
    return states_alone(model, "as its script loads it") if model.head.kind == "causal_lm" else name


def _looks_for_pooling(read: FileReading) -> bool:
    return any(row.at == "--runner" for row in read.form.keys) or "--runner" in read.form.unmodelled


def _keeps_pool(read: FileReading) -> bool:
    return _looks_for_pooling(read) and any(read.values.get(at) in words for at, words in POOLS.items())


def _makes_vectors(read: FileReading) -> bool:
    return all(read.values.get(at, "embed") in VECTORS for at in POOLS)


def _is_open(read: FileReading) -> bool:
    """Whether no flag says what the server makes."""
    return _looks_for_pooling(read) and not any(read.values.get(at, "auto") != "auto" for at in POOLS)


def _without_flags(read: FileReading) -> FileReading:
    return replace(read, unmodelled=tuple((at, value) for at, value in read.unmodelled if at not in POOLS))
