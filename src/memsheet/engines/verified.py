"""Families of transformers whose layers were compared with a trace of their real code, and those that have no sdpa.

The trace ran the library on tensors without memory, in bf16 and under bf16 autocast, with and without recompute; the peaks of
forward and backward agree within 0.1 %. What is not listed is refused rather than guessed.
"""

from __future__ import annotations

from memsheet.spec.plan import AttentionKind

_BOTH = frozenset({AttentionKind.EAGER, AttentionKind.SDPA, AttentionKind.FLASH})
_EAGER = frozenset({AttentionKind.EAGER})

VERIFIED: dict[str, frozenset[AttentionKind]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "olmo", "olmo2", "exaone4", "ernie4_5"), _BOTH),
    **dict.fromkeys(("phi", "phi3", "stablelm", "starcoder2", "nemotron", "glm", "glm4", "cohere", "cohere2", "gemma", "gemma3_text"), _BOTH),
    **dict.fromkeys(("gpt2", "gpt_neox", "gpt_bigcode", "opt"), _BOTH),
    **dict.fromkeys(("gemma2", "gpt_neo", "gptj"), _EAGER),
}  # fmt: skip

NO_SDPA = frozenset({"gemma2", "gpt_neo", "gptj", "bloom", "mpt"})
"""transformers 5.23 raises when one of these is built with sdpa (``_supports_sdpa`` is false)."""
