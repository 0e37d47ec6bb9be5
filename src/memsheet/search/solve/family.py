"""A family of models: one of them made larger and smaller by its own ratios.

The models of a family keep the width of a head, the share of key and value heads, and the ratio of the
feed-forward's width to the hidden one; layers, heads and hidden size grow together. LLaMA's 7B and 13B have
as many heads as layers, 32 and 40 of width 128 (Touvron et al., LLaMA, arXiv:2302.13971, table 2; the same in
Llama 2, arXiv:2307.09288), and Llama 3's 8B again 32 and 32, its 405B 128 and 126 (Llama Team, The Llama 3
Herd of Models, arXiv:2407.21783, table 3): hidden size over layers is about 128 from the smallest to the
largest, so that the 7B scaled by its own ratios is the 13B at 40 layers. (The 70B is deeper and narrower: 80
layers of 64 heads.) Widths of feed-forwards are multiples of 256 (meta-llama/llama, llama/model.py,
ModelArgs.multiple_of).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from memsheet.arith import round_up
from memsheet.errors import input_error
from memsheet.frozen import dataclass

USUAL = "llama-2-7b"
"""Whose family is scaled when nobody names one: its heads share no keys and values, so that it grows in the
smallest steps.
"""
MOST_LAYERS = 512
"""Llama's ratios make that 3·10^13 parameters: more than any cluster of today holds."""
MULTIPLE = 256
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
UNEVEN = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "text_config",
    "vision_config",
    "layer_types",
    "encoder_layers",
)
"""Keys of configs whose parts grow in no one ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A member's config, from which every other one is made."""

    name: str
    config: Mapping[str, Any]

    def of_layers(self, layers: int) -> dict[str, Any]:
        """The config of the member with that many layers."""
        own = self.config
        group = own["num_attention_heads"] // (own.get("num_key_value_heads") or own["num_attention_heads"])
        wanted = (
            2 * own["num_attention_heads"] * layers,
            2 * own["num_hidden_layers"] * group,
        )  # over 2: to round to the nearest
        heads = max(1, (wanted[0] + wanted[1] // 2) // wanted[1]) * group
        hidden = heads * (own["hidden_size"] // own["num_attention_heads"])
        multiple = gcd(MULTIPLE, own["intermediate_size"])
        return {
            **own, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads // group, "hidden_size": hidden,
            "intermediate_size": round_up(hidden * own["intermediate_size"] // own["hidden_size"], multiple),
        }  # fmt: skip


def family_of(name: str, config: Mapping[str, Any]) -> Family:
    """The family of a model. Raises InputError for a config that has no one size to scale."""
    missing = [key for key in SIZES if not isinstance(config.get(key), int) or config[key] < 1]
    if missing:
        raise input_error(
            "model",
            name,
            f"is no family that scales: its config has no {', '.join(missing)}",
            "a model of Llama's shape",
        )
    uneven = [key for key in UNEVEN if config.get(key)]
    if uneven:
        raise input_error(
            "model",
            name,
            f"is no family that scales by one ratio: it has {', '.join(uneven)}",
            "a model of Llama's shape",
        )
    if config["hidden_size"] % config["num_attention_heads"]:
        raise input_error(
            "model",
            name,
            "is no family that scales: its heads do not divide its hidden size",
            "a model of Llama's shape",
        )
    return Family(name=name, config=config)
