"""vLLM: what each release that was read counts, keeps and takes when nobody says (vllm-project/vllm at the
tag of the release).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memsheet.engines.vllm.drafting import DRAFTING
from memsheet.engines.vllm.format_needs import FORMAT_NEEDS
from memsheet.engines.vllm.library_code import LIBRARY_CODE
from memsheet.engines.vllm.releases import ProfiledPictures, Release, Sampler
from memsheet.engines.vllm.served_since import SERVED_SINCE
from memsheet.late import late_functions
from memsheet.plan.defaults import SERVED_ADAPTERS
from memsheet.plan.device import Device
from memsheet.plan.engine import server_engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import AttentionKind, Mesh
from memsheet.plan.server_limits import CardNeeds, ServerLimits
from memsheet.plan.serving_facts import EightBitDefault, HeededCache, LengthLimit, ServingFacts, Unserved
from memsheet.plan.speculative import version_of
from memsheet.sheet import FromCode
from memsheet.units import GIB

with late_functions(__name__):
    from memsheet.engines.vllm.old_cards import refuses_eight_bits


V0: dict[str, Any] = {
    "memory_fraction": 0.9, "sampler": Sampler.SORTED, "window_pages": False, "chunked": False, "sized_by_card": False, "lines": "v0",
    "shown": ProfiledPictures.NONE,
}  # fmt: skip
GROWTH: dict[str, Any] = {"memory_fraction": 0.9, "sampler": Sampler.SORTED, "counts_context": False}
GRAPHS: dict[str, Any] = {
    "memory_fraction": 0.92, "sampler": Sampler.MASKED, "counts_context": False, "counts_graphs": True, "state_pages": 2, "near_group": True,
}  # fmt: skip
COUNTING_24 = frozenset({"llama", "mistral", "qwen3", "qwen2_moe", "deepseek_v2", "granitemoe"})
COUNTING_27 = frozenset({"qwen2_moe", "deepseek_v2", "granitemoe"})
"""Families of the runner that counts, where it was not yet that of all (v0.24.0 config/vllm.py:68, v0.27.0
config/vllm.py:69).
"""

RELEASES = (
    Release(tag="v0.6.4.post1", since=(0, 0), **V0, counts_context=True, counts_gaps=True),
    Release(tag="v0.6.6", since=(0, 6, 5), **V0, counts_context=False, counts_gaps=True),
    Release(tag="v0.7.3", since=(0, 7), **V0, counts_context=False),
    Release(tag="v0.8.5", since=(0, 8), memory_fraction=0.9, sampler=Sampler.SORTED, counts_context=True, counts_gaps=True, takes_flashinfer=True, window_pages=False, shown=ProfiledPictures.MORE),
    Release(tag="v0.9.2", since=(0, 9), **GROWTH, takes_flashinfer=True, shown=ProfiledPictures.MORE),
    Release(tag="v0.10.2", since=(0, 10), **GROWTH, takes_flashinfer=True),
    Release(tag="v0.11.0", since=(0, 11), **GROWTH, takes_flashinfer=True, shown=ProfiledPictures.BATCH),
    Release(tag="v0.12.0", since=(0, 12), **GROWTH, shown=ProfiledPictures.PICTURE),
    Release(tag="v0.14.0", since=(0, 14), **GROWTH),
    Release(tag="v0.16.0", since=(0, 16), **GROWTH, state_pages=2),
    Release(tag="v0.18.0", since=(0, 18), **{**GRAPHS, "memory_fraction": 0.9, "counts_graphs": False}),
    Release(tag="v0.20.2", since=(0, 20), **GRAPHS, lines="by_length"),
    Release(tag="v0.24.0", since=(0, 24), **GRAPHS, lines="by_length", other=Sampler.COPIED, families=COUNTING_24),
    Release(tag="v0.27.0", since=(0, 27), counts_gaps=True, **GRAPHS, lines="by_length", other=Sampler.PLAIN, families=COUNTING_27, in_flight=2),
    Release(tag="v0.30.0", since=(0, 30), counts_gaps=True, **{**GRAPHS, "sampler": Sampler.PLAIN}, lines="joined", in_flight=2),
    Release(tag="v0.33.0", since=(0, 33), counts_gaps=True, **{**GRAPHS, "sampler": Sampler.COUNTED}, lines="joined", in_flight=2, checkpoints=1),
)  # fmt: skip
"""Memory that is used or its growth: v0.6.4.post1 worker/worker.py:174, v0.6.5 and v0.6.6 :198 (from when the
device was chosen on), v0.8.5 v1/worker/gpu_worker.py:186, v0.11.0 :240 and utils/__init__.py:2783. Gaps:
others' memory is what torch has not allocated, v0.6.6 utils.py:1819 and v0.8.5; what it has not reserved,
v0.7.3 utils.py:1937 and v0.26.0 utils/mem_utils.py:163; all that is no longer free, v0.27.0 and v0.33.0
utils/mem_utils.py:317. FlashInfer: v0.9.2 v1/sample/ops/topk_topp_sampler.py:37, v0.12.0 :36 and
v0.6.6 envs.py:280 if asked for. Fractions: v0.11.0 config/cache.py:43, v0.33.0 :215. Graphs:
VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS, on in v0.20.2 envs.py. Samplers: v0.11.0
v1/sample/ops/topk_topp_sampler.py:157, v0.18.0 :251 (triton, in place), v0.24.0
v1/worker/gpu/sample/sampler.py apply_sampling_params, v0.33.0 v1/worker/gpu/model_runner.py:993. Windows:
v0.8.5 v1/core/kv_cache_utils.py:657 makes them full attention, v0.9.2 groups them. Groups: v0.18.0
v1/core/kv_cache_utils.py. In flight: v0.27.0 v1/kv_cache_interface.py, async scheduling being on. States:
v0.16.0 the same file ("align"), v0.33.0 model_executor/layers/mamba/mamba_mixer2.py:1116. Shown:
profile_run of v1/worker/gpu_model_runner.py, v0.9.2:2202,
v0.10.2:2981, v0.11.0:3325, v0.12.0:4284, v0.14.0:4693.
"""
NEWEST = RELEASES[-1]
STANDING = {"V0": "v0.7.3", "V1": "v0.11.0"}
"""The release that stands for an engine whose release nobody says."""


def release_of(version: str | None) -> Release:
    """The release that stands for a version ("0.11.0", "v0.6.4.post1 (V0)"); the newest that was read where
    none is said.
    """
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    if found is None:
        tag = STANDING.get((version or "")[:2], NEWEST.tag)
        return next(release for release in RELEASES if release.tag == tag)
    number = int(found[1]), int(found[2]), int(found[3] or 0)
    return [release for release in RELEASES if release.since <= number][-1]


LARGE_CARD, LARGEST_CARD = 70 * GIB, 160 * GIB
BLOCK, LATENT_BLOCK, BLACKWELL_LATENT_BLOCK, PICKED_SINCE = 16, 64, 32, (0, 18)
"""CacheConfig.block_size where nobody says, and what FlashMLA makes of it (v0.11.0 platforms/cuda.py:127,
165); what FlashInfer's least is, and from when on the size is the backend's own: FlashAttention's on Hopper,
which takes 16 (v0.18.0 platforms/cuda.py:77, interface.py:427; v0.33.0
v1/attention/backends/mla/flashattn_mla.py:49, flashinfer_mla.py:204, flashmla_sparse.py:165).
"""
LONG = 32 * 1024
OFFLINE, OFFLINE_LARGE = 8192, 16384
"""max_num_batched_tokens of the class ``LLM`` (UsageContext.LLM_CLASS, v0.8.5 engine/arg_utils.py,
_set_default_args_v1, v0.33.0 get_batch_defaults).
"""
V0_CHUNK, V0_BATCH, V0_SEQUENCES = 512, 2048, 256
"""max_num_batched_tokens and max_num_seqs of V0 (v0.6.4.post1 engine/arg_utils.py:996, :123,
config.py:1110-1118).
"""
CHUNK_GROWN = (0, 6, 5)
"""From when on a chunk of a prompt has as many as a batch (v0.6.6 config.py:1438).
"""


def vllm_serve_defaults(
    request: Mapping[str, Any],
    device: Device | None,
    _: Mesh,
    *,
    latent: bool,
    sparse: bool = False,
    model: ModelSpec | None = None,  # noqa: ARG001  (``defaults`` bounds them by it)
) -> Mapping[str, Any]:
    """What ``vllm serve`` takes where nobody says (v0.11.0 engine/arg_utils.py:1606, v0.33.0 :2973: by the
    card's memory, A100 excepted).
    """
    release = release_of(request.get("engine_version"))
    length = request.get("serving.max_model_len") or request.get("seq_len") or 0
    return {
        "serving.max_sequences": _default_max_sequences(release, device), "serving.max_batched_tokens": _default_batched_tokens(release, device, length, offline=bool(request.get("serving.offline_inference"))),
        "serving.page_tokens": _latent_block(release, device, sparse=sparse) if latent else BLOCK, "serving.memory_fraction": release.memory_fraction,
    }  # fmt: skip


def _latent_block(release: Release, device: Device | None, *, sparse: bool) -> int:
    """Tokens of a block of latents: of FlashMLA's and of what picks some tokens, of FlashInfer's on
    Blackwell, else what anything has.
    """
    if sparse or release.since < PICKED_SINCE or (device is not None and device.vendor != "NVIDIA"):
        return LATENT_BLOCK
    blackwell = device is not None and (device.compute_capability or "").startswith("10.")
    return BLACKWELL_LATENT_BLOCK if blackwell else BLOCK


SPARK_UNITS, SPARK_SMALL_SINCE = "12.1", (0, 33)
"""GB10, and since when it has the defaults of small cards whatever its memory (v0.33.0
engine/arg_utils.py:2963; v0.32.0 :2933 has no such case).
"""


def _is_large_card(release: Release, device: Device | None) -> bool:
    """Device memory as the driver counts it, which is what a framework gets and a few MiB."""
    named_out = device is not None and (
        ("a100" in device.name.lower() and release.since > (0, 8))
        or (device.compute_capability == SPARK_UNITS and release.since >= SPARK_SMALL_SINCE)
    )
    return (
        release.sized_by_card
        and device is not None
        and device.framework_bytes >= LARGE_CARD
        and not named_out
    )


def _default_max_sequences(release: Release, device: Device | None) -> int:
    return 1024 if _is_large_card(release, device) else V0_SEQUENCES


def _default_batched_tokens(release: Release, device: Device | None, length: int, *, offline: bool) -> int:
    if not release.chunked:
        chunk = V0_CHUNK if release.since < CHUNK_GROWN else V0_BATCH
        return chunk if length > LONG else max(length, V0_BATCH)
    if offline:
        return OFFLINE_LARGE if _is_large_card(release, device) else OFFLINE
    if device is not None and release.since >= (0, 30) and device.framework_bytes >= LARGEST_CARD:
        return 16384
    return 8192 if _is_large_card(release, device) else 2048


def stage_layer_counts(layers: int, count: int, _: str | None) -> tuple[int, ...] | None:
    """Layers of each pipeline stage: what is left over goes to the stages before the last (v0.11.0
    distributed/utils.py:89).
    """
    even, left = divmod(layers, count)
    found = [even] * count
    for place in range(2, left + 2):
        found[-place] += 1
    return tuple(found) if even else None


OWN_OUTPUT = frozenset({"deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite"})
OUTPUT_SHARED_SINCE = (0, 16)
"""Families whose layers for further tokens each have an output, which takes the model's since then (v0.16.0
v1/spec_decode/eagle.py _maybe_share_lm_head; v0.11.0 models/deepseek_mtp.py:67 and
v1/spec_decode/eagle.py:883 keep it).
"""


def own_draft_outputs(version: str | None) -> frozenset[str]:
    """Families whose layers for further tokens keep an output of their own in a release."""
    return frozenset() if version_of(version) >= OUTPUT_SHARED_SINCE else OWN_OUTPUT


def compiles_by_itself(version: str | None) -> bool:
    """V1 does (CompilationConfig's level, whose default V1 sets), V0 does not."""
    return release_of(version).lines != "v0"


HEEDED_CACHES = {
    "compressed-tensors": HeededCache(since=(0, 15, 0), overrules=((0, 15, 0), (0, 22, 0))),
    "modelopt": HeededCache(since=(0, 14, 0)),
}
"""v0.15.0 attention/layer.py:199 (v0.14.0 does not; v0.33.0 model_executor/layers/attention/attention.py:287)
and v0.14.0 utils/torch_utils.py:238; whatever it is told: v0.16.0 attention.py:232, v0.21.0 :233, not
v0.33.0 :288.
"""
EIGHT_BITS = {"glm_moe_dsa": EightBitDefault((10, 0), (11, 0), (0, 33, 0))}
"""v0.33.0 model_executor/models/config.py:89 GlmMoeDsaForCausalLM; DeepSeek-V3.2's stays as it is computed
(:74).
"""
WENT_WITH_V0 = Unserved((0, 11, 0), "went with its first engine after v0.10.2", "--engine transformers")
UNSERVED = {
    **dict.fromkeys(
        ("bamba", "minimax", "baichuan", "internlm", "qwen", "xverse"),
        Unserved((0, 23, 1), "was taken out after v0.23.0", "--engine-version 0.23"),
    ),
    "aquila": Unserved((0, 24, 1), "was taken out after v0.24.0", "--engine-version 0.24"),
    **dict.fromkeys(
        ("mpt", "RefinedWeb", "RefinedWebModel", "stablelm_epoch"),
        Unserved((0, 28, 1), "was taken out after v0.28.0", "--engine-version 0.28"),
    ),
    **dict.fromkeys(("bart", "mbart", "mllama_cross"), WENT_WITH_V0),
    **dict.fromkeys(
        ("t5", "mt5"), Unserved((0, 0, 0), "no release of vllm has code for", "--engine transformers")
    ),
}
"""v0.33.0 model_executor/models/registry.py:842, where lightning attention's models are named as they
were; v0.23.0 registry.py:81-200 and v0.28.0 :177, which still have them; v0.11.0 registry.py,
_PREVIOUSLY_SUPPORTED_MODELS.
"""
POOLED = frozenset({"bert", "roberta", "modernbert"})
"""Encoders of v0.11.0 model_executor/models/registry.py, _EMBEDDING_MODELS and _CROSS_ENCODER_MODELS."""
EMBEDS_BOTH_WAYS = frozenset({"gemma3_text"})
"""Of decoders that are pooled, those whose layers then keep nothing (v0.33.0
model_executor/models/config.py:157, gemma3.py:168 EncoderOnlyAttention; v0.11.0 models/gemma3.py).
"""
TOWERS_LEFT_OUT_SINCE = (0, 20)
"""v0.20.2 model_executor/models/interfaces.py:285 _mark_tower_model, v0.33.0 :390; v0.14.0 has it not, and
older releases leave out some families' alone (v0.11.0 models/qwen3_vl.py:1129).
"""
PICTURES_ALONE = frozenset({
    "cohere2_vision", "gemma3", "gemma3n", "lfm2_vl", "llama4", "llava", "llava_next", "minicpmv4_6", "mistral3", "paddleocr_vl",
    "paligemma", "step3p7",
})  # fmt: skip
"""Types whose tower is marked as one of pictures (v0.33.0 model_executor/models/*.py, _mark_tower_model)."""
SERVING = ServingFacts(
    library_code=LIBRARY_CODE,
    heeded_caches=HEEDED_CACHES,
    eight_bits=EIGHT_BITS,
    length_limit=LengthLimit("VLLM_ALLOW_LONG_MAX_MODEL_LEN"),  # v0.33.0 config/model.py:2664
    compiles=compiles_by_itself,
    pools_cache=True,
    profiles_batch=True,
    checks_free_memory=True,  # v0.33.0 v1/worker/utils.py:761
    needs_longest=True,  # v0.11.0 v1/core/kv_cache_utils.py check_enough_kv_cache_memory
    # v0.33.0 layers/fused_moe/config.py:1106, 1207; without experts a server each, v1/engine/core.py:1552
    replicas_share_experts=True,
    unserved=UNSERVED,
    served_since=SERVED_SINCE,
    pooled=POOLED,
    pools_embedders=True,  # v0.33.0 config/model.py:1290 get_pooling_config
    embeds_both_ways=EMBEDS_BOTH_WAYS,
    leaves_towers_since=TOWERS_LEFT_OUT_SINCE,
    sees_pictures_alone=PICTURES_ALONE,
    own_draft_outputs=own_draft_outputs,
    joins_projections=True,  # v0.11.0 model_executor/models/llama.py
    stages_at_once=True,  # v0.11.0 v1/engine/core.py, step_with_batch_queue
    own_all_reduce=True,  # v0.11.0 device_communicators/custom_all_reduce.py
    planned=True,
    # 01f5395 layers/quantization/bitsandbytes.py:381 BitsAndBytesMoEMethod; bitsandbytes_loader.py
    # _dequantize_dq; in v0.10.0, not in v0.8.4
    few_bit_experts=(0, 10),
)

REFINED_FROM = (0, 31, 0)
"""The first release that is known to load experts cut inside a block of one scale (``cut_blocks``)."""


ENGINE = server_engine(
    name="vllm",
    tested="0.33.0",
    serving_axes=("dp_replicate", "tp", "pp", "ep", "attn_dp"),
    cache_dtypes=("fp16", "bf16", "fp8", "fp8_e5m2"),  # main at 002f10e0 config/cache.py:37 CacheDType; those with scales of their own are not modelled
    server="vllm",
    stages=stage_layer_counts,
    served=vllm_serve_defaults,
    serving=SERVING,
    precisions=("fp32", "bf16-pure"),
    attention=(AttentionKind.FLASH, AttentionKind.SDPA),
    one_cache=True,  # a pool of blocks
    drafting=DRAFTING,
    version_form=r"\d+\.\d+|^V[01]\b",  # what ``release_of`` finds one by
    version_example="a release, for example 0.11.0",
    limits=ServerLimits(
        # docs/getting_started/installation: 7.0 or higher (v0.3.3, v0.14.0), 7.5 or higher (v0.21.0). The
        # packages: 0.19.1 asks for torch 2.10.0, of CUDA 12.8; 0.20.0 for torch 2.11.0, of CUDA 13.0, whose
        # compiler begins at 7.5 (vllm-project/vllm pull 39878, CMakeLists.txt CUDA_SUPPORTED_ARCHS)
        card_needs=(CardNeeds(units=(7, 0), before=(0, 20, 0), release="0.14.0"), CardNeeds(units=(7, 5))),
        # v0.6.4.post1 worker/worker.py _check_if_gpu_supports_dtype, v0.33.0 platforms/cuda.py:638
        bf16_units=(8, 0),
        wants_share_free=True,  # v0.10.2 v1/worker/gpu_worker.py init_device
        format_needs=FORMAT_NEEDS,
        # _FLOAT16_NOT_SUPPORTED_MODELS: v0.9.2 config.py:3221, v0.33.0 config/model.py:2398
        overflowing=frozenset({"gemma2", "gemma3", "gemma3_text", "plamo2", "glm4"}),
        lowers_since=(0, 9, 0),  # _resolve_auto_dtype, v0.9.2 config.py:3284
        writes_scores=False,  # FlashInfer's or Triton's (platforms/cuda.py at 002db49, _get_backend_priorities)
        refuses_cache=refuses_eight_bits,
        derives_length=True,  # _get_and_verify_max_len
        own_padding=True,  # layers/vocab_parallel_embedding.py, pad_vocab_size
        unpacks_eight_bits=True,  # v0.33.0 v1/attention/backends/triton_attn.py:515
        loads_cut_experts=REFINED_FROM,
    ),
    models=frozenset({
        "compile", "cuda_graphs", "serving.cuda_graphs", "serving.memory_fraction", "serving.page_tokens", "serving.max_batched_tokens", "serving.dispatch",
        "serving.shared_prefix_tokens", "serving.offline_inference", "serving.host_weights_gib", "serving.dcp", "serving.host_kv_gib", "serving.kv_connector", "serving.swa_full", "serving.kv_cache_bytes", "serving.kv_blocks", "serving.graph_sequences", "serving.attention_kernels",
        "serving.fully_sharded_loras", *SERVED_ADAPTERS,
    }),
    splits_experts_over_tp=True,
    experts_whole=True,
    evidence={"weights": FromCode("vllm-project/vllm", "v0.11.0", "vllm/v1/worker/gpu_model_runner.py", 2652)},
)  # fmt: skip
