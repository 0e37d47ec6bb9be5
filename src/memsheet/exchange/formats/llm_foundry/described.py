"""The MPT that a configuration's own sizes describe, as the library has it.

Lines are of mosaicml/llm-foundry at 8c8dd48, llmfoundry/models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.catalog import find_model
from memsheet.exchange.shared.file_format import Values

NAME, MPT = "model.name", "mpt_causal_lm"
PRETRAINED, OVERRIDES = "model.pretrained_model_name_or_path", "model.config_overrides."
SIZES = {
    "d_model": 2048, "n_heads": 16, "n_layers": 24, "expansion_ratio": 4, "max_seq_len": 2048, "vocab_size": 50368,
}  # fmt: skip
"""Sizes and their defaults (mpt/configuration_mpt.py:34-45)."""
ALIKE = {
    "model.ffn_config.ffn_type": ("mptmlp",), "model.attn_config.attn_type": ("multihead_attention",), "model.head_dim": (),
    "model.tie_word_embeddings": (True,), "model.block_overrides.order": (),
}  # fmt: skip
"""Keys by which it is another model than the library's MPT, with the values by which it is the same one."""


def foundry_described_config(values: Values) -> Mapping[str, Any] | None:
    """The configuration of the library's MPT, or of a named model with what the file changes of it; None
    where the file names a model as it is, or describes another one.
    """
    if changed := changed_config(values):
        return changed
    if values.get(NAME) != MPT or not is_plain_mpt(values):
        return None
    sizes = {name: values.get(f"model.{name}", usual) for name, usual in SIZES.items()}
    alibi = values.get("model.attn_config.alibi") is True
    return {
        "model_type": "mpt",
        "architectures": ["MptForCausalLM"],
        **sizes,
        "attn_config": {"alibi": alibi},
    }


def changed_config(values: Values) -> Mapping[str, Any] | None:
    """A bundled model's configuration with the numbers and words in it that the file changes
    (hf/hf_base.py, config_overrides); None where it changes none.
    """
    found = find_model(str(values.get(PRETRAINED, "")))
    own = found["config"] if found else {}
    said = {at.removeprefix(OVERRIDES): held for at, held in values.items() if at.startswith(OVERRIDES)}
    over = {at: held for at, held in said.items() if at in own and held not in (own[at], None)}
    return {**own, **over} if over else None


def is_plain_mpt(values: Values) -> bool:
    """Whether nothing makes it another model."""
    return all(values.get(at) is None or values[at] in same for at, same in ALIKE.items())


def runs_mpt_code(values: Values) -> bool:
    """Whether the layers are MPT's own: described here, or by a checkpoint that brings them."""
    name = str(values.get(PRETRAINED, "")).lower()
    return values.get(NAME) == MPT or name.rpartition("/")[2].startswith("mpt-")
