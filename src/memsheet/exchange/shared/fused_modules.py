"""Megatron-Core's modules by the layers that they hold, in the words of the transformers library."""

from __future__ import annotations

from collections.abc import Iterable

HELD = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"), "linear_proj": ("o_proj",), "linear_fc1": ("gate_proj", "up_proj"), "linear_fc2": ("down_proj",),
    "word_embeddings": ("embed_tokens",), "output_layer": ("lm_head",),
}  # fmt: skip


def layers_of_modules(modules: Iterable[object]) -> list[str]:
    """Names of the layers that some modules hold; any other name as it is."""
    return [name for module in modules for name in HELD.get(str(module), (str(module),))]
