"""vLLM with drafted tokens: who drafts is loaded beside the model, its layers join the pool, and all that is
drafted is verified at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.arith import Count, given_or, maximum, minimum
from memsheet.engines.vllm.drafting import (
    CHUNK_BYTES,
    COUNTING_RUNNER,
    EMBEDS_SINCE,
)
from memsheet.engines.vllm.graphs import AT_CAPTURE, recorded_bytes
from memsheet.engines.vllm.loaded import WAYS
from memsheet.engines.vllm.profiled import Peak, profile_run_peak, profiled_layer_bytes
from memsheet.engines.vllm.releases import Release
from memsheet.formulas.serving.drafts import (
    PREFIX,
    Draft,
    draft_facts,
    draft_of,
    draft_weights,
    drafted_bytes,
    verified_tokens,
)
from memsheet.formulas.serving.kv_cache import bytes_per_token
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.dtypes import FP32, INT32, INT64, DType
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan, SpeculativeMethod
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes, Cited, Component, Instant, Item

RUNNING = (Instant.PREFILL, Instant.DECODE)
EVERY = (Instant.LOAD, *RUNNING)
AT_PROPOSER = Cited(
    PAGED_SERVER_CODE,
    (
        "v0.33.0 v1/worker/gpu/spec_decode/speculator.py, v0.11.0 v1/spec_decode/eagle.py: buffers that "
        "graphs read"
    ),
)
LAYERS_READ = 3
"""Layers whose hidden states EAGLE-3 reads (v0.11.0 models/llama.py get_eagle3_aux_hidden_state_layers)."""


def release_for(release: Release, plan: Plan) -> Release:
    """The release, with a state of every drafted token for each that it keeps of a sequence (v0.33.0
    v1/kv_cache_interface.py:1135).
    """
    if plan.speculative is None:
        return release
    return replace(release, state_pages=release.state_pages + int(plan.speculative.tokens))


def draft_items(part: ModelSpec, plan: Plan, release: Release) -> list[Item]:
    """What is there from loading on: the draft's own weights, and the proposer's buffers. Nothing where
    nobody drafts.
    """
    draft = draft_of(part, plan)
    return (
        []
        if draft is None
        else [*draft_weights(draft, EVERY, WAYS), _proposer_buffer_item(draft, plan, release)]
    )


def _proposer_buffer_item(draft: Draft, plan: Plan, release: Release) -> Item:
    size = proposer_bytes(
        draft,
        plan,
        second=_uses_second_model_runner(draft.whole, release),
        embeds=release.since >= EMBEDS_SINCE,
    )
    return Item(Component.BUFFERS, f"{PREFIX}proposer", dict.fromkeys(EVERY, Bytes.exact(size)), AT_PROPOSER)


def _uses_second_model_runner(part: ModelSpec, release: Release) -> bool:
    """Whether the second model runner serves the family."""
    return release.since >= COUNTING_RUNNER or release.sampler_of(part.model_type).counts


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/spec_decode/eagle.py:82-118 and v0.33.0 "
        "v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py:35, speculator.py:149: a row a token"
    ),
)
def proposer_bytes(draft: Draft, plan: Plan, *, second: bool, embeds: bool) -> Count:
    """Bytes of hidden states and input embeddings of a batch, its words and places, and what is drafted."""
    assert plan.speculative is not None
    assert plan.serving.max_sequences is not None
    assert plan.serving.max_batched_tokens is not None
    hidden = (
        1 if plan.speculative.method.headed or not second else 0
    )  # a draft model of the second runner reads none
    rows = (
        plan.serving.max_batched_tokens * draft.whole.hidden * (hidden + (1 if embeds and not second else 0))
    )
    words = plan.serving.max_batched_tokens * (2 * INT32.bits + 2 * INT64.bits) // 8
    return (
        plan.precision.compute.nbytes(rows)
        + words
        + drafted_bytes(plan.serving.max_sequences, plan.speculative.tokens)
    )


def drafted_peaks(
    part: ModelSpec, plan: Plan, release: Release, peaks: Mapping[Instant, Peak]
) -> Mapping[Instant, Peak]:
    """The profiling run's peak with who drafts after the model, and that of decoding with all that is
    verified at once.
    """
    if plan.speculative is None or part.head.kind == "none":
        return peaks
    assert plan.serving.max_batched_tokens is not None
    tokens = minimum(
        plan.serving.max_batched_tokens, given_or(plan.serving.max_sequences, 1) * verified_tokens(plan)
    )
    decode = decode_step_peak(part, plan, release, tokens)
    prefill = drafting_run_peak(peaks[Instant.PREFILL], part, plan, plan.serving.max_batched_tokens)
    return {Instant.PREFILL: prefill, Instant.DECODE: drafting_run_peak(decode, part, plan, tokens)}


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/worker/gpu_model_runner.py:3165 and v0.33.0 v1/worker/gpu/model_runner.py:948: "
        "drafting with the model's hidden states still there"
    ),
)
def drafting_run_peak(peak: Peak, part: ModelSpec, plan: Plan, tokens: Count) -> Peak:
    """The peak of a run after which somebody drafts: with what EAGLE-3 reads of other layers, and the draft's
    widest layer above.
    """
    draft, how = draft_of(part, plan), plan.speculative
    if draft is None or how is None:
        return peak
    row = plan.precision.compute.nbytes(tokens * part.hidden)
    read = LAYERS_READ * row if how.method is SpeculativeMethod.EAGLE3 else 0
    joined = read + plan.precision.compute.nbytes(tokens * draft.whole.hidden) if read else 0
    model = Bytes(peak.layer.low, peak.layer.value + read, peak.layer.high + read)
    own = profiled_layer_bytes(draft.whole, draft.plan, tokens)
    beside = Bytes(own.low + row, own.value + row + read, own.high + row + read)
    return replace(
        peak,
        layer=_higher_byte_range(
            _higher_byte_range(model, beside), Bytes(0, row + read + joined, row + read + joined)
        ),
    )


def _higher_byte_range(left: Bytes, right: Bytes) -> Bytes:
    """The higher of two ranges, end by end."""
    return Bytes(
        maximum(left.low, right.low), maximum(left.value, right.value), maximum(left.high, right.high)
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/worker/gpu_model_runner.py:2071, v0.33.0 "
        "v1/worker/gpu/spec_decode/rejection_sampler.py:35: rows of all drafted tokens and one more"
    ),
)
def decode_step_peak(part: ModelSpec, plan: Plan, release: Release, tokens: Count) -> Peak:
    """The peak of a step of decoding, which the profiling run does not see: as many rows of logits as tokens
    are verified. The second runner samples from a part of them at a time.
    """
    peak = profile_run_peak(
        part, replace(plan, workload=replace(plan.serving, max_sequences=tokens)), release, tokens
    )
    logits = plan.precision.compute.nbytes(tokens * part.head.width)
    if not _uses_second_model_runner(part, release):
        return replace(
            peak, sampler=Bytes(minimum(logits, peak.sampler.low), peak.sampler.value, peak.sampler.high)
        )
    rows = minimum(tokens, chunk_rows(part.head.width))
    once = profile_run_peak(
        part, replace(plan, workload=replace(plan.serving, max_sequences=rows)), release, rows
    ).sampler
    above = plan.precision.compute.nbytes(rows * part.head.width)
    return replace(peak, sampler=Bytes(logits, logits + once.value - above, logits + once.high))


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 v1/worker/gpu/spec_decode/rejection_sampler.py:39 get_max_chunk_logits",
)
def chunk_rows(width: Count) -> Count:
    """Rows of logits that are verified at once."""
    return maximum(1, CHUNK_BYTES // FP32.nbytes(width))


def draft_graphs(
    part: ModelSpec, plan: Plan, release: Release, largest: Count, cluster: Cluster | None
) -> list[Item]:
    """Graphs of who drafts (v0.33.0 target_dependent_ar/speculator.py:107), which not every draft records."""
    draft = draft_of(part, plan)
    if draft is None or not plan.options.captures:
        return []
    size = Bytes(0, 0, recorded_bytes(draft.whole, draft.plan, release, largest, cluster).high)
    return [Item(Component.CUDA_GRAPHS, f"{PREFIX}captured", dict.fromkeys(RUNNING, size), AT_CAPTURE)]


@formula(cites=PAGED_SERVER_CODE, at="v0.33.0 config/vllm.py:626 num_lookahead_tokens")
def ahead_of(plan: Plan) -> Count:
    """Places that a sequence has ahead of its tokens."""
    return verified_tokens(plan) - 1


def speculative_facts(
    part: ModelSpec, plan: Plan, release: Release, logits_dtype: DType
) -> Mapping[str, Any]:
    """What drafting costs on a rank of the last stage."""
    draft, how = draft_of(part, plan), plan.speculative
    assert how is not None
    assert plan.cache.kv_dtype is not None
    per_token = bytes_per_token(draft.whole, plan.cache.kv_dtype) if draft else 0
    rows = minimum(
        given_or(plan.serving.max_batched_tokens, 1),
        given_or(plan.serving.max_sequences, 1) * verified_tokens(plan),
    )
    found = draft_facts(draft_items(part, plan, release), plan, per_token)
    return {**found, "verified_rows": rows, "logits_bytes": logits_dtype.nbytes(rows * part.head.width)}
