"""Blocks of vLLM's cache: tokens of each that its releases and the kernels of attention take."""

from __future__ import annotations

from memsheet.plan.gaps import RequestResolver
from memsheet.plan.hardware import version_of
from memsheet.plan.model import Attention, LatentAttention, ModelSpec

KERNEL = 16
"""Every kernel over keys and values reads blocks of a multiple of it: FlashAttention (v0.6.4.post1
attention/backends/flash_attn.py:65, v0.11.0 v1/attention/backends/flash_attn.py:85, v0.33.0 :366), Triton
(v0.14.0 triton_attn.py:268), FlashInfer (v0.12.0 flashinfer.py:289).
"""
LISTED = (((0, 12, 0), (1, 8, 16, 32, 64, 128)), ((0, 18, 0), (1, 8, 16, 32, 64, 128, 256)))
"""Sizes that ``--block-size`` took before a release, whatever the kernels (v0.11.0 config/cache.py:24,
v0.16.0 :22; v0.18.0 lists none).
"""


def check_blocks(gaps: RequestResolver, tokens: int, model: ModelSpec | None) -> None:
    """Blocks that vLLM refuses at its start."""
    version, given = version_of(gaps.request.get("engine_version")), gaps.request.get("serving.page_tokens")
    listed = next((sizes for before, sizes in LISTED if version < before), None)
    mixers = {type(m) for m in model.mixers()} if model else set()
    if given is None:
        return
    if Attention in mixers and tokens % KERNEL:
        more = -(-tokens // KERNEL) * KERNEL
        reason = f"is no multiple of {KERNEL} tokens, which vllm's kernels of attention read at once"
        hint = f"--page-tokens {_next_block_size(more, listed)}"
        gaps.wrong("serving.page_tokens", tokens, reason, hint, refused=True)
    elif listed is not None and tokens not in listed and (Attention in mixers or LatentAttention in mixers):
        gaps.wrong(
            "serving.page_tokens",
            tokens,
            "is no block size of that release of vllm",
            f"one of {', '.join(map(str, listed))}",
            refused=True,
        )


def _next_block_size(least: int, listed: tuple[int, ...] | None) -> int:
    return next((size for size in listed if size >= least), listed[-1]) if listed else least
