"""What vLLM alone refuses (vllm-project/vllm at the tag of the release)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.engines.vllm.blocks import check_blocks
from memsheet.engines.vllm.connectors import checked_connector
from memsheet.engines.vllm.facts import release_of
from memsheet.engines.vllm.options import VllmOptions
from memsheet.late import late_functions
from memsheet.plan.dtypes import FP8_E5M2, DType
from memsheet.plan.engine import EngineRules
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.hardware import version_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Mesh, Precision
from memsheet.plan.sequence_length import asked_length, derived_max_length

with late_functions(__name__):
    from memsheet.engines.vllm.adapter_room import vllm_adapters
    from memsheet.engines.vllm.context_ranks import check_dcp


GROUPS_SINCE = (0, 8)
"""``--data-parallel-size`` (v0.8.5 engine/arg_utils.py:161; v0.7.3 has none)."""


UNPLANNED, UNPLANNED_SINCE = frozenset({"gpt_bigcode"}), (0, 33)
"""Families without a plan of how to cut them, which the library's modules then repeat on every rank but for
what is fused, and since when they are served so (v0.33.0 model_executor/models/transformers/base.py:493,
registry.py:753).
"""


def _check_mesh(gaps: RequestResolver, mesh: Mesh, model: ModelSpec | None) -> None:
    version = version_of(gaps.request.get("engine_version"))[:2]
    if (
        model is not None
        and model.model_type in UNPLANNED
        and version >= UNPLANNED_SINCE
        and int(mesh.tp) > 1
    ):
        reason = f"repeats most of {model.model_type} on every rank of that release of vllm: not modelled"
        gaps.wrong("mesh.tp", int(mesh.tp), reason, "--tp 1, or --engine-version 0.27")
    if gaps.request.get("serving.dcp"):
        check_dcp(gaps, mesh, model, version_of(gaps.request.get("engine_version")))
    groups = int(mesh.attn_dp)
    sends = gaps.request.get("serving.dispatch") == "deepep" and not gaps.is_wrong("serving.dispatch")
    if sends and groups == 1:
        gaps.wrong(
            "serving.dispatch",
            "deepep",
            "is left unused by vllm where there is no data parallelism",
            "--attn-dp with it",
        )
    whole = int(mesh.tp) % groups == 0
    if groups > 1 and whole and version < GROUPS_SINCE:
        gaps.wrong(
            "mesh.attn_dp", groups, "does not exist in that release of vllm", "0.8 or newer", refused=True
        )


def _check_cache(gaps: RequestResolver, found: DType, _: Precision, model: ModelSpec | None) -> None:
    stored = model.quantization.method if model is not None and model.quantization is not None else ""
    if found is FP8_E5M2 and "fp8" in (stored, gaps.request.get("quantization.weights")):
        gaps.wrong(
            "serving.kv_dtype",
            gaps.request.get("serving.kv_dtype"),
            "is refused by vllm beside weights in fp8 (model_executor/layers/attention/attention.py)",
            "--kv-dtype fp8",
            refused=True,
        )


GIVEN_POOL_SINCE = (0, 10, 2)
"""``--kv-cache-memory-bytes`` (v0.10.2 config/cache.py; v0.10.1 has none)."""


def _own_options(gaps: RequestResolver) -> VllmOptions:
    given = gaps.get("serving.kv_cache_bytes", 0, silent=True)
    if given and version_of(gaps.request.get("engine_version")) < GIVEN_POOL_SINCE:
        reason = "does not exist in that release of vllm"
        gaps.wrong(
            "serving.kv_cache_bytes", given, reason, "0.10.2 or newer, or --memory-fraction", refused=True
        )
    if (backend := gaps.request.get("serving.attention_kernels")) == "trtllm":
        reason = "is no backend of attention that vllm names"
        gaps.wrong("serving.attention_kernels", backend, reason, "--attention-kernels flashinfer")
    return VllmOptions(
        host_weights_gib=gaps.get("serving.host_weights_gib", 0, silent=True),
        dcp=gaps.get("serving.dcp", 1, silent=True),
        host_kv_gib=gaps.get("serving.host_kv_gib", 0, silent=True),
        kv_connector=checked_connector(gaps),
        swa_full=gaps.get("serving.swa_full", False, silent=True),
        kv_cache_bytes=given,
        kv_blocks=gaps.get("serving.kv_blocks", 0, silent=True),
        graph_sequences=gaps.request.get("serving.graph_sequences"),
        attention_kernels=gaps.request.get("serving.attention_kernels"),
    )


SEQUENCES, BATCH = "serving.max_sequences", "serving.max_batched_tokens"
WITHIN_BATCH_SINCE, WITHIN_LENGTHS_SINCE = (0, 10), (0, 12)
"""Since when sequences that nobody says are no more than a batch's tokens (v0.10.2 engine/arg_utils.py:1742;
v0.9.2 has none of it), and a batch that nobody says no more than the tokens of all of them (v0.12.0 :2004,
v0.33.0 :3220; v0.11.0 :1669 takes its default).
"""
WHOLE_TEXTS_SINCE = (0, 10)
"""Since when a text that is read whole sets the batch: v0.10.2 engine/arg_utils.py:1733 and v0.11.0 :1668 to
its length, v0.12.0 :1996 to no less (V0 before them took ``POOLED_TOKENS``).
"""


WHOLE_ITEM_SINCE, WHOLE_ITEM = (0, 24), 32 * (70 + 2 + 6)
"""Since when a batch that nobody says holds the longest item of models that read items both ways, and its
tokens: thirty-two frames of a video (v0.24.0 engine/arg_utils.py, _get_min_mm_batched_tokens, which v0.20.2
has not; v0.33.0 :3119, model_executor/models/gemma4_mm.py:272, gemma4_unified.py:168).
"""


def _reads_items_whole(model: ModelSpec | None) -> bool:
    """Whether a model's pictures attend both ways: Gemma 4's that do not hear, and those without a tower
    (use_bidirectional_attention of their configurations).
    """
    if model is None:
        return False
    sees = bool(model.towers) and not any("audio" in tower.path for tower in model.towers)
    return model.model_type == "gemma4_unified" or (model.model_type == "gemma4" and sees)


def _batch_bounds(
    gaps: RequestResolver, model: ModelSpec | None, usual: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Sequences and a batch's tokens where nobody says them, bounded by each other and the sequence's
    length.
    """
    since = release_of(gaps.request.get("engine_version")).since
    length = asked_length(gaps.request) or derived_max_length(model)
    given = gaps.request.get("serving.batch") or gaps.request.get("microbatch")
    sequences = gaps.request.get(SEQUENCES) or given or usual[SEQUENCES]
    batch = gaps.request.get(BATCH)
    if batch is None:
        batch = usual[BATCH]
        if length and since >= WHOLE_TEXTS_SINCE and _reads_whole_texts(model):
            batch = max(length, batch) if since >= WITHIN_LENGTHS_SINCE else length
        if since >= WHOLE_ITEM_SINCE and _reads_items_whole(model):
            batch = max(batch, WHOLE_ITEM)
        if length and since >= WITHIN_LENGTHS_SINCE:
            batch = min(batch, sequences * length)
    most = min(usual[SEQUENCES], batch) if since >= WITHIN_BATCH_SINCE else usual[SEQUENCES]
    return {**usual, SEQUENCES: most, BATCH: batch}


def _reads_whole_texts(model: ModelSpec | None) -> bool:
    """Whether a model's prompts are not cut: those of encoders (v0.33.0 config/model.py:2193
    is_chunked_prefill_supported).
    """
    return model is not None and any(stack.role == "encoder" for stack in model.stacks)


RULES = EngineRules(
    own_options=_own_options,
    usual_options=_batch_bounds,
    check_pages=check_blocks,
    check_mesh=_check_mesh,
    check_cache=_check_cache,
    served_adapters=vllm_adapters,
)
