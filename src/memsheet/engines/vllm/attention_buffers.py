"""Buffers of the attention backends that vLLM's releases take by themselves."""

from __future__ import annotations

from functools import reduce

from memsheet.arith import Count, maximum
from memsheet.engines.vllm.profiled import unpacked_tokens
from memsheet.formulas.serving.kv_cache import caching_layers
from memsheet.plan.device import Device
from memsheet.plan.dtypes import BF16
from memsheet.plan.model import Attention, LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item
from memsheet.units import MIB

RUNNING = (Instant.PREFILL, Instant.DECODE)
ATTENTION, FLASHINFER_BYTES = "attention", 394 * MIB
"""What FlashInfer's backend works in (VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE, v0.21.0 envs.py), which cards
and models choose by themselves.
"""


def attention_item(part: ModelSpec, plan: Plan, device: Device | None) -> Item:
    """Buffers of attention backends that are made with the pool."""
    latent = latent_workspace_bytes(part, plan)
    most = latent + (0 if flash_attention_is_sure(part, plan, device) else FLASHINFER_BYTES)
    source = FromCode("vllm-project/vllm", "v0.11.0", "vllm/v1/attention/backends/mla/common.py", 518)
    return Item(Component.WORKSPACES, ATTENTION, dict.fromkeys(RUNNING, Bytes(latent, latent, most)), source)


LARGEST_HEAD, FLASH_UNITS = 256, ("8.", "9.", "12.")


def flash_attention_is_sure(part: ModelSpec, plan: Plan, device: Device | None) -> bool:
    """Whether no release takes FlashInfer by itself: FlashAttention comes first but on data-centre Blackwell,
    and refuses heads of some widths, other number formats, attention sinks outside Hopper, and pictures that
    are attended to from both sides (v0.11.0 platforms/cuda.py:330, v0.16.0 and v0.33.0
    _get_backend_priorities; v0.33.0 v1/attention/backends/flash_attn.py:290, 425, 442, 458).
    """
    mixers = [mixer for mixer in part.mixers() if isinstance(mixer, Attention | LatentAttention)]
    plain = [mixer for mixer in mixers if isinstance(mixer, Attention)]
    served = device is not None and (device.compute_capability or "").startswith(FLASH_UNITS)
    wide = any(mixer.head_dim > LARGEST_HEAD or mixer.head_dim % 8 or mixer.sinks for mixer in plain)
    kept = plan.cache.kv_dtype
    return (
        served
        and len(plain) == len(mixers)
        and not wide
        and not part.towers
        and plan.speculative is None
        and plan.precision.compute.bits == BF16.bits
        and kept is not None
        and kept.bits == BF16.bits
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/attention/backends/mla/common.py:518: the latents of the earlier chunks that are "
        "unpacked at once"
    ),
)
def latent_workspace_bytes(part: ModelSpec, plan: Plan) -> Count:
    """Bytes that latent attention gathers its cache into."""
    sizes = [
        mixer.kv_lora_rank + mixer.qk_rope_head_dim
        for _, mixer, _ in caching_layers(part)
        if isinstance(mixer, LatentAttention)
    ]
    return plan.precision.compute.nbytes(unpacked_tokens(plan) * reduce(maximum, sizes)) if sizes else 0
