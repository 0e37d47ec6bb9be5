"""Buffers of the attention backends that vLLM's releases take by themselves."""

from __future__ import annotations

from functools import reduce

from memsheet.arith import Count, ceil_div, given_or, maximum, minimum
from memsheet.engines.vllm.options import vllm_options
from memsheet.engines.vllm.profiled import unpacked_tokens
from memsheet.engines.vllm.releases import Release
from memsheet.formulas.serving.drafts import verified_tokens
from memsheet.formulas.serving.graphs import graph_sizes
from memsheet.formulas.serving.kv_cache import caching_layers
from memsheet.late import late_functions
from memsheet.plan.device import Device
from memsheet.plan.dtypes import BF16, FP32
from memsheet.plan.model import Attention, LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import NOTHING, Bytes, Component, FromCode, Instant, Item
from memsheet.units import MIB

with late_functions(__name__):
    from memsheet.engines.vllm.decode_context import gathered_bytes


RUNNING = (Instant.PREFILL, Instant.DECODE)
ATTENTION, FLASHINFER_BYTES, ELEMENT_BYTES = "attention", 394 * MIB, 16
"""What FlashInfer's backend works in at the least (VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE, v0.21.0 envs.py),
which cards and models choose by themselves, and for each element of a batch's queries (v0.33.0
v1/attention/backends/flashinfer.py:104, 1268).
"""
GROWN_SINCE, GROWN_READ = (0, 22), (0, 33)
"""Releases that may size it by a batch, after the last that was read without, and that do."""
WRAPPER_BYTES, EAGER_WRAPPERS = 8 * MIB, 2
"""Integers that each of FlashInfer's wrappers has of its own (flashinfer v0.6.2 decode.py:739), of which one
reads prompts, one decodes, and each recorded size of decoding has one (v0.33.0 flashinfer.py:1453).
"""
SEGMENTS, MOST_SEGMENTS, LAUNCHES = 16, 64, 128
"""Parts of a sequence in Triton's decoding, on consumer Blackwell as many as that, and the sequences that a
launch has at least, over the key heads (v0.33.0 v1/attention/backends/triton_attn.py:58, 136, 182).
"""


def attention_item(
    part: ModelSpec, plan: Plan, release: Release, device: Device | None, largest: Count
) -> Item:
    """Buffers of attention backends that are made with the pool: of the one that is said, else of those that
    a card and a model may take by themselves. ``largest``: tokens of the largest CUDA graph.
    """
    latent = latent_workspace_bytes(part, plan)
    match vllm_options(plan).attention_kernels:
        case "flashinfer":
            beside = flashinfer_bytes(part, plan, release, largest)
        case "triton":
            beside = Bytes(0, *(triton_bytes(part, plan, parts) for parts in (SEGMENTS, MOST_SEGMENTS)))
        case None if not always_takes_flash_attention(part, plan, device):
            beside = Bytes(0, 0, flashinfer_workspace_bytes(part, plan, release).high)
        case _:
            beside = NOTHING
    source = FromCode("vllm-project/vllm", "v0.11.0", "vllm/v1/attention/backends/mla/common.py", 518)
    size = Bytes.exact(latent) + beside
    if vllm_options(plan).dcp > 1:
        size = size + gathered_bytes(part, plan)
    return Item(Component.WORKSPACES, ATTENTION, dict.fromkeys(RUNNING, size), source)


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 v1/attention/backends/flashinfer.py:1268: by a batch's queries, at least a fixed size",
)
def flashinfer_workspace_bytes(part: ModelSpec, plan: Plan, release: Release) -> Bytes:
    """Bytes of FlashInfer's workspace on a rank: fixed in older releases, either in some unread ones."""
    widths = [
        ceil_div(mixer.heads, plan.mesh.tp) * mixer.head_dim
        for mixer in part.mixers()
        if isinstance(mixer, Attention)
    ]
    rows = given_or(plan.serving.max_batched_tokens, 0)
    grown = maximum(FLASHINFER_BYTES, ELEMENT_BYTES * rows * reduce(maximum, widths, 0))
    if release.since < GROWN_SINCE:
        return Bytes.exact(FLASHINFER_BYTES)
    read = grown if release.since >= GROWN_READ else FLASHINFER_BYTES
    return Bytes(FLASHINFER_BYTES, read, grown)


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 v1/attention/backends/flashinfer.py:1255, 1453: a wrapper for each recorded size of decoding",
)
def flashinfer_bytes(part: ModelSpec, plan: Plan, release: Release, largest: Count) -> Bytes:
    """Bytes of FlashInfer's workspace with its wrappers: those that decode may have other kernels, with
    none.
    """
    recorded = graph_sizes(largest, coarse=False) if plan.options.captures else 0
    few, most = (WRAPPER_BYTES * (EAGER_WRAPPERS + count) for count in (0, recorded))
    return flashinfer_workspace_bytes(part, plan, release) + Bytes(0, few, most)


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 v1/attention/backends/triton_attn.py:191: results, greatest scores and sums of every part",
    counts="int",
)
def triton_bytes(part: ModelSpec, plan: Plan, parts: int) -> Count:
    """Bytes of the results in fp32 of so many parts of each sequence that decodes, on a rank."""
    sizes = [
        minimum(
            ceil_div(LAUNCHES, ceil_div(mixer.kv_heads, plan.mesh.tp)),
            given_or(plan.serving.max_sequences, 1),
        )
        * verified_tokens(plan)
        * ceil_div(mixer.heads, plan.mesh.tp)
        * (2 ** (mixer.head_dim - 1).bit_length() + 2)
        for mixer in part.mixers()
        if isinstance(mixer, Attention)
    ]
    return FP32.nbytes(parts * reduce(maximum, sizes, 0))


LARGEST_HEAD, FLASH_UNITS = 256, ("8.", "9.", "12.")


def always_takes_flash_attention(part: ModelSpec, plan: Plan, device: Device | None) -> bool:
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
        "unpacked at once; :512, v0.33.0 model_executor/layers/attention/mla_attention.py:2473: and a "
        "rank's own part beside them where ranks share a sequence"
    ),
)
def latent_workspace_bytes(part: ModelSpec, plan: Plan) -> Count:
    """Bytes that latent attention gathers its cache into."""
    sizes = [
        mixer.kv_lora_rank + mixer.qk_rope_head_dim
        for _, mixer, _ in caching_layers(part)
        if isinstance(mixer, LatentAttention)
    ]
    tokens, ranks = unpacked_tokens(plan), vllm_options(plan).dcp
    room = tokens if ranks == 1 else tokens + tokens // ranks
    return plan.precision.compute.nbytes(room * reduce(maximum, sizes)) if sizes else 0
