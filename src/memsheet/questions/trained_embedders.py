"""Decoders that make embeddings, as they train: on their states, without an output matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.frozen import replace
from memsheet.patterns import late_pattern
from memsheet.plan.model import Head, ModelSpec
from memsheet.questions.released_embedders import NAMED, is_embedder

BARE = late_pattern(r"(?!.*(?:For|LMHead))\w+Model")
"""Classes of the library that end with a model's states."""


def as_trained_embedder(spec: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    """A decoder that makes embeddings, by its class or by its name, as sentence-transformers loads and trains
    it: its states alone (huggingface/sentence-transformers 0aa54b9
    sentence_transformers/models/Transformer.py: AutoModel). Any other as it is.
    """
    if spec.head.kind != "causal_lm" or spec.towers:
        return spec
    named = config.get("architectures")
    classes = [str(one) for one in named] if isinstance(named, list | tuple) else []
    bare = next(filter(BARE.fullmatch, classes), None)
    if bare is None and not is_embedder(spec):
        return spec
    return states_alone(spec, f"its config's class is {bare}" if bare else "as its name says")


def config_as_trained(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The config of such a decoder with the class that has no head, as the real code is made of it; any other
    as it is.
    """
    named = config.get("architectures")
    first = str(named[0]) if isinstance(named, list | tuple) and named else ""
    if NAMED not in name.lower() or not first.endswith(WITH_HEAD):
        return config
    return {**config, "architectures": [f"{first.removesuffix(WITH_HEAD)}Model"]}


WITH_HEAD = "ForCausalLM"


def states_alone(spec: ModelSpec, how: str) -> ModelSpec:
    """A decoder without its output matrix. ``how``: where that is known from."""
    source = replace(spec.source, notes=(*spec.source.notes, f"it makes embeddings, {how}, and no logits"))
    return replace(spec, head=Head(kind="none", width=spec.hidden), source=source)
