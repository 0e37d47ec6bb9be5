"""What transformers did in earlier releases, by release and family.

Looked up in the released packages, one of each minor release from 4.31 to 4.57: which classes say
``_supports_sdpa`` and ``_supports_cache_class``, and whose ``forward`` takes ``num_logits_to_keep`` or
``logits_to_keep``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from memsheet.plan.model import ModelSpec

Release = tuple[int, int]

MONTHS: dict[Release, str] = {
    (4, 36): "2023-12", (4, 37): "2024-01", (4, 39): "2024-03", (4, 41): "2024-05",
    (4, 42): "2024-06", (4, 43): "2024-07", (4, 44): "2024-08", (4, 45): "2024-09", (4, 46): "2024-10", (4, 47): "2024-12",
    (4, 48): "2025-01", (4, 49): "2025-02", (4, 52): "2025-05", (4, 53): "2025-06", (4, 54): "2025-07", (5, 0): "2026-01",
}  # fmt: skip
"""When a release came out, for engine versions that are dates."""

FIRST: Release = (2, 0)
"""The first release under this name."""

USUAL_CACHE: Release = (4, 42)
"""From here on ``generate`` makes a ``DynamicCache`` itself for the classes that take one
(generation/utils.py); before, keys and values went from step to step as tuples, also where a layer of 4.36
to 4.41 wrapped them for the length of a pass (``from_legacy_cache``).
"""
LATER_CACHES: dict[Release, tuple[str, ...]] = {
    (4, 43): ("whisper",),
    (4, 44): ("bloom", "llava", "llava_next", "paligemma"),
    (4, 45): ("falcon", "gpt_neo", "gpt_neox", "gptj"),
    (4, 46): ("mt5", "t5"),
    (4, 49): ("opt",),
    (4, 52): ("bart", "gpt2", "mbart"),
    (4, 53): ("pegasus",),
    (4, 54): ("gpt_bigcode", "mpt"),
}
"""Families whose classes took a ``DynamicCache`` later."""
FIXED_CACHES = ("gemma2", "jamba", "recurrent_gemma", "mamba", "mamba2", "falcon_mamba", "rwkv", "zamba")
"""Families with caches of their own from their first release on."""
TUPLE_CODES = frozenset(
    {"qwen", "internlm", "internlm2", "baichuan", "xverse", "aquila", "Yi", "orion", "stablelm_epoch", "chatglm", "RefinedWeb", "RefinedWebModel"}
)  # fmt: skip
"""Code beside the weights that hands tuples on whatever the release: modeling_qwen.py (Qwen-7B at 1ff2086,
``present``), modeling_internlm2.py (``_reorder_cache``), and their contemporaries.
"""

USUAL_LOGITS: Release = (4, 45)
"""From here on ``generate`` asks for the last position's logits alone (generation/utils.py,
``num_logits_to_keep``), of the classes that can.
"""
LATER_LOGITS: dict[Release, tuple[str, ...]] = {
    (4, 47): ("falcon",),
    (4, 48): ("granite",),
    (4, 49): ("gpt_neox",),
    (4, 52): ("granitemoe", "granitemoeshared"),
    (4, 53): ("gpt2",),
    (4, 54): ("glm4v", "qwen2_5_vl"),
    (5, 0): ("bloom", "gpt_bigcode", "gpt_neo", "gptj", "mpt", "opt", "qwen2_vl"),
}
"""Families whose classes took that later."""
KEPT_DTYPE = frozenset(
    {"bloom", "falcon", "glm4v", "gpt2", "gpt_bigcode", "gpt_neox", "llava", "llava_next", "mpt", "opt", "stablelm"}
)  # fmt: skip
"""Families that never made an fp32 copy of their logits; others did before 4.46."""
WHOLE_CODES = {"qwen": False, "internlm2": True}
"""Code beside the weights that makes logits of every position whatever the release, and whether it copies
them in fp32 (modeling_qwen.py at 1ff2086: no; modeling_internlm2.py: yes).
"""

SCORES_BEFORE: dict[Release, frozenset[str]] = {
    (4, 36): frozenset({"bart", "gpt_bigcode", "llama", "whisper"}),
    (4, 37): frozenset({"mistral", "mixtral"}),
    (4, 39): frozenset({"phi", "stablelm"}),
    (4, 41): frozenset({"bert", "vit"}),
    (4, 42): frozenset({"gpt2", "gpt_neox"}),
    (4, 45): frozenset({"mbart", "phi3", "roberta", "xlm-roberta"}),
    (4, 46): frozenset({"distilbert", "llava", "llava_next", "opt"}),
    (4, 53): frozenset({"pegasus"}),
    (5, 0): frozenset({"electra", "mt5", "t5"}),
}
"""Families that wrote scores of attention out before a release, unless FlashAttention was asked for. Falcon
called torch's own function earlier than the library did (modeling_falcon.py in 4.31).
"""


def is_before(version: str | None, release: Release) -> bool:
    """Whether a version ("4.44.2", or the month of what was out, "2023-11") is older than a release. False
    where none is named, and of numbers below the library's first, which are another program's (TRL's).
    """
    text = version or ""
    if date := re.match(r"(20\d{2}-\d{2})\b", text):
        return date[1] < MONTHS[release]
    named = re.match(r"(\d{1,2})\.(\d{1,3})\b", text)
    return named is not None and FIRST <= (int(named[1]), int(named[2])) < release


def _release_of(family: str, usual: Release, later: dict[Release, tuple[str, ...]]) -> Release:
    return next((release for release, families in later.items() if family in families), usual)


def wrote_scores(kinds: Iterable[str], version: str | None) -> bool:
    """Whether a release writes out scores of attention in layers of these families where nobody says."""
    found = frozenset(kinds)
    return any(is_before(version, release) for release, families in SCORES_BEFORE.items() if families & found)


def hands_tuples(spec: ModelSpec, version: str | None) -> bool:
    """Whether generation hands keys and values from step to step as tuples, so that those of the step before
    stay until all layers have made theirs.
    """
    if spec.source.own_code:
        return spec.source.own_code in TUPLE_CODES
    if spec.model_type in FIXED_CACHES:
        return False
    return is_before(version, _release_of(spec.model_type, USUAL_CACHE, LATER_CACHES))


def makes_all_logits(spec: ModelSpec, version: str | None) -> bool:
    """Whether the pass over a prompt makes logits of every position."""
    if spec.source.own_code in WHOLE_CODES:
        return True
    return is_before(version, _release_of(spec.model_type, USUAL_LOGITS, LATER_LOGITS))


def keeps_first_logits(version: str | None) -> bool:
    """Whether those logits stay while the first token after the prompt is made (``del outputs`` came with
    4.42, generation/utils.py).
    """
    return is_before(version, USUAL_CACHE)


def copies_logits(spec: ModelSpec) -> bool:
    """Whether those logits are copied in fp32."""
    return WHOLE_CODES.get(spec.source.own_code, spec.model_type not in KEPT_DTYPE)
