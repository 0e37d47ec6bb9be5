"""What servers keep of a token in layers of latent attention whose indexer picks the tokens that are attended
to (DeepSeek-V3.2): the latent, and the indexer's key in fp8 with scales of its own.
"""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.formulas.serving.kv_cache import (
    caching_layers,
    kv_elements_per_token,
    latent_elements_per_token,
)
from memsheet.plan.dtypes import BF16, FP32, DType
from memsheet.plan.model import LatentAttention, Mixer, ModelSpec
from memsheet.references import PAGED_SERVER_CODE, formula

EIGHT_BITS, SCALED_TOGETHER = 8, 128
"""Width of the cache that has a layout of its own, and elements that share a scale."""


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v1/kv_cache_interface.py MLAAttentionSpec: 656 bytes of fp8_ds_mla, an fp8 latent with an fp32 "
        "scale for 128 elements beside a rotary key of 16 bits; SGLang the same (mem_cache/memory_pool.py, "
        "NSATokenToKVPool)"
    ),
)
def latent_token_bytes(mixer: LatentAttention, dtype: DType) -> Count:
    """Bytes of one token's latent in a layer; sparse attention lays eight bits out in its own way."""
    if mixer.index_dim and dtype.bits == EIGHT_BITS:
        return _scaled_bytes(mixer.kv_lora_rank) + BF16.nbytes(mixer.qk_rope_head_dim)
    return dtype.nbytes(latent_elements_per_token(mixer))


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "model_executor/models/deepseek_v2.py Indexer.k_cache: one fp8 vector with an fp32 scale for 128 "
        "elements whatever the cache's dtype; SGLang the same (mem_cache/memory_pool.py, "
        "index_k_with_scale_buffer)"
    ),
)
def index_token_bytes(mixer: Mixer) -> Count:
    """Bytes of one token's key of a layer's indexer; nothing where there is none."""
    return _scaled_bytes(mixer.index_dim) if isinstance(mixer, LatentAttention) else 0


def _scaled_bytes(elements: int) -> Count:
    return elements + FP32.nbytes(elements // SCALED_TOGETHER)


@formula(
    cites=PAGED_SERVER_CODE,
    at="v1/kv_cache_interface.py AttentionSpec, MLAAttentionSpec: keys and values of a rank, latents once",
)
def served_token_bytes(mixer: Mixer, dtype: DType, tp: Count = 1) -> Count:
    """Bytes that one more token adds to a layer's caches on one rank of a server, the indexer's left out."""
    if isinstance(mixer, LatentAttention):
        return latent_token_bytes(mixer, dtype)
    return dtype.nbytes(kv_elements_per_token(mixer, tp))


@formula(
    cites=PAGED_SERVER_CODE,
    at="v1/kv_cache_interface.py page_size_bytes over all layers, the indexer's among them",
)
def served_bytes_per_token(spec: ModelSpec, dtype: DType, tp: Count = 1) -> Count:
    """Bytes that one more token of one sequence adds on a rank of a server, while inside any window."""
    return sum(
        layers * (served_token_bytes(mixer, dtype, tp) + index_token_bytes(mixer))
        for _, mixer, layers in caching_layers(spec)
    )
