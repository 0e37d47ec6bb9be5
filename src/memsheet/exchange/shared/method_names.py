"""The method of training that a recipe's name says (``dpo.yaml``, ``qwen_kto_7b.yml``), where its keys are
those that several methods have.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.patterns import late_pattern

NAMED = "$.file_name"
"""Beside a recipe's own keys: the method by its name."""
FINE_TUNING = "sft"
PLAIN = frozenset({"reward", "online", "async", "nash", "distillation"})
"""Words that say a method where a name begins with them, and may say something else behind others."""
_WORD = late_pattern(r"[a-z]+")


def method_in_name(file: str, methods: Mapping[str, str]) -> str | None:
    """The method of ``methods``, by its word, that a file's name begins with, as those of scripts do, or that
    stands alone in it; None where it says none, or several, or fine-tuning too.
    """
    words = _WORD.findall(file.partition(".")[0].lower())
    if not words or FINE_TUNING in words:
        return None
    if words[0] in methods:
        return methods[words[0]]
    several = {methods[word] for word in words if word in methods and word not in PLAIN}
    return several.pop() if len(several) == 1 else None
