"""Linear layers of families whose own code lies beside their weights, by the library's names of the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memsheet.plan.defaults import FUSED_TARGETS
from memsheet.plan.model import ModelSpec
from memsheet.plan.verified_families import JOINED_QKV

JOINED = "qkv_proj"
LIBRARY_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "internlm2": {"wqkv": (JOINED,), "wo": ("o_proj",), "w1": ("gate_proj",), "w3": ("up_proj",), "w2": ("down_proj",)},
    "baichuan": {"W_pack": (JOINED,)},
    "qwen": {
        "c_attn": (JOINED,), "attn.c_proj": ("o_proj",), "mlp.c_proj": ("down_proj",), "c_proj": ("o_proj", "down_proj"),
        "w1": ("up_proj",), "w2": ("gate_proj",),
    },
    "chatglm": {
        "query_key_value": (JOINED,), "self_attention.dense": ("o_proj",), "dense": ("o_proj",), "dense_h_to_4h": ("gate_up_proj",),
        "dense_4h_to_h": ("down_proj",),
    },
    "exaone": {"out_proj": ("o_proj",), "c_fc_0": ("gate_proj",), "c_fc_1": ("up_proj",), "c_proj": ("down_proj",)},
}  # fmt: skip
"""As vLLM's code of these families has them, which loads their weights (readers/hub_code.py says where)."""


def library_names(model: ModelSpec, targets: Sequence[str]) -> tuple[str, ...]:
    """Layers that carry adapters, by the library's names where they are said by the own code's."""
    known = LIBRARY_NAMES.get(model.source.own_code, {})
    named = (name for target in targets for name in known.get(target, (target,)))
    return tuple(dict.fromkeys(named)) if known else tuple(targets)


def joined_names(model: ModelSpec, names: Iterable[str]) -> set[str]:
    """All linear layers, with those as one that the own code has in one matrix."""
    found, parts = set(names), set(FUSED_TARGETS[JOINED])
    joined = model.source.own_code in JOINED_QKV and found >= parts
    return (found - parts) | {JOINED} if joined else found


def own_default(model: ModelSpec) -> tuple[str, ...] | None:
    """What carries adapters where nobody says it: what projects queries, keys and values."""
    return (JOINED,) if model.source.own_code in JOINED_QKV else None
