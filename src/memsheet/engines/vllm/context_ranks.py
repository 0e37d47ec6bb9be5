"""Decode context parallelism: which ranks of tensor parallelism share out a sequence's tokens
(vllm-project/vllm v0.33.0, paths within vllm/).
"""

from __future__ import annotations

from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import Attention, LatentAttention, Mixer, ModelSpec
from memsheet.plan.plan import Mesh

KEY = "serving.dcp"
LATENT_SINCE, KEYS_SINCE = (0, 10, 2), (0, 12)
"""Since when latents are shared out (v0.10.2 config/parallel.py:173; v0.10.1 has no such field), and keys and
values of grouped heads (v0.12.0 config/model.py:1162; v0.11.0 has no check of them).
"""


def check_dcp(gaps: RequestResolver, mesh: Mesh, model: ModelSpec | None, version: tuple[int, ...]) -> None:
    """What vLLM refuses (config/parallel.py:599, config/model.py:1579), and what is not modelled."""
    ranks, tp = int(gaps.get(KEY, 1, silent=True)), int(mesh.tp)
    if ranks == 1:
        return
    if tp % ranks:
        gaps.wrong(KEY, ranks, f"does not divide --tp {tp}", "a divisor of it", refused=True)
    if model is None:
        return
    mixers = tuple(model.mixers())
    heads = {(mixer.heads, mixer.kv_heads) for mixer in mixers if isinstance(mixer, Attention)}
    since = KEYS_SINCE if heads else LATENT_SINCE
    if version < since:
        named = ".".join(map(str, since))
        gaps.wrong(KEY, ranks, "is not for this model in that release of vllm", f"{named} or newer")
    for query_heads, key_heads in heads:
        _check_heads(gaps, ranks, tp, int(query_heads), int(key_heads))
    if any(_keeps_otherwise(mixer) for mixer in mixers) or gaps.request.get("speculative.method"):
        reason = "beside windows, states or a draft is not modelled"
        gaps.wrong(KEY, ranks, reason, "--dcp 1")


def _check_heads(gaps: RequestResolver, ranks: int, tp: int, heads: int, key_heads: int) -> None:
    """Ranks share out tokens only where they would hold copies of the same key heads."""
    most = tp // key_heads
    if tp <= key_heads:
        reason = f"needs more ranks than the model's {key_heads} key heads, and --tp is {tp}"
        gaps.wrong(KEY, ranks, reason, "--dcp 1, or a larger --tp", refused=True)
    elif ranks > most:
        reason = f"is more than the {most} ranks that hold the same of {key_heads} key heads"
        gaps.wrong(KEY, ranks, reason, f"--dcp {most} or less", refused=True)
    elif (heads // key_heads) % ranks:
        reason = f"does not divide the {heads // key_heads} query heads of a key head"
        gaps.wrong(KEY, ranks, reason, "--dcp 1", refused=True)


def _keeps_otherwise(mixer: Mixer) -> bool:
    if isinstance(mixer, Attention):
        return bool(mixer.window or mixer.chunk)
    return not isinstance(mixer, LatentAttention)
