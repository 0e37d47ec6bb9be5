"""Which types the quantizer of ik_llama.cpp gives: more bits than the main project's for attention, most of
all beside many experts.

ikawrakow/ik_llama.cpp 8db70379 (May 2025) src/llama.cpp:18232, llama_tensor_get_type, without a user's own
rules. Most published files of the fork follow rules of their own; the file itself says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memsheet.engines.llama_cpp.gguf_mixes import (
    CONDITIONS,
    MIXES,
    SHARED_VALUES_70B,
    SUPER_BLOCK,
    WHOLE,
    Rules,
    Where,
    row_compatible_type,
)

LLAMA = frozenset({"llama", "mistral", "mixtral"})
WORDS = 127_999
"""Words from which a model of 8 or 70 billion parameters gets other types in Q5_K_S."""
MANY = 8
SMALL_LLAMA, CODERS = 40_000, 49_152
"""Words of a Llama of 32 layers that is one of 7 billion parameters, and of one of 3 (llama.cpp:5296)."""


def _eight_or_seventy(w: Where) -> bool:
    """Model sizes by family and layers (llama.cpp:5296, 5301, 5490, 5733, 5946)."""
    if w.layers == SHARED_VALUES_70B:
        return w.family in ("qwen2", "olmo") or (w.family in LLAMA and w.grouped > 1)
    if w.family in LLAMA:
        return w.layers == 36 or (w.layers == 32 and w.vocab >= SMALL_LLAMA and w.vocab != CODERS)
    return w.family == "cohere2" and w.layers == 32


FORKED: Mapping[str, Callable[[Where], bool]] = {
    **CONDITIONS,
    "pairs": lambda w: w.grouped >= 2,
    "many": lambda w: w.experts >= MANY,
    "words": lambda w: w.vocab >= WORDS and _eight_or_seventy(w),
}
_V5, _O5, _FIRST = (("pairs", "IQ5_K"),), ("many", "Q5_K"), (("first_8th_plain", "Q5_K"),)
FORK_MIXES: Mapping[str, tuple[str, Rules]] = {
    "Q2_K": ("Q2_K", {"attn_v": (("grouped", "Q4_K"), ("always", "Q3_K")), "ffn_down": (("always", "Q3_K"),), "attn_output": (_O5, ("always", "Q3_K"))}),
    "Q3_K_S": ("Q3_K", {"attn_output": (_O5,)}),
    "Q3_K_M": ("Q3_K", {**MIXES["Q3_K_M"][1], "attn_output": (_O5, ("always", "Q4_K"))}),
    "Q3_K_L": ("Q3_K", {**MIXES["Q3_K_L"][1], "attn_output": (("many", "Q3_K"), ("always", "Q5_K"))}),
    "Q4_K_S": ("Q4_K", {**MIXES["Q4_K_S"][1], "attn_output": (_O5,)}),
    "Q4_K_M": ("Q4_K", {**MIXES["Q4_K_M"][1], "attn_output": (_O5,)}),
    "Q5_K_S": ("Q5_K", {"attn_v": (("words", "Q6_K"),), "attn_q": (("words", "Q4_K"),)}),
    "Q5_K_M": MIXES["Q5_K_M"],
    "IQ4_XS": ("IQ4_XS", {"attn_v": _V5, "ffn_down": _FIRST, "attn_output": (_O5,)}),
    "IQ4_NL": ("IQ4_NL", {"attn_v": _V5, "ffn_down": _FIRST, "attn_output": (_O5,)}),
    "IQ2_K": ("IQ2_K", {"attn_v": (("pairs", "IQ4_K"), ("always", "IQ3_K")), "attn_output": (_O5, ("always", "IQ3_K"))}),
    "IQ3_K": ("IQ3_K", {"attn_v": (("pairs", "IQ4_K"),), "attn_output": (_O5,)}),
    "IQ4_K": ("IQ4_K", {"attn_v": _V5, "attn_output": (_O5,)}),
    "IQ2_K_R4": ("IQ2_K_R4", {"attn_v": (("pairs", "IQ4_K_R4"), ("always", "IQ3_K_R4")), "attn_output": (_O5, ("always", "IQ3_K_R4"))}),
    "IQ3_K_R4": ("IQ3_K_R4", {"attn_v": (("pairs", "IQ4_K_R4"),), "attn_output": (_O5,)}),
    "IQ4_K_R4": ("IQ4_K_R4", {"attn_v": _V5, "attn_output": (_O5,)}),
}  # fmt: skip


def _fork_mix(mix: str) -> tuple[str, Rules]:
    """A mix's main type and rules; the main project's of mixes whose rules here were not written down."""
    return FORK_MIXES.get(mix) or MIXES.get(mix, (mix, {}))


RAISED = {
    "Q2_K": "IQ3_S",
    "IQ3_XXS": "IQ3_S",
    "Q3_K": "Q4_K",
    "IQ3_S": "Q4_K",
    "Q4_K": "Q5_K",
    "IQ4_XS": "Q5_K",
    "IQ4_NL": "Q5_K",
    "Q5_K": "Q6_K",
}
"""Value projections of four query heads a key head or more, whatever a rule gave them."""
KEYS_AND_QUERIES = frozenset({"attn_q", "attn_k", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"})
LOW_BITS = frozenset({"IQ2_K", "IQ3_K", "IQ2_K_R4", "IQ3_K_R4"})
"""Mixes whose output matrix has five bits."""


def fork_type(mix: str, kind: str, where: Where, row: int) -> str:
    """The type of a layer's matrix. ``kind``: its name in a GGUF file; ``row``: elements of a row."""
    main, rules = _fork_mix(mix)
    found = next((to for condition, to in rules.get(kind, ()) if FORKED[condition](where)), main)
    if main in WHOLE:
        return found
    if kind in KEYS_AND_QUERIES and where.experts >= MANY:
        found = "Q8_0"
    elif kind == "attn_v":
        found = _value_projection_type(found, where)
    return row_compatible_type(found, row)


def _value_projection_type(found: str, where: Where) -> str:
    if _eight_or_seventy(where) and where.layers == SHARED_VALUES_70B and found in ("Q3_K", "Q4_K"):
        found = "Q5_K"
    if where.experts == MANY:
        return "Q8_0"
    return RAISED.get(found, found) if where.grouped >= 4 else found


def fork_end(mix: str, *, output: bool, tied: bool, row: int) -> str:
    """The type of the table of tokens, which is never interleaved, or of the output matrix."""
    main = _fork_mix(mix)[0]
    if not output or main in WHOLE:
        return row_compatible_type(main.removesuffix("_R4"), row)
    if row % SUPER_BLOCK:
        return "Q8_0"
    if mix in LOW_BITS:
        return "IQ4_K" if tied else "Q5_K"
    return "IQ5_K" if mix == "IQ4_XS" and tied else "Q6_K"
