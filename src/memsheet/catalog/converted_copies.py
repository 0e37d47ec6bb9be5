"""Copies of models whose weights were written for another family's layers: what a publisher converted holds
projections apart that the release holds together. Their shapes are the release's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONVERTED_COPIES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("unsloth", "phi-4"): ("llama", "LlamaForCausalLM"),
    ("unsloth", "phi-3.5-mini"): ("llama", "LlamaForCausalLM"),
    ("unsloth", "phi-3-medium"): ("mistral", "MistralForCausalLM"),
}
"""Who published a copy of which bundled model → the type and the class of its config. That Unsloth patches
these as Llama's or Mistral's, with as many layers of q, k and v as there are blocks, its notebooks print
(unslothai/notebooks bdda2ef nb/Phi_4-Conversational.ipynb, nb/Phi_3.5_Mini-Conversational.ipynb,
nb/Phi_3_Medium-Conversational.ipynb).
"""


def converted_config(repo: str, name: str, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The config of a repository's copy of a bundled model, and what was done to it in words; as it is, and
    no words, where nobody is known to have converted it.
    """
    owner = repo.lower().partition("/")[0] if "/" in repo else ""
    found = CONVERTED_COPIES.get((owner, name))
    if found is None:
        return config, ""
    kind, model_class = found
    return {**config, "model_type": kind, "architectures": [model_class]}, f"converted to {kind}'s layers"
