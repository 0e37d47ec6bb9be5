"""Who drafts for a model: a smaller model as it is, or a head on the model's hidden states, whose config.json
looks like a model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memsheet.errors import input_error
from memsheet.frozen import replace
from memsheet.plan.model import Attention, Block, Head, ModelSpec, Role, Run, Stack, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import Catalog, find_config
from memsheet.readers.parts import linear_weights, rms_norm, vocabulary_head

HEADED = ("eagle", "eagle3")
LAYERS_READ = 3
"""Layers whose hidden states an EAGLE-3 head reads unless its config counts them (``READ_IN``)."""
INPUTS = ("q_proj", "k_proj", "v_proj", "qkv_proj")


def with_draft(
    spec: ModelSpec, request: Mapping[str, Any], *, catalog: Catalog, names: Iterable[str] = ()
) -> ModelSpec:
    """The model with who drafts for it, where a request names one. Raises InputError where the name is of
    nobody.
    """
    name, method = request.get("speculative.model"), request.get("speculative.method")
    if not isinstance(name, str) or method not in ("draft", *HEADED):
        return spec
    found = find_config(name, catalog=catalog, names=names)
    if method == "draft":
        draft = (
            found
            if isinstance(found, ModelSpec)
            else read_hf_config(found.values, name=found.name, source=found.source)
        )
        return replace(spec, draft=draft)
    if isinstance(found, ModelSpec):
        raise input_error(
            "speculative.model",
            name,
            "is a file without the head's config.json",
            "the head's folder, or its config.json",
        )
    read = read_hf_config(found.values, name=found.name, source=found.source)
    made = eagle_head(read) if method == "eagle" else eagle3_head(read, found.values, spec.hidden)
    return replace(spec, draft=made)


def eagle_head(read: ModelSpec) -> ModelSpec:
    """EAGLE: a matrix that joins embedding and hidden state, then layers, the first without its first norm,
    and no norm at the end; vocabulary and output are the model's (``READ_IN``; SGLang v0.5.23
    models/llama_eagle.py).
    """
    stack = _replace_first_layer(read.stacks[0], lambda block: replace(block, norms=block.norms[1:]))
    joined = linear_weights("fc", read.hidden, 2 * read.hidden, role=Role.OTHER)
    return replace(
        read,
        stacks=(replace(stack, final_norms=()),),
        head=_tied_draft_head(read.head),
        extras=(*read.extras, *joined),
    )


def eagle3_head(read: ModelSpec, values: Mapping[str, Any], target_hidden: int) -> ModelSpec:
    """EAGLE-3: a matrix from the hidden states of several layers, layers of which the first reads an
    embedding beside them, an output over a vocabulary of its own and its words in the model's (``READ_IN``;
    SGLang v0.5.23 models/llama_eagle3.py:44-200).
    """
    config = Fields(values)
    words = config.count("draft_vocab_size", default=read.vocab)
    own = values.get("eagle_config")
    listed = own.get("eagle_aux_hidden_state_layer_ids") if isinstance(own, Mapping) else None
    layers = config.count(
        "num_aux_hidden_states",
        default=len(listed) if isinstance(listed, list) and listed else LAYERS_READ,
        high=64,
    )
    wide = layers * config.count("target_hidden_size", default=target_hidden)
    config.done()
    joined = linear_weights("fc", read.hidden, wide, role=Role.OTHER)
    places = (
        (Weight(path="d2t", shape=(words,), role=Role.BUFFER, dtype="int64"),) if words != read.vocab else ()
    )
    head = replace(
        read.head,
        kind="causal_lm",
        width=words,
        tied=False,
        weights=vocabulary_head("lm_head", words, read.hidden),
    )
    return replace(
        read,
        stacks=(_replace_first_layer(read.stacks[0], _wide_input),),
        head=head,
        extras=(*read.extras, *joined, *places),
    )


def _tied_draft_head(head: Head) -> Head:
    """An output without a matrix of its own."""
    return replace(head, tied=True, weights=())


def _wide_input(block: Block) -> Block:
    """A layer whose attention reads two vectors a token, each with a norm."""
    mixers = tuple(
        replace(m, weights=tuple(_double_input_width(m.weights))) if isinstance(m, Attention) else m
        for m in block.mixers
    )
    return replace(block, mixers=mixers, norms=(*block.norms, rms_norm("hidden_norm", block.hidden)))


def _double_input_width(weights: Iterable[Weight]) -> Iterator[Weight]:
    for weight in weights:
        wide = len(weight.shape) == 2 and weight.path.split(".")[-2] in INPUTS
        yield replace(weight, shape=(weight.shape[0], 2 * weight.shape[1])) if wide else weight


def _replace_first_layer(stack: Stack, change: Any) -> Stack:
    """The stack with its first layer changed."""
    run, *rest = stack.runs
    block, *others = run.pattern
    runs = [Run(pattern=(change(block),), count=1)]
    runs += [Run(pattern=tuple(others), count=1)] if others else []
    runs += [replace(run, count=run.count - 1)] if run.count > 1 else []
    return replace(stack, runs=(*runs, *rest))
