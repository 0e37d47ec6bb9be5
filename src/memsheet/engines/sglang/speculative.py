"""SGLang with drafted tokens: a worker of its own beside the model's, with a pool as long as the model's, and
all that is drafted verified at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.arith import Count, given_or, maximum
from memsheet.engines.sglang.drafting import DraftReserve, kept_of
from memsheet.engines.sglang.loaded import WAYS
from memsheet.formulas.serving.drafts import (
    PREFIX,
    draft_facts,
    draft_of,
    draft_weights,
    drafted_bytes,
    verified_tokens,
)
from memsheet.formulas.serving.graphs import A_SEQUENCE, KEPT_FREE
from memsheet.formulas.serving.kv_cache import bytes_per_token
from memsheet.formulas.serving.widest_layer import layer_bytes
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan, SpeculativeMethod
from memsheet.references import SGLANG, formula
from memsheet.sheet import NOTHING, Bytes, Cited, Component, Instant, Item, sum_byte_ranges

RUNNING = (Instant.PREFILL, Instant.DECODE)
EVERY = (Instant.LOAD, *RUNNING)
AT_DRAFT = Cited(SGLANG, "v0.5.23 speculative/eagle_worker_v2.py: hidden states and words that graphs read")
SPARE = 100
"""Places of the pool besides (v0.4.6.post1 model_executor/model_runner.py:766)."""


def draft_worker_items(part: ModelSpec, plan: Plan, largest: Count) -> list[Item]:
    """Weights of who drafts, buffers and graphs. Nothing where nobody does."""
    draft = draft_of(part, plan)
    if draft is None:
        return []
    buffers = Bytes.exact(draft_buffer_bytes(draft.whole.hidden, plan, largest))
    items = [
        *draft_weights(draft, EVERY, WAYS),
        Item(Component.BUFFERS, f"{PREFIX}buffers", dict.fromkeys(RUNNING, buffers), AT_DRAFT),
    ]
    if plan.options.captures:
        graphs = Bytes(0, 0, A_SEQUENCE * largest)
        items.append(
            Item(Component.CUDA_GRAPHS, f"{PREFIX}captured", dict.fromkeys(RUNNING, graphs), KEPT_FREE)
        )
    return items


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 speculative/eagle_draft_cuda_graph_runner.py, eagle_draft_extend_cuda_graph_runner.py: "
        "hidden states of the sequences that are drafted for and of all verified tokens"
    ),
)
def draft_buffer_bytes(hidden: int, plan: Plan, largest: Count) -> Count:
    """Bytes of the inputs of the two graphs of a draft."""
    assert plan.speculative is not None
    rows = largest * (1 + verified_tokens(plan))
    return plan.precision.compute.nbytes(rows * hidden) + drafted_bytes(largest, plan.speculative.tokens)


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 managers/scheduler.py:1130-1137: the draft is loaded, then pools are sized; before, the "
        "other way round"
    ),
)
def loaded_first(plan: Plan, items: list[Item]) -> Bytes:
    """Bytes of a draft that are there before the pool is sized; in older releases what the fraction leaves
    has to hold it.
    """
    if plan.speculative is None or not kept_of(plan.engine_version).first:
        return NOTHING
    return sum_byte_ranges(item.at[Instant.LOAD] for item in items if Instant.LOAD in item.at)


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 model_executor/pool_configurator.py:259, 736: the draft's layers as if they were the "
        "model's; older releases count none"
    ),
)
def counted_layers(part: ModelSpec, plan: Plan, per_layer: Count) -> Count:
    """Bytes a token that the draft adds to what the room is divided by."""
    if plan.speculative is None or not kept_of(plan.engine_version).first:
        return 0
    return per_layer * draft_layers(part, plan)


@formula(
    cites=SGLANG,
    at=(
        "v0.4.6.post1 model_executor/model_runner.py:758: places for what each request drafts and "
        "verifies, beyond what the room holds; none since v0.5.8"
    ),
)
def ahead_tokens(plan: Plan) -> Count:
    """Tokens that the pool has for drafts."""
    how = plan.speculative
    if how is None or not kept_of(plan.engine_version).ahead:
        return 0
    requests = given_or(plan.serving.max_sequences, 1)
    return requests * how.tokens + requests * verified_tokens(plan) + SPARE


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 mem_cache/kv_cache_configurator.py:884, v0.5.4.post3 model_executor/model_runner.py:1636: "
        "a place for each drafted token"
    ),
)
def table_tokens(plan: Plan) -> Count:
    """Tokens of a request in the table that says where each is."""
    kept: DraftReserve = kept_of(plan.engine_version)
    return given_or(plan.serving.max_model_len, 1) + (
        verified_tokens(plan) if plan.speculative is not None and kept.table else 0
    )


LAYERS_READ = 3
"""Layers whose hidden states EAGLE-3 reads, one beside another (v0.5.23 models/llama.py
set_eagle3_layers_to_capture).
"""


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 speculative/eagle_worker_v2.py: the draft reads the batch after the model, whose hidden "
        "states stay; EAGLE-3 those of three layers, joined"
    ),
)
def drafted_layer(part: ModelSpec, plan: Plan, tokens: Count) -> Bytes:
    """The widest layer of the model and of the draft over a batch, with what the one hands to the other."""
    draft, own = draft_of(part, plan), layer_bytes(part, plan, tokens)
    if draft is None or plan.speculative is None:
        return own
    row = plan.precision.compute.nbytes(tokens * part.hidden)
    read = LAYERS_READ * row if plan.speculative.method is SpeculativeMethod.EAGLE3 else 0
    handed = (2 * read or row) if plan.speculative.method.headed else 0
    beside = layer_bytes(draft.whole, draft.plan, tokens)
    return Bytes(
        maximum(own.low, beside.low),
        maximum(own.value + read, beside.value + handed),
        maximum(own.high + read, beside.high + handed),
    )


def worker_facts(items: list[Item], part: ModelSpec, plan: Plan, largest: Count) -> Mapping[str, Any]:
    """What drafting costs on a rank."""
    draft = draft_of(part, plan)
    assert plan.cache.kv_dtype is not None
    per_token = bytes_per_token(draft.whole, plan.cache.kv_dtype) if draft else 0
    rows = largest * verified_tokens(plan)
    return {
        **draft_facts(items, plan, per_token), "verified_rows": rows,
        "logits_bytes": plan.precision.compute.nbytes(rows * part.head.width),
    }  # fmt: skip


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 model_executor/model_runner_components/spec_aux_hidden_state.py:157: the layers of the "
        "draft's config"
    ),
)
def draft_layers(part: ModelSpec, plan: Plan) -> int:
    """Layers of the draft."""
    draft = draft_of(part, plan)
    return 0 if draft is None else draft.whole.layers
