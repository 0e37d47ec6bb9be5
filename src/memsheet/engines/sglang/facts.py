"""SGLang: what each release that was read keeps free, captures and takes when nobody says (sgl-project/sglang
at the tag of the release).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memsheet.engines.sglang.drafting import DRAFTING, kept_of
from memsheet.engines.sglang.format_needs import FORMAT_NEEDS
from memsheet.engines.sglang.library_code import LIBRARY_CODE
from memsheet.engines.sglang.releases import Release, Reserve, Tier, version_of
from memsheet.engines.sglang.served_since import SERVED_SINCE
from memsheet.late import late_functions
from memsheet.plan.defaults import SERVED_ADAPTERS
from memsheet.plan.device import Device
from memsheet.plan.engine import server_engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import AttentionKind, Mesh, SpeculativeMethod
from memsheet.plan.server_limits import CardNeeds, ServerLimits
from memsheet.plan.serving_facts import EightBitDefault, HeededCache, LengthLimit, ServingFacts, Unserved
from memsheet.sheet import FromCode
from memsheet.units import MIB

with late_functions(__name__):
    from memsheet.engines.sglang.chunk_graphs import records_chunks


EVERY = 2**40


def _memory_tiers(*rows: tuple[float, ...]) -> tuple[Tier, ...]:
    """Rows of (below MiB, chunk tokens, graph sequences, shared, kept MiB, MiB a rank)."""
    names = ("below_mib", "chunk_tokens", "graph_sequences", "shared_graph_sequences", "kept_mib", "rank_mib")
    return tuple(Tier(**dict(zip(names, row, strict=False))) for row in rows)  # type: ignore[arg-type]


EARLY = _memory_tiers((25_000, 2048, 8, 80), (EVERY, 8192, 160, 160))
MIDDLE = _memory_tiers(
    (35 * 1024, 2048, 8, 80, 2.8 * 1024, 102.4), (90 * 1024, 8192, 160, 160, 9.5 * 1024, 512), (160 * 1024, 8192, 256, 256, 12 * 1024, 512),
    (EVERY, 16384, 512, 512, 32 * 1024, 0),
)  # fmt: skip
LATE = _memory_tiers(
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 2048, 24, 80),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
    (EVERY, 16384, 512, 512),
)
LATEST = _memory_tiers(
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
    (EVERY, 16384, 512, 512),
)
WINDOWED = frozenset({"gpt_oss", "llama4_text", "llama4"})
RELEASES = (
    Release(tag="v0.4.3.post4", since=(0, 0, 0), tiers=EARLY, reserve=Reserve.RANKS),
    Release(tag="v0.4.6.post1", since=(0, 4, 6), tiers=EARLY, reserve=Reserve.RANKS_OR_LARGE),
    Release(tag="v0.4.8.post1", since=(0, 4, 8), tiers=MIDDLE, reserve=Reserve.CARD),
    Release(tag="v0.5.4.post3", since=(0, 5, 4), tiers=LATE, reserve=Reserve.TOKENS),
    Release(tag="v0.5.8", since=(0, 5, 8), tiers=LATE, reserve=Reserve.TOKENS, windowed=WINDOWED),
    Release(tag="v0.5.12", since=(0, 5, 12), tiers=LATE, reserve=Reserve.TOKENS_AND_CHUNKS, windowed=WINDOWED | {"gemma4", "gemma4_text"}),
    Release(tag="v0.5.23", since=(0, 5, 20), tiers=LATEST, reserve=Reserve.TOKENS_AND_CHUNKS, windowed=WINDOWED | {"gemma4", "gemma4_text", "gemma4_unified_text", "mimo_v2_flash", "mimo_v2", "step3p5", "step3p7", "granite_swa", "laguna", "mellum", "muse_glimmer", "beam"}, prints_dtype=True),
)  # fmt: skip
"""v0.4.3.post4 server_args.py:204-232, v0.4.6.post1 :224-270, v0.4.8.post1 :274-340, v0.5.4.post3 :670-822,
v0.5.12 :1541-1588, v0.5.23 arg_groups/memory_hook.py:75-150, 281-342. Windows: v0.5.8
configs/model_config.py:316, v0.5.12 :492, v0.5.23 :88, 2655; before, only where asked.
"""
NEWEST = RELEASES[-1]

BY_RANKS = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
"""mem_fraction_static from so many tensor-parallel ranks on (v0.4.3.post4 server_args.py:205)."""
LARGE_RESERVE_MIB, LARGE_MIB = 13 * 1024, 81920
"""Kept free on cards above 80 GiB (v0.4.6.post1 server_args.py:238)."""
METADATA_MIB, TOKEN_MIB, RANKS_MIB, GRAPH_MIB, PREFILL_GRAPH_MIB, LATENT_GRAPH_MIB = (
    512,
    1.5,
    1024,
    2,
    8,
    1536,
)
FLOOR_MIB, FLOOR_ABOVE_MIB = 10 * 1024, 60 * 1024
"""What the fraction leaves: metadata, a chunk's activations, ranks over eight, a captured sequence, a
captured chunk (all of latent attention), and the least on large cards (v0.5.23
arg_groups/memory_hook.py:303-322, 360-400).
"""
WINDOW_SHARE = 0.8
"""Tokens of a window's layers for each of the others (swa_full_tokens_ratio, v0.5.23
arg_groups/fields/schedule.py:150).
"""
REQUESTS, MOST_REQUESTS = 2048, 4096
"""Requests that may run where nobody says: by the pool's tokens, between these (v0.5.23
mem_cache/kv_cache_configurator.py:3124).
"""
HALVED_SINCE, ASKED_SINCE = (0, 5, 12), (0, 5, 20)
"""From when on the table of requests has no more rows than half the tokens and, where a number is asked for,
no more than there would be without it; from when on half the tokens are the only limit of what is asked for
(v0.4.3.post4 model_executor/model_runner.py:658 and v0.5.9 model_runner_kv_cache_mixin.py:344 take it as it
is; v0.5.12 :817; v0.5.23 mem_cache/kv_cache_configurator.py:3120).
"""


ATTENTION_GROUPS = frozenset({
    "deepseek_v2", "deepseek_v3", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "gpt_oss", "glm4_moe", "llama4_text", "llama4",
})  # fmt: skip
"""Families whose attention is cut over the ranks of a group (parallel_group="attn_tp", v0.5.23
models/deepseek_v2.py:2089, qwen2_moe.py:940, qwen3.py:203, qwen3_moe.py:532, qwen3_next.py:264,
gpt_oss.py:421, glm4_moe.py:264, llama4.py:272); others cut it over all.
"""
GROUPS_SINCE, UNEQUAL_SINCE = (0, 4, 6), (0, 5, 20)
"""Groups of any number (v0.4.6.post1 server_args.py:296; before, as many as ranks), and from when on the
embedding is cut inside one (v0.5.23 layers/vocab_parallel_embedding.py:185; v0.4.6.post1
models/deepseek_v2.py:1377 keeps it whole).
"""
DEEPEP_MIB = 2 * 1024
"""Kept free for DeepEP's buffers, above the least (v0.5.23 arg_groups/memory_hook.py:317, 402)."""
STATELESS_SINCE = (0, 5, 20)
"""From when on models without attention are served, and snapshots of states kept where nobody says (v0.5.23
configs/model_config.py:156, arg_groups/overrides.py:477; v0.5.12 server_args.py:1187).
"""
GROUP_GRAPH_MIB, LARGE_GROUP_GRAPH_MIB, LARGE_GRAPH, GROUPS_MIB = 3, 1.5, 300, 4 * 1024
"""Kept free for data-parallel attention: for each captured sequence of each group, and more from so many on
(v0.5.4.post3 server_args.py:796, v0.5.23 arg_groups/memory_hook.py:376); before, a fixed size (v0.4.8.post1
server_args.py:311).
"""


def release_of(version: str | None) -> Release:
    """The release that stands for a version ("0.4.3.post4 (torch 2.5)"); the newest that was read where none
    is said.
    """
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version or "")
    if found is None:
        return NEWEST
    number = int(found[1]), int(found[2]), int(found[3])
    return [release for release in RELEASES if release.since <= number][-1]


def tier_of(release: Release, device: Device | None) -> Tier:
    """The tier of a card by its memory as nvidia-smi counts it; of an unknown one the second, as in the
    source.
    """
    if device is None:
        return release.tiers[min(1, len(release.tiers) - 1)]
    return next(tier for tier in release.tiers if _device_memory_mib(device) < tier.below_mib)


def _device_memory_mib(device: Device) -> int:
    return (device.driver_bytes or device.framework_bytes) // MIB


def graph_sequences(release: Release, device: Device | None, tp: int) -> int:
    """Sequences of the largest CUDA graph of decoding."""
    tier = tier_of(release, device)
    return tier.shared_graph_sequences if tp >= 4 else tier.graph_sequences


def sglang_defaults(
    request: Mapping[str, Any],
    device: Device | None,
    mesh: Mesh,
    *,
    latent: bool,
    sparse: bool = False,  # noqa: ARG001  (its pages do not depend on it)
    model: ModelSpec | None = None,
) -> Mapping[str, Any]:
    """What the server takes where nobody says."""
    version, method = request.get("engine_version"), request.get("speculative.method")
    release = release_of(version)
    tokens = request.get("serving.max_batched_tokens") or tier_of(release, device).chunk_tokens
    captured = request.get("serving.graph_sequences") or _usual_graph_sequences(
        request, release, device, mesh
    )
    sends = request.get("serving.dispatch") == "deepep"
    sent = DEEPEP_MIB if sends else 0
    captures = _captures(request)
    chunks = records_chunks(
        model, release, version,
        stages=int(mesh.pp), groups=int(mesh.attn_dp), sends=sends, adapters=bool(request.get("adapter.rank")),
        captures=captures, nvidia=device is None or device.vendor == "NVIDIA",
    )  # fmt: skip
    recorded = min(tokens, request.get("serving.pool_tokens") or tokens) if chunks else 0
    steps = 0 if version_of(version) >= UNCAPTURED_SINCE and not captures else captured
    return {
        "serving.max_sequences": kept_of(version).requests if method else MOST_REQUESTS * int(mesh.attn_dp), "serving.max_batched_tokens": tier_of(release, device).chunk_tokens, "serving.page_tokens": 1,
        "serving.memory_fraction": _static_memory_fraction(release, device, mesh, (tokens, steps, recorded), latent=latent, drafting_mib=reserved_mib(version, method) + sent),
    }  # fmt: skip


WITHIN_REQUESTS_SINCE, UNCAPTURED_SINCE = (0, 5, 22), (0, 5, 20)
"""Since when the largest graph has no more sequences than may run (v0.5.22 arg_groups/memory_hook.py:182,
v0.5.23 the same; v0.5.21 :180 has no such rule), and nothing is kept free for steps that are not recorded
(v0.5.21 arg_groups/memory_hook.py:352 reserve_for_graph_mb; v0.5.12 server_args.py:1548).
"""


def _usual_graph_sequences(
    request: Mapping[str, Any], release: Release, device: Device | None, mesh: Mesh
) -> int:
    """Sequences of the largest graph where nobody says, as the share of memory counts them."""
    usual = graph_sequences(release, device, int(mesh.tp))
    if version_of(request.get("engine_version")) < WITHIN_REQUESTS_SINCE:
        return usual
    return min(usual, int(request.get("serving.max_sequences") or usual))


def _captures(request: Mapping[str, Any]) -> bool:
    """Whether steps are recorded."""
    said = (request.get(key) for key in ("serving.cuda_graphs", "cuda_graphs"))
    return next((bool(value) for value in said if value is not None), True)


def reserved_mib(version: str | None, method: str | None) -> int:
    """MiB that are kept free for a draft model or head and its graphs; nothing for ngrams, which have
    neither.
    """
    if method is None or method == SpeculativeMethod.NGRAM.value:
        return 0
    kept = kept_of(version)
    return kept.model_mib if method == SpeculativeMethod.DRAFT.value else kept.headed_mib


def _static_memory_fraction(
    release: Release,
    device: Device | None,
    mesh: Mesh,
    batch: tuple[int, int, int],
    *,
    latent: bool,
    drafting_mib: int = 0,
) -> float:
    """mem_fraction_static: weights and pool as a share of what was free before loading. Of an unknown card by
    its ranks. ``batch``: tokens of a chunk, sequences of the largest graph of steps, tokens of that of
    chunks, 0 without.
    """
    tokens, captured, recorded = batch
    tp, ranks, tier = int(mesh.tp), int(mesh.tp) * mesh.pp, tier_of(release, device)
    by_ranks = next(share for least, share in BY_RANKS if tp >= least)
    if device is None:
        return by_ranks
    match release.reserve:
        case Reserve.RANKS:
            return by_ranks
        case Reserve.RANKS_OR_LARGE:
            return (
                round(1 - LARGE_RESERVE_MIB / _device_memory_mib(device), 3)
                if _device_memory_mib(device) > LARGE_MIB
                else by_ranks
            )
        case Reserve.CARD:
            kept = tier.kept_mib + tier.rank_mib * ranks + (GROUPS_MIB if mesh.attn_dp > 1 else 0)
        case Reserve.TOKENS | Reserve.TOKENS_AND_CHUNKS:
            kept = METADATA_MIB + TOKEN_MIB * max(tokens, 2048) + RANKS_MIB * ranks / 8 + GRAPH_MIB * captured
            kept += group_graphs_mib(captured, int(mesh.attn_dp))
            chunks = LATENT_GRAPH_MIB if latent else PREFILL_GRAPH_MIB * captured_chunks(recorded)
            kept += chunks if recorded else 0
            kept = max(kept, FLOOR_MIB) if _device_memory_mib(device) > FLOOR_ABOVE_MIB else kept
    return round(1 - (kept + drafting_mib) / _device_memory_mib(device), 3)


def group_graphs_mib(captured: int, groups: int) -> float:
    """What is kept free for graphs of data-parallel attention, besides what is for all graphs."""
    each = GROUP_GRAPH_MIB + (LARGE_GROUP_GRAPH_MIB if captured > LARGE_GRAPH else 0)
    return captured * groups * each if groups > 1 else 0.0


def captured_chunks(most: int) -> int:
    """How many sizes of a chunk are captured up to the largest (v0.5.23
    arg_groups/cuda_graph_hook.py:486).
    """
    steps = (
        (4, 33, 4),
        (48, 257, 16),
        (288, 513, 32),
        (576, 1025, 64),
        (1280, 4097, 256),
        (4608, most + 1, 512),
    )
    return sum(1 for first, end, step in steps for size in range(first, end, step) if size <= most)


HEEDED_CACHES = {
    "compressed-tensors": HeededCache(since=(0, 5, 20), fixed_scales=True),
    "modelopt": HeededCache(since=(0, 5, 4)),
}
"""v0.5.23 compressed_tensors.py:143, mem_cache/kv_cache_dtype.py:49 and v0.5.4.post3
model_executor/model_runner.py:1511.
"""
LENGTH_LIMIT = LengthLimit("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", (0, 5, 0))
"""v0.5.23 configs/model_config.py:1296; in its 0.4 releases the variable was on where nobody set it
(get_bool_env_var with default "True").
"""
UNSERVED = {"minimax": Unserved((0, 0, 0), "has a lightning attention that none of v0.5.23's models has")}
EIGHT_BITS = dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), EightBitDefault((10, 0), (10**6, 0), (0, 5, 23)))
"""v0.5.23 arg_groups/overrides.py:491 _dsa_kv_cache_dtype_default: sparse attention on cards of compute
capability 10.0 and above.
"""
SERVING = ServingFacts(
    # v0.5.23 srt/model_executor/model_runner_components/moe_ep_setup.py:154 moe_tp_size
    cuts_dealt_experts=True,
    library_code=LIBRARY_CODE,
    unserved=UNSERVED,
    served_since=SERVED_SINCE,
    heeded_caches=HEEDED_CACHES,
    eight_bits=EIGHT_BITS,
    length_limit=LENGTH_LIMIT,
    compiles=lambda _: False,  # ServerArgs.enable_torch_compile, false
    grouped_families=ATTENTION_GROUPS,
    adapts_whole_queries=False,
    pools_cache=True,
    # v0.5.23 arg_groups/parallel_hook.py:331, mem_cache/kv_cache_configurator.py:3128
    limits_all_groups=True,
    cuts_dense_over_groups=True,  # v0.5.23 models/deepseek_v2.py:2662
    joins_projections=True,
    stages_at_once=True,
    own_all_reduce=True,  # distributed/device_communicators/custom_all_reduce.py
    planned=True,
)

ENGINE = server_engine(
    name="sglang",
    tested="0.5.23",
    serving_axes=("dp_replicate", "tp", "pp", "ep", "attn_dp"),
    cache_dtypes=("bf16", "fp8", "fp8_e5m2"),  # v0.5.23 mem_cache/kv_cache_dtype.py:22; those with scales of their own are not modelled
    server="sglang",
    served=sglang_defaults,
    serving=SERVING,
    precisions=("fp32", "bf16-pure"),
    attention=(AttentionKind.FLASH, AttentionKind.SDPA),
    one_cache=True,  # a pool of tokens
    drafting=DRAFTING,
    version_form=r"^v?\d+\.\d+\.\d+",  # what ``release_of`` finds one by
    version_example="a release with three numbers, for example 0.5.12",
    limits=ServerLimits(
        # 00c614b model_executor/model_runner_components/load_model_utils.py:75-86,
        # maybe_downgrade_dtype_for_legacy_gpu, which refuses cards before Turing and logs what it casts
        card_needs=(CardNeeds(units=(7, 5)),),
        bf16_units=(8, 0),
        format_needs=FORMAT_NEEDS,
        casts_down=True,
        own_padding=True,  # layers/vocab_parallel_embedding.py, pad_vocab_size
        writes_scores=False,  # FlashInfer's or Triton's (_handle_attention_backend_compatibility)
        unpacks_eight_bits=True,
    ),
    models=frozenset({
        "compile", "cuda_graphs", "serving.cuda_graphs", "serving.memory_fraction", "serving.page_tokens", "serving.max_batched_tokens",
        "serving.shared_prefix_tokens", "serving.dp_lm_head", "serving.dp_dense", "serving.dispatch", "serving.graph_sequences", "serving.pool_tokens", "serving.attention_kernels", "serving.state_slots", "serving.state_ratio",
        "serving.host_kv_gib", "serving.host_kv_ratio",
        *SERVED_ADAPTERS,
    }),
    splits_experts_over_tp=True,
    experts_whole=True,
    evidence={"pool": FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/mem_cache/kv_cache_configurator.py", 2990)},
)  # fmt: skip
