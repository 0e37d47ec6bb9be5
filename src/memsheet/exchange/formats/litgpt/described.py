"""Models that litgpt builds from sizes of its own: those that a file describes, and a few that it knows by
name and that no hub has a configuration of in its words.

Lines are of Lightning-AI/litgpt at 2685705, litgpt/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Values

GROUP = "model_config."
SIZES = {"block_size": 4096, "n_layer": 16, "n_embd": 4096, "n_head": 32}
"""Sizes that a description need not say, at their defaults (:30-45, 66)."""
_LLAMA = {"rotary_percentage": 1.0, "parallel_residual": False, "bias": False, "norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP"}  # fmt: skip
_TINY = {**_LLAMA, "block_size": 2048, "vocab_size": 32000, "padding_multiple": 64, "intermediate_size": 5632, "n_query_groups": 4}  # fmt: skip
NAMED: Mapping[str, Mapping[str, Any]] = {
    "stablelm-base-alpha-3b": {}, "stablelm-tuned-alpha-3b": {"n_head": 32},
    "stablelm-base-alpha-7b": {"n_head": 48, "n_embd": 6144, "padding_multiple": 256}, "stablelm-tuned-alpha-7b": {"n_head": 48, "n_embd": 6144, "padding_multiple": 256},
    "tiny-llama-1.1b": {**_TINY, "n_layer": 22, "n_embd": 2048}, "tiny-llama-1.1b-chat": {**_TINY, "n_layer": 22, "n_embd": 2048},
    "micro-llama-300m": {**_TINY, "n_layer": 12, "n_head": 16, "n_embd": 1024},
}  # fmt: skip
""":274-295, 2179-2202, 2208-2228."""


def litgpt_described_config(values: Values) -> Mapping[str, Any] | None:
    """The described or named model as the library's configuration; None where there is none, or it is no
    decoder of one of the two kinds that the library has the same layers for.
    """
    said = {at.removeprefix(GROUP): held for at, held in values.items() if at.startswith(GROUP)}
    name = str(values.get("model_name") or values.get("checkpoint_dir") or "").rstrip("/").rpartition("/")[2]
    own = said or NAMED.get(name.lower())
    if own is None:
        return None
    own = {name: held for name, held in own.items() if held is not None}
    kind = (own.get("norm_class_name", "LayerNorm"), own.get("mlp_class_name", "GptNeoxMLP"))
    if own.get("n_expert") or own.get("norm_qk") or own.get("scale_embeddings"):
        return None
    tied = values.get("train.tie_embeddings") is True
    if kind == ("RMSNorm", "LLaMAMLP") and own.get("parallel_residual", True) is False:
        return {**_shared_sizes(own), **_llama_sizes(own), "tie_word_embeddings": tied}
    if kind == ("LayerNorm", "GptNeoxMLP"):
        return {**_shared_sizes(own), **_neox_sizes(own), "tie_word_embeddings": tied}
    return None


def _shared_sizes(own: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {name: own.get(name, usual) for name, usual in SIZES.items()}
    return {
        "hidden_size": sizes["n_embd"], "num_hidden_layers": sizes["n_layer"], "num_attention_heads": sizes["n_head"],
        "max_position_embeddings": sizes["block_size"], "vocab_size": own.get("padded_vocab_size") or _padded_vocabulary(own),
    }  # fmt: skip


def _padded_vocabulary(own: Mapping[str, Any]) -> Any:
    """Rows of the table, a multiple of some number (:15-25, 40-41)."""
    size, multiple = own.get("vocab_size", 50254), own.get("padding_multiple", 512)
    whole = type(size) is int and type(multiple) is int and multiple > 0
    return -(-size // multiple) * multiple if whole else size


def _llama_sizes(own: Mapping[str, Any]) -> dict[str, Any]:
    heads = own.get("n_head", SIZES["n_head"])
    width = {"head_dim": own["head_size"]} if "head_size" in own else {}
    bias = own.get("bias", True) is True
    return {
        "model_type": "llama", "num_key_value_heads": own.get("n_query_groups", heads), "intermediate_size": own.get("intermediate_size"),
        "attention_bias": bias or own.get("attn_bias") is True, "mlp_bias": bias, **width,
    }  # fmt: skip


def _neox_sizes(own: Mapping[str, Any]) -> dict[str, Any]:
    hidden = own.get("n_embd", SIZES["n_embd"])
    wide = 4 * hidden if type(hidden) is int else hidden
    return {
        "model_type": "gpt_neox", "intermediate_size": own.get("intermediate_size", wide), "rotary_pct": own.get("rotary_percentage", 0.25),
        "attention_bias": own.get("bias", True), "use_parallel_residual": own.get("parallel_residual", True),
    }  # fmt: skip
