"""Whether SGLang records chunks of prompts as CUDA graphs by itself, and chunks of which sizes."""

from __future__ import annotations

from memsheet.engines.sglang.releases import Release, Reserve, version_of
from memsheet.engines.sglang.vision_share import BLIND, WITHOUT_TOWER
from memsheet.plan.model import LatentAttention, LinearAttention, ModelSpec
from memsheet.references import SGLANG, formula

BREAKABLE_SINCE = (0, 5, 20)
"""Since when a chunk is recorded in pieces without torch.compile, which more jobs allow (v0.5.23
arg_groups/cuda_graph_hook.py:169-278; v0.5.12 server_args.py:1301-1369).
"""
RECORDED_WITH_PICTURES = frozenset({
    "cohere2_vision", "paddleocr_vl", "qwen3_5", "qwen3_5_moe", "muse_glimmer", "kimi_k25", "minimax_m3_vl",
})  # fmt: skip
"""Types that see and whose chunks are recorded all the same (v0.5.21 and v0.5.23 configs/model_config.py,
multimodal_breakable_cuda_graph_supported_model_archs).
"""
NEVER_RECORDED = frozenset({"deepseek_v32", "qwen3_next", "glm_moe_dsa", "bailing_hybrid"})
"""Types that older releases leave out (v0.5.12 configs/model_config.py:1557
piecewise_cuda_graph_disabled_model_archs).
"""
LATENT_CHUNK, OLDER_LATENT_CHUNK, LATENT_CHUNK_SINCE = 8192, 2048, (0, 5, 23)
"""Tokens of the largest chunk that is recorded of latent attention (v0.5.23 arg_groups/memory_hook.py:238;
v0.5.22 :240, v0.5.21 :229 and v0.5.12 server_args.py:1521).
"""


def records_chunks(
    model: ModelSpec | None,
    release: Release,
    version: str | None,
    *,
    stages: int,
    groups: int = 1,
    sends: bool = False,
    adapters: bool = False,
    captures: bool = True,
    nvidia: bool = True,
) -> bool:
    """Whether chunks are recorded where nobody says. ``groups`` attend by themselves; ``sends``: DeepEP does;
    ``captures``: steps of decoding are recorded.
    """
    if release.reserve is not Reserve.TOKENS_AND_CHUNKS or stages > 1:
        return False
    kind = model.model_type if model is not None else ""
    if version_of(version) >= BREAKABLE_SINCE:
        return captures and not _has_key_delta(model) and (not _sees(model) or kind in RECORDED_WITH_PICTURES)
    alone = groups == 1 and not sends and not adapters and nvidia
    return alone and not _sees(model) and kind not in NEVER_RECORDED


def _sees(model: ModelSpec | None) -> bool:
    """Whether a model hears or sees, as the engine has it."""
    if model is None or model.model_type in BLIND:
        return False
    return bool(model.towers) or model.model_type in WITHOUT_TOWER


def _has_key_delta(model: ModelSpec | None) -> bool:
    mixers = model.mixers() if model is not None else ()
    return any(isinstance(mixer, LinearAttention) and mixer.kind == "kimi_delta" for mixer in mixers)


@formula(
    cites=SGLANG,
    at="v0.5.23 arg_groups/memory_hook.py:233-262, v0.5.12 server_args.py:1514-1534",
    counts="int",
)
def largest_chunk(model: ModelSpec | None, version: str | None, tokens: int, pool_tokens: int = 0) -> int:
    """Tokens of the largest chunk that is recorded: a whole one, no more than the pool is told to hold."""
    latent = model is not None and any(isinstance(mixer, LatentAttention) for mixer in model.mixers())
    newer = version_of(version) >= LATENT_CHUNK_SINCE
    most = min(tokens, LATENT_CHUNK if newer else OLDER_LATENT_CHUNK) if latent else tokens
    return min(most, pool_tokens) if pool_tokens else most
