"""The memory that vLLM's profiling run peaks at: one batch of as many tokens as may be batched, then the
sampler for all sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from memsheet.arith import Count, ceil_div, given_or, maximum, minimum
from memsheet.engines.vllm.releases import Release
from memsheet.engines.vllm.sampling import sampler_bytes
from memsheet.formulas.serving.sampling import masked_sampler_bytes
from memsheet.formulas.serving.widest_layer import beside_residual, layer_bytes
from memsheet.frozen import dataclass
from memsheet.late import late_functions
from memsheet.plan.model import LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import NOTHING, Bytes, Cited, Component, Instant, Item
from memsheet.units import MIB

with late_functions(__name__):
    from memsheet.engines.vllm.pictures import kept_pictures, tower_run_bytes, without_known_towers


AT_PROFILE = Cited(PAGED_SERVER_CODE, "v1/worker/gpu_model_runner.py profile_run")
CONTEXT_TOKENS = 64 * 1024
"""Tokens of earlier chunks that latent attention unpacks at once, at most (v0.11.0
v1/attention/backends/mla/common.py:458).
"""
UNSPLIT = 8 * MIB
"""Of the eight large tensors at the sampler's peak: a block is not split where less than 1 MiB would be left,
and counts whole (kSmallSize, pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp should_split).
"""


POOLED_TOKENS = 32768
"""Tokens of a batch that releases take for encoders where nobody says another number, at most (v0.11.0
vllm/utils/__init__.py, POOLING_MODEL_MAX_NUM_BATCHED_TOKENS).
"""


def makes_tokens(part: ModelSpec) -> bool:
    """Whether a model writes one token after another; an encoder hands back vectors or scores of whole texts,
    with neither a cache nor a sampler (v0.11.0 v1/kv_cache_interface.py, EncoderOnlyAttentionSpec).
    """
    return any(stack.role == "decoder" for stack in part.stacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """``pictures``: what is kept of them under all that follows; ``resting``: hidden states that the sampler
    stands on; ``sampler`` and ``layer``: what is highest above them, in turn.
    """

    pictures: Bytes
    resting: Bytes
    sampler: Bytes
    layer: Bytes

    @property
    def total(self) -> Bytes:
        """The higher of the two, each with what it stands on: no hidden states are left beside a layer."""
        drawn = self.resting + self.sampler
        return self.pictures + Bytes.max(self.layer, drawn)


def profile_run_peak(part: ModelSpec, plan: Plan, release: Release, tokens: Count) -> Peak:
    """The peak of a run of ``tokens`` on a rank of a stage. Stages before the last have no sampler."""
    assert plan.serving.max_sequences is not None
    rows, dtype, pictures = (
        minimum(tokens, plan.serving.max_sequences),
        plan.precision.compute,
        kept_pictures(part, plan, release) if part.towers else NOTHING,
    )
    if part.head.kind == "none" or not makes_tokens(part):
        layer = profiled_layer_bytes(part, plan, tokens)
        if not makes_tokens(part):
            most = profiled_layer_bytes(part, plan, maximum(tokens, POOLED_TOKENS))
            layer = Bytes(layer.low, layer.value, most.high)
        return Peak(pictures=pictures, resting=Bytes.exact(0), sampler=Bytes.exact(0), layer=layer)
    chosen = sampler_bytes(release.sampler_of(part.model_type), rows, part.head.width, dtype)
    masked = masked_sampler_bytes(rows, part.head.width, dtype)  # FlashInfer's
    least = minimum(chosen, masked) if release.takes_flashinfer else chosen
    resting = sampler_hidden_state_bytes(part.hidden, plan, tokens, rows)
    drawn = Bytes(least, chosen, chosen + UNSPLIT)
    return Peak(
        pictures=pictures,
        resting=Bytes.exact(resting),
        sampler=drawn,
        layer=_pass_bytes(part, plan, release, tokens),
    )


def _pass_bytes(part: ModelSpec, plan: Plan, release: Release, tokens: Count) -> Bytes:
    """What the widest operation makes, of a layer or of a tower."""
    if not part.towers:
        return profiled_layer_bytes(part, plan, tokens)
    return Bytes.max(
        profiled_layer_bytes(without_known_towers(part, plan, release), plan, tokens),
        tower_run_bytes(part, plan, release),
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/worker/gpu_model_runner.py:3391, 3190: hidden states of all tokens, of the last ones, "
        "and random ones"
    ),
)
def sampler_hidden_state_bytes(hidden: int, plan: Plan, tokens: Count, rows: Count) -> Count:
    """Bytes of hidden states while the sampler runs."""
    return plan.precision.compute.nbytes((tokens + 2 * rows) * hidden)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/attention/backends/mla/common.py:446: eight full sequences or four pages of each, at "
        "most 64k"
    ),
)
def unpacked_tokens(plan: Plan) -> Count:
    """Tokens of earlier chunks that latent attention unpacks at once."""
    assert plan.serving.max_sequences is not None
    assert plan.cache.page_tokens is not None
    pages = plan.serving.max_sequences * plan.cache.page_tokens
    return maximum(
        minimum(CONTEXT_TOKENS, maximum(8 * given_or(plan.serving.max_model_len, 0), 4 * pages)), pages
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.11.0 mla/common.py:1652: the profiling run takes what unpacking earlier chunks takes",
)
def unpacked_bytes(mixer: LatentAttention, plan: Plan) -> Count:
    """Keys and values of all of a rank's heads over the earlier chunks that are unpacked at once."""
    heads = ceil_div(mixer.heads, plan.mesh.tp)
    return plan.precision.compute.nbytes(
        unpacked_tokens(plan) * heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.11.0 gpu_model_runner.py:3325: one layer after another; mla/common.py:1652: or what it unpacks",
)
def profiled_layer_bytes(part: ModelSpec, plan: Plan, tokens: Count) -> Bytes:
    """The widest layer of the profiling run: latent attention unpacks earlier chunks too."""
    unpacked = (
        beside_residual(unpacked_bytes(mixer, plan), block, plan, tokens)
        for block in dict.fromkeys(part.blocks())
        for mixer in block.mixers
        if isinstance(mixer, LatentAttention)
    )
    return reduce(Bytes.max, unpacked, layer_bytes(part, plan, tokens))


def profile_peak_items(peaks: Mapping[Instant, Peak]) -> list[Item]:
    """The peak as items: what is kept of pictures, hidden states that rest, and what is highest above
    them.
    """
    above = {when: _transient_peak_bytes(peak) for when, peak in peaks.items()}
    rows = (
        ("pictures", {when: peak.pictures for when, peak in peaks.items()}),
        ("hidden_states", {when: peak.resting for when, peak in peaks.items()}),
        (_peak_item_path(peaks), above),
    )
    return [
        Item(Component.TEMPORARIES, path, at, AT_PROFILE)
        for path, at in rows
        if any(size.high for size in at.values())
    ]


def _transient_peak_bytes(peak: Peak) -> Bytes:
    """What the peak holds besides pictures and the resting hidden states."""
    whole, rest = peak.total, peak.pictures + peak.resting
    return Bytes(whole.low - rest.low, whole.value - rest.value, whole.high - rest.high)


def _peak_item_path(peaks: Mapping[Instant, Peak]) -> str:
    peak = peaks[Instant.PREFILL]
    return "sampler" if peak.layer.value <= (peak.resting + peak.sampler).value else "widest_layer"
