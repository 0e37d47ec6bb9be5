"""Bytes of keys, values and recurrent states, layer kind by layer kind, as transformers' caches keep them."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.arith import Count, ceil_div, maximum, minimum
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.model import (
    Attention,
    CrossAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    ModelSpec,
    RecordedMixer,
    Recurrent,
    StateSpace,
)
from memsheet.references import DEEPSEEK_V2, TRANSFORMERS_CACHE, formula


@formula(
    cites=TRANSFORMERS_CACHE,
    at="DynamicLayer: keys and values of each key/value head; a rank of tp keeps at least one head",
)
def kv_elements_per_token(mixer: Mixer, tp: Count = 1) -> Count:
    """Elements that one more token adds to a layer's cache on one tensor-parallel rank, while inside any
    window.
    """
    match mixer:
        case Attention():
            return maximum(1, ceil_div(mixer.kv_heads, tp)) * mixer.kv_width + mixer.index_dim
        case LatentAttention():
            return latent_elements_per_token(mixer) + mixer.index_dim
        case RecordedMixer():
            return mixer.cache.token_elements
        case _:
            return 0


@formula(
    cites=DEEPSEEK_V2,
    at="section 2.1.2: one latent of rank kv_lora_rank and one rotary key, whole on every rank",
)
def latent_elements_per_token(mixer: LatentAttention) -> int:
    """Elements of one token's latent; neither doubled nor multiplied by heads."""
    return mixer.kv_lora_rank + mixer.qk_rope_head_dim


@formula(
    cites=TRANSFORMERS_CACHE,
    at=(
        "DynamicSlidingWindowLayer: after an update the storage holds window tokens; GPT-Neo's window_size "
        "is no key that DynamicCache knows"
    ),
)
def kept_tokens(mixer: Mixer, tokens: Count) -> Count:
    """Tokens of a sequence that a layer keeps while decoding: all, or as many as its window or chunk."""
    limit = (mixer.window or mixer.chunk) if isinstance(mixer, Attention) and not mixer.caches_all else None
    limit = mixer.cache.window if isinstance(mixer, RecordedMixer) else limit
    return tokens if limit is None else minimum(tokens, limit)


@formula(
    cites=TRANSFORMERS_CACHE,
    at=(
        "LinearAttentionLayer.update_recurrent_state: as the scan returns it, which sums in fp32 whatever "
        "it reads"
    ),
)
def recurrent_elements(mixer: Mixer) -> Count:
    """Elements of the recurrent state that a layer keeps for a sequence, in fp32."""
    if isinstance(mixer, RecordedMixer):
        return mixer.cache.state_elements
    return mixer.state_elements if isinstance(mixer, StateSpace | LinearAttention | Recurrent) else 0


@formula(
    cites=TRANSFORMERS_CACHE,
    at="convolution states of a layer, one set a sequence, and what cross-attention read",
)
def state_elements(mixer: Mixer, tp: Count = 1, memory_tokens: Count = 0) -> Count:
    """Elements that a layer keeps for a sequence whatever its length, as computed. ``memory_tokens``: what
    cross-attention reads.
    """
    match mixer:
        case StateSpace() | LinearAttention() | Recurrent():
            return mixer.conv_elements
        case RecordedMixer():
            return mixer.cache.computed_elements + mixer.cache.memory_elements * memory_tokens
        case CrossAttention():
            return 2 * maximum(1, ceil_div(mixer.kv_heads, tp)) * mixer.head_dim * memory_tokens
        case _:
            return 0


def caching_layers(spec: ModelSpec) -> Iterator[tuple[str, Mixer, int]]:
    """Every mixer that keeps something between tokens, with the number of layers that have it. Encoders of
    words and pictures keep nothing, nor do layers that read an earlier one's keys and values.
    """
    for stack in spec.stacks:
        if stack.role != "decoder":
            continue
        for run in stack.runs:
            for block in run.pattern:
                yield from (
                    (f"{stack.path}.*.{mixer.path}", mixer, run.count)
                    for mixer in block.mixers
                    if not (isinstance(mixer, Attention) and mixer.shares_kv)
                )


def cache_bytes(
    spec: ModelSpec,
    dtype: DType,
    tokens: Count,
    sequences: Count,
    *,
    states: DType | None = None,
    tp: Count = 1,
    memory_tokens: Count = 0,
    whole: bool = False,
) -> dict[str, Count]:
    """Bytes by layer path for ``sequences`` of ``tokens`` each. ``states``: the dtype of convolution states,
    which no cache quantizes. ``whole``: windowed layers still hold everything (right after prefill).
    """
    found: dict[str, Count] = {}
    for path, mixer, layers in caching_layers(spec):
        kept = tokens if whole else kept_tokens(mixer, tokens)
        state = dtype if isinstance(mixer, CrossAttention) else states or dtype
        whole_states = FP32.nbytes(recurrent_elements(mixer)) + state.nbytes(
            state_elements(mixer, tp, memory_tokens)
        )
        a_sequence = dtype.nbytes(kv_elements_per_token(mixer, tp) * kept) + whole_states
        size = layers * sequences * a_sequence
        found[path] = found[path] + size if path in found else size
    return {path: size for path, size in found.items() if type(size) is not int or size}


def bytes_per_token(spec: ModelSpec, dtype: DType, tp: Count = 1) -> Count:
    """Bytes that one more token of one sequence adds on a rank, while inside any window."""
    return sum(
        layers * dtype.nbytes(kv_elements_per_token(mixer, tp)) for _, mixer, layers in caching_layers(spec)
    )
