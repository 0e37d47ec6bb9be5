"""The lines of its log that a start would print, with what they would say."""

from __future__ import annotations

from memsheet.engines.sglang.pool import pool_bytes
from memsheet.engines.sglang.releases import Release
from memsheet.engines.sglang.stage import Stage
from memsheet.plan.plan import Plan
from memsheet.sheet import Bytes
from memsheet.units import GIB


def _draft_lines(plan: Plan, stage: Stage, tokens: int, dtype: str) -> list[str]:
    """What the worker of who drafts prints of its pool."""
    size = pool_bytes(stage.draft, tokens, plan.cache.page_tokens or 1)
    return (
        [f"KV Cache is allocated.{dtype} #tokens: {tokens}, … {size / GIB:.2f} GB in all (the draft's)"]
        if size
        else []
    )


PRINTED_DTYPES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
"""What torch calls the formats of its pool on NVIDIA cards (v0.5.23 mem_cache/kv_cache_dtype.py:22)."""


def sglang_log_lines(plan: Plan, release: Release, stage: Stage, tokens: Bytes, requests: int) -> list[str]:
    """The lines the release prints (its GB are GiB)."""
    pool = pool_bytes(stage.cell, tokens.value, plan.cache.page_tokens or 1)
    dtype = (
        f" dtype: torch.{PRINTED_DTYPES[plan.cache.kv_dtype.name]},"
        if release.prints_dtype and plan.cache.kv_dtype
        else ""
    )
    latent = f"KV size: {pool / GIB:.2f} GB"
    halves = (
        latent
        if any(item.path == "absorbed" for item in stage.items)
        else f"K size: {pool / 2 / GIB:.2f} GB, V size: {pool / 2 / GIB:.2f} GB"
    )
    return [
        f"Load weight end. … mem usage={stage.weights.value / GIB:.2f} GB.",
        *(
            [f"Mamba Cache is allocated. max_mamba_cache_size: {stage.states.slots.value}, …"]
            if stage.states.bytes.high
            else []
        ),
        f"KV Cache is allocated.{dtype} #tokens: {tokens.value}, {halves}",
        *_draft_lines(plan, stage, tokens.value, dtype),
        (
            f"max_total_num_tokens={tokens.value}, chunked_prefill_size={plan.serving.max_batched_tokens}, "
            f"max_running_requests={requests}, context_len={plan.serving.max_model_len}"
        ),
    ]
