"""Which types llama.cpp's quantizer gives to the tensors of a model: a GGUF "Q4_K_M" is a mix, whose main
type is Q4_K.

ggml-org/llama.cpp 007dbbf3 src/llama-quant.cpp, llama_tensor_get_type_impl and llama_ftype_get_default_type,
without a user's own rules. Files whose names say so (``UD-Q4_K_XL``, ``Q4_K_L``) follow rules of their
makers; the file itself says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memsheet.catalog.stored_names import near_types
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import GGUF, DType

SUPER_BLOCK = 256
SHARED_VALUES_70B = 80
"""Layers of the one model size whose value projections get more bits where heads share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What the rules look at: a matrix's layer and the model's shape. ``grouped``: query heads a key head;
    ``family``: its model type; ``weighted``: quantized with an importance matrix.
    """

    layer: int
    layers: int
    grouped: int
    experts: int
    family: str = ""
    vocab: int = 0
    weighted: bool = False


def _use_more_bits(w: Where) -> bool:
    eighth = w.layers // 8
    return w.layer < eighth or w.layer >= 7 * w.layers // 8 or (w.layer - eighth) % 3 == 2


CONDITIONS: Mapping[str, Callable[[Where], bool]] = {
    "always": lambda _: True,
    "more": _use_more_bits,
    "first_8th": lambda w: w.layer < w.layers // 8,
    "first_8th_plain": lambda w: w.layer < w.layers // 8 and not w.weighted,
    "first_8th_weighted": lambda w: w.layer < w.layers // 8 and w.weighted,
    "plain": lambda w: not w.weighted,
    "middle": lambda w: w.layers // 8 <= w.layer < 7 * w.layers // 8,
    "first_16th": lambda w: w.layer < w.layers // 16,
    "first_2": lambda w: w.layer < 2,
    "first_4": lambda w: w.layer < 4,
    "grouped": lambda w: w.grouped >= 4,
    "eight_experts": lambda w: w.experts == 8,
    "eight_experts_more": lambda w: w.experts == 8 and _use_more_bits(w),
    "grouped_or_experts": lambda w: w.grouped >= 4 or w.experts >= 4,
}
Rules = Mapping[str, tuple[tuple[str, str], ...]]
_WIDE_OUTPUT = ("eight_experts", "Q5_K")
_FOUR_BITS = (("first_8th_plain", "Q5_K"),)


def _two_bits(raised: str, output: str | None = None) -> Rules:
    """Mixes of one and two bits; ``raised``: values and the first down projections."""
    return {
        "attn_v": (("grouped_or_experts", "Q4_K"), ("always", raised)),
        "attn_k": (("eight_experts", "Q4_K"),),
        "ffn_down": (("first_8th", raised),),
        "attn_output": (_WIDE_OUTPUT, *([("always", output)] if output else [])),
    }


MIXES: Mapping[str, tuple[str, Rules]] = {
    "Q2_K": ("Q2_K", {"attn_v": (("grouped", "Q4_K"), ("always", "Q3_K")), "ffn_down": (("always", "Q3_K"),), "attn_output": (_WIDE_OUTPUT, ("always", "Q3_K"))}),
    "Q3_K_S": ("Q3_K", {"attn_output": (_WIDE_OUTPUT,)}),
    "Q3_K_M": ("Q3_K", {"attn_v": (("first_2", "Q5_K"), ("always", "Q4_K")), "ffn_down": (("first_16th", "Q5_K"), ("always", "Q4_K")), "attn_output": (_WIDE_OUTPUT, ("always", "Q4_K")), "attn_qkv": (("always", "Q4_K"),)}),
    "Q3_K_L": ("Q3_K", {"attn_v": (("always", "Q5_K"),), "ffn_down": (("always", "Q5_K"),), "attn_output": (("always", "Q5_K"),), "attn_qkv": (("always", "Q4_K"),)}),
    "Q4_K_S": ("Q4_K", {"attn_v": (("first_4", "Q5_K"),), "ffn_down": (("first_8th", "Q5_K"),), "attn_output": (_WIDE_OUTPUT,)}),
    "Q4_K_M": ("Q4_K", {"attn_v": (("more", "Q6_K"),), "ffn_down": (("more", "Q6_K"),), "attn_output": (_WIDE_OUTPUT,), "attn_qkv": (("always", "Q5_K"),)}),
    "Q5_K_S": ("Q5_K", {}),
    "Q5_K_M": ("Q5_K", {"attn_v": (("more", "Q6_K"),), "ffn_down": (("more", "Q6_K"),), "attn_qkv": (("always", "Q6_K"),)}),
    "Q4_0": ("Q4_0", {"ffn_down": (("first_8th_weighted", "Q4_1"),)}),
    "Q5_0": ("Q5_0", {"ffn_down": (("first_8th_weighted", "Q5_1"),)}),
    "IQ4_XS": ("IQ4_XS", {"attn_v": (("grouped", "Q5_K"),), "ffn_down": _FOUR_BITS, "attn_output": (_WIDE_OUTPUT,)}),
    "IQ4_NL": ("IQ4_NL", {"attn_v": (("grouped", "Q5_K"),), "ffn_down": _FOUR_BITS, "attn_output": (_WIDE_OUTPUT,)}),
    "IQ3_M": ("IQ3_S", {"attn_v": (("always", "Q4_K"),), "ffn_down": (("first_8th", "Q4_K"), ("eight_experts_more", "Q4_K")), "attn_output": (_WIDE_OUTPUT, ("always", "Q4_K")), "attn_qkv": (("always", "Q4_K"),)}),
    "IQ3_S": ("IQ3_S", {"attn_v": (("grouped", "Q4_K"),), "attn_output": (_WIDE_OUTPUT,)}),
    "IQ3_XS": ("IQ3_S", {"attn_v": (("grouped", "Q4_K"),), "attn_output": (_WIDE_OUTPUT,), **dict.fromkeys(("attn_q", "attn_k"), (("always", "IQ3_XXS"),)), **dict.fromkeys(("ffn_gate", "ffn_up"), (("middle", "IQ3_XXS"),))}),
    "IQ3_XXS": ("IQ3_XXS", {"attn_v": (("grouped", "Q4_K"), ("plain", "IQ3_S")), "ffn_down": (("first_8th_plain", "Q4_K"), ("plain", "Q3_K")), "attn_output": (_WIDE_OUTPUT, ("always", "IQ3_S")), **dict.fromkeys(("attn_q", "attn_k"), (("always", "IQ2_S"),))}),
    "Q2_K_S": ("Q2_K", {"attn_v": (("grouped", "Q4_K"),), "ffn_down": (("first_8th", "Q4_K"),)}),
    "IQ2_M": ("IQ2_S", _two_bits("IQ3_S", "IQ3_S")),
    "IQ2_S": ("IQ2_XS", _two_bits("IQ3_S", "IQ3_S")),
    "IQ2_XS": ("IQ2_XS", _two_bits("Q2_K")),
    "IQ2_XXS": ("IQ2_XXS", _two_bits("Q2_K")),
    "IQ1_M": ("IQ1_M", _two_bits("Q2_K", "IQ2_XXS")),
    "IQ1_S": ("IQ1_S", _two_bits("Q2_K", "IQ2_XXS")),
}  # fmt: skip
LOW_OUTPUT = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS"})
"""Mixes whose output matrix has five bits."""
TABLES = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"), "Q2_K"), **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "IQ3_S"),
    **dict.fromkeys(("TQ1_0", "TQ2_0"), "Q4_K"),
}  # fmt: skip
"""Types of the table of tokens where it is not the output matrix too, of mixes that have another than their
main type for it.
"""
ODD_ROWS = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
}  # fmt: skip
"""What takes the place of a type of 256 elements a block where a row is no multiple of that
(tensor_type_fallback).
"""
WHOLE = ("F32", "F16", "BF16", "Q8_0")
"""Types that the output matrix keeps too; it is Q6_K beside any other."""

EXPERTS_ALONE, BESIDE_EXPERTS = "MXFP4", "Q8_0"
"""A file in MXFP4 has experts alone in it; every other matrix, the table of tokens and the output are in
eight bits (ggml-org/llama.cpp 007dbbf3 src/llama-quant.cpp llama_tensor_get_type_impl,
LLAMA_FTYPE_MOSTLY_MXFP4_MOE).
"""


def gguf_named(name: str) -> DType | None:
    """A type, or a mix by its main type under the mix's own name."""
    kind = name.removeprefix("gguf:")
    if kind in GGUF:
        return GGUF[kind]
    mix, _ = mix_named(kind)
    main = MIXES[mix][0] if mix in MIXES else mix
    return replace(GGUF[main], name=f"gguf:{kind}") if main in GGUF else None


def mix_named(name: str) -> tuple[str, bool]:
    """The mix whose rules a name is accounted by, and whether its maker's own rules come before them
    (``UD-Q4_K_XL``).
    """
    near, own_rules = near_types(name)
    return (name, False) if name in GGUF or near is None else (near, own_rules)


def matrix_type(mix: str, kind: str, where: Where, row: int) -> str:
    """The type of a layer's matrix. ``kind``: its name in a GGUF file; ``row``: elements of a row."""
    main, rules = MIXES.get(mix, (mix, {}))
    found = next((to for condition, to in rules.get(kind, ()) if CONDITIONS[condition](where)), main)
    if mix in LOW_OUTPUT and mix != "IQ3_XXS":
        return row_compatible_type(found, row)
    if kind in ("attn_v", "attn_k") and where.experts == 8 and main not in WHOLE:
        found = "Q8_0"
    elif (
        kind == "attn_v"
        and where.layers == SHARED_VALUES_70B
        and where.grouped > 1
        and found in ("Q3_K", "Q4_K")
    ):
        found = "Q5_K"
    return row_compatible_type(found, row)


def end_type(mix: str, *, output: bool, row: int) -> str:
    """The type of the table of tokens, or of the output matrix."""
    if mix == EXPERTS_ALONE:
        return BESIDE_EXPERTS
    main = MIXES.get(mix, (mix, {}))[0]
    if not output or main in WHOLE:
        return row_compatible_type(main if output else TABLES.get(mix, main), row)
    if row % SUPER_BLOCK:
        return "Q8_0"
    return "Q5_K" if mix in LOW_OUTPUT else "Q6_K"


def row_compatible_type(kind: str, row: int) -> str:
    """The type, or what takes its place where a row is no multiple of its blocks."""
    return ODD_ROWS.get(kind, kind) if GGUF[kind].block == SUPER_BLOCK and row % SUPER_BLOCK else kind
