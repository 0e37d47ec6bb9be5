"""Which types llama.cpp's quantizer gives to the tensors of a model: a GGUF "Q4_K_M" is a mix, whose main
type is Q4_K.

ggml-org/llama.cpp src/llama-quant.cpp, llama_tensor_get_type, as quantized without an importance matrix and
without a user's own rules. Published files may follow rules of their own; the file itself says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import GGUF, DType

SUPER_BLOCK = 256
SHARED_VALUES_70B = 80
"""Layers of the one model size whose value projections get more bits where heads share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What the rules look at: a matrix's layer and the model's shape. ``grouped``: query heads a key head;
    ``family``: its model type.
    """

    layer: int
    layers: int
    grouped: int
    experts: int
    family: str = ""
    vocab: int = 0


def _use_more_bits(w: Where) -> bool:
    eighth = w.layers // 8
    return w.layer < eighth or w.layer >= 7 * w.layers // 8 or (w.layer - eighth) % 3 == 2


CONDITIONS: Mapping[str, Callable[[Where], bool]] = {
    "always": lambda _: True,
    "more": _use_more_bits,
    "first_8th": lambda w: w.layer < w.layers // 8,
    "first_16th": lambda w: w.layer < w.layers // 16,
    "first_2": lambda w: w.layer < 2,
    "first_4": lambda w: w.layer < 4,
    "grouped": lambda w: w.grouped >= 4,
    "eight_experts": lambda w: w.experts == 8,
}
Rules = Mapping[str, tuple[tuple[str, str], ...]]
_WIDE_OUTPUT = ("eight_experts", "Q5_K")
MIXES: Mapping[str, tuple[str, Rules]] = {
    "Q2_K": ("Q2_K", {"attn_v": (("grouped", "Q4_K"), ("always", "Q3_K")), "ffn_down": (("always", "Q3_K"),), "attn_output": (_WIDE_OUTPUT, ("always", "Q3_K"))}),
    "Q3_K_S": ("Q3_K", {"attn_output": (_WIDE_OUTPUT,)}),
    "Q3_K_M": ("Q3_K", {"attn_v": (("first_2", "Q5_K"), ("always", "Q4_K")), "ffn_down": (("first_16th", "Q5_K"), ("always", "Q4_K")), "attn_output": (_WIDE_OUTPUT, ("always", "Q4_K")), "attn_qkv": (("always", "Q4_K"),)}),
    "Q3_K_L": ("Q3_K", {"attn_v": (("always", "Q5_K"),), "ffn_down": (("always", "Q5_K"),), "attn_output": (("always", "Q5_K"),), "attn_qkv": (("always", "Q4_K"),)}),
    "Q4_K_S": ("Q4_K", {"attn_v": (("first_4", "Q5_K"),), "ffn_down": (("first_8th", "Q5_K"),), "attn_output": (_WIDE_OUTPUT,)}),
    "Q4_K_M": ("Q4_K", {"attn_v": (("more", "Q6_K"),), "ffn_down": (("more", "Q6_K"),), "attn_output": (_WIDE_OUTPUT,), "attn_qkv": (("always", "Q5_K"),)}),
    "Q5_K_S": ("Q5_K", {}),
    "Q5_K_M": ("Q5_K", {"attn_v": (("more", "Q6_K"),), "ffn_down": (("more", "Q6_K"),), "attn_qkv": (("always", "Q6_K"),)}),
    "IQ4_XS": ("IQ4_XS", {"attn_v": (("grouped", "Q5_K"),), "ffn_down": (("first_8th", "Q5_K"),), "attn_output": (_WIDE_OUTPUT,)}),
    "IQ4_NL": ("IQ4_NL", {"attn_v": (("grouped", "Q5_K"),), "ffn_down": (("first_8th", "Q5_K"),), "attn_output": (_WIDE_OUTPUT,)}),
}  # fmt: skip
ODD_ROWS = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "IQ3_S": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
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
    return replace(GGUF[MIXES[kind][0]], name=f"gguf:{kind}") if kind in MIXES else None


def matrix_type(mix: str, kind: str, where: Where, row: int) -> str:
    """The type of a layer's matrix. ``kind``: its name in a GGUF file; ``row``: elements of a row."""
    main, rules = MIXES.get(mix, (mix, {}))
    found = next((to for condition, to in rules.get(kind, ()) if CONDITIONS[condition](where)), main)
    if kind in ("attn_v", "attn_k") and where.experts == 8 and mix in MIXES:
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
        return row_compatible_type(main, row)
    return "Q6_K" if row % SUPER_BLOCK == 0 else "Q8_0"


def row_compatible_type(kind: str, row: int) -> str:
    """The type, or what takes its place where a row is no multiple of its blocks."""
    return ODD_ROWS.get(kind, kind) if GGUF[kind].block == SUPER_BLOCK and row % SUPER_BLOCK else kind
