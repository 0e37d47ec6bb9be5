"""Number formats, in bits, with the scales that quantized blocks carry."""

from __future__ import annotations

from typing import Any

from memsheet.arith import Count, ceil_div
from memsheet.frozen import dataclass, field_values


@dataclass(frozen=True, slots=True)
class Scale:
    """One scale value of ``bits`` for every ``block`` elements."""

    block: int
    bits: int


@dataclass(frozen=True, slots=True)
class DType:
    """A storage format: ``bits`` for every ``block`` elements, and its scales besides."""

    name: str
    bits: int
    block: int = 1
    scales: tuple[Scale, ...] = ()
    source: str = ""

    def nbytes(self, elements: Count) -> Count:
        """Bytes that ``elements`` of one tensor take, partial blocks counted whole."""
        if self.block == 1 and not self.scales and self.bits % 8 == 0:  # whole bytes: nothing to round
            return elements * (self.bits // 8)
        size = ceil_div(ceil_div(elements, self.block) * self.bits, 8)
        for scale in self.scales:
            size = size + ceil_div(ceil_div(elements, scale.block) * scale.bits, 8)
        return size

    def __reduce__(self) -> tuple[Any, ...]:
        """A known format is itself when it comes back from another process: formulas ask which one it is."""
        if BY_NAME.get(self.name) is self:
            return dtype_named, (self.name,)
        return DType, tuple(field_values(self))


IEEE = "IEEE 754 / format definition"
BNB = (
    "bitsandbytes functional.py quantize_4bit: absmax fp32 a block of 64; double quantization: absmax "
    "in 8 bits, fp32 a 256 blocks"
)
OCP = "OCP Microscaling Formats v1.0: one 8-bit shared exponent a block of 32"
GGML = "ggml-common.h block structs: bytes of one block over its elements"

FP32 = DType("fp32", 32, source=IEEE)
TF32 = DType("tf32", 32, source="stored as fp32; only the matmul rounds")
FP16 = DType("fp16", 16, source=IEEE)
BF16 = DType("bf16", 16, source=IEEE)
FP8 = DType("fp8", 8, source="OCP 8-bit floating point: e4m3")
FP8_E5M2 = DType("fp8_e5m2", 8, source="OCP 8-bit floating point: e5m2")
INT64 = DType("int64", 64, source=IEEE)
INT32 = DType("int32", 32, source=IEEE)
INT8 = DType("int8", 8, source="one byte an element; the row scales are named with the tensor that has them")
INT4 = DType("int4", 4, source="two elements a byte")
UINT8 = DType("uint8", 8, source=IEEE)
BOOL = DType("bool", 8, source="torch stores one byte a bool")
NF4_SINGLE = DType("nf4-single", 4, scales=(Scale(64, 32),), source=BNB)
NF4 = DType("nf4", 4, scales=(Scale(64, 8), Scale(64 * 256, 32)), source=BNB)
FP4_BNB = DType("fp4", 4, scales=(Scale(64, 32),), source=BNB)
FP4_BNB_DOUBLE = DType("fp4-double", 4, scales=(Scale(64, 8), Scale(64 * 256, 32)), source=BNB)
MXFP8 = DType("mxfp8", 8, scales=(Scale(32, 8),), source=OCP)
MXFP4 = DType("mxfp4", 4, scales=(Scale(32, 8),), source=OCP)
NVFP4 = DType(
    "nvfp4", 4, scales=(Scale(16, 8),), source="NVIDIA NVFP4: one e4m3 scale a block of 16, one fp32 a tensor"
)


def fp8_blocks(side: int) -> DType:
    """fp8 weights with one fp32 scale a square block (weight_block_size)."""
    return DType(
        "fp8-block",
        8,
        scales=(Scale(side * side, 32),),
        source="DeepSeek-V3 report 3.3: fp32 scale a 128 x 128 block",
    )


FP8_BLOCK = fp8_blocks(128)
INT8_ADAM = DType(
    "adam8bit",
    8,
    scales=(Scale(256, 32),),
    source="bitsandbytes optim: blockwise state, fp32 absmax a block of 256",
)
INT16_REMAINDER = DType("int16-remainder", 16, source="low half of fp32 beside a bf16 weight")


def grouped_int(bits: int, group: int, *, zero_bits: int, name: str) -> DType:
    """GPTQ and AWQ storage: packed ints, one fp16 scale and one packed zero point a group."""
    return DType(
        name,
        bits,
        scales=(Scale(group, 16), Scale(group, zero_bits)),
        source="GPTQ/AWQ checkpoint layout: qweight, scales, qzeros",
    )


def packed_int(bits: int, group: int, *, name: str) -> DType:
    """compressed-tensors' symmetric storage: packed ints and one 16-bit scale a group, no zero points."""
    return DType(
        name,
        bits,
        scales=(Scale(group, 16),),
        source="compressed-tensors pack_quantized: weight_packed, weight_scale",
    )


GPTQ_INT4 = grouped_int(4, 128, zero_bits=4, name="gptq-int4")
GPTQ_INT8 = grouped_int(8, 128, zero_bits=8, name="gptq-int8")
AWQ_INT4 = grouped_int(4, 128, zero_bits=4, name="awq-int4")

# name: (elements a block, bytes a block)
_GGUF_BLOCKS: dict[str, tuple[int, int]] = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "F64": (1, 8),
    "I8": (1, 1), "I16": (1, 2), "I32": (1, 4), "I64": (1, 8),
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q8_1": (32, 36),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "Q8_K": (256, 292),
    "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74), "IQ3_XXS": (256, 98), "IQ1_S": (256, 50), "IQ4_NL": (32, 18),
    "IQ3_S": (256, 110), "IQ2_S": (256, 82), "IQ4_XS": (256, 136), "IQ1_M": (256, 56),
    "IQ2_K": (256, 76), "IQ3_K": (256, 110), "IQ4_K": (256, 144), "IQ5_K": (256, 176), "IQ6_K": (256, 212),  # ikawrakow/ik_llama.cpp
    "IQ2_K_R4": (256, 76), "IQ3_K_R4": (256, 110), "IQ4_K_R4": (256, 144), "IQ5_K_R4": (256, 176),  # the same, four rows interleaved
    "TQ1_0": (256, 54), "TQ2_0": (256, 66), "MXFP4": (32, 17), "NVFP4": (64, 36), "Q1_0": (128, 18),
}  # fmt: skip
GGUF = {
    name: DType(f"gguf:{name}", size * 8, block, source=GGML) for name, (block, size) in _GGUF_BLOCKS.items()
}

_ALL = (
    FP32, TF32, FP16, BF16, FP8, FP8_E5M2, INT64, INT32, INT8, INT4, UINT8, BOOL, NF4, NF4_SINGLE, FP4_BNB, FP4_BNB_DOUBLE, MXFP8, MXFP4, NVFP4, FP8_BLOCK,
    INT8_ADAM, INT16_REMAINDER, GPTQ_INT4, GPTQ_INT8, AWQ_INT4, *GGUF.values(),
)  # fmt: skip
BY_NAME = {dtype.name: dtype for dtype in _ALL}
ALIASES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "half": "fp16",
    **{name.lower(): f"gguf:{name}" for name in ("Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "IQ4_NL")}, "f16": "fp16", "f32": "fp32",  # llama.cpp's names
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8_e5m2", "fp8_e4m3": "fp8",
}  # fmt: skip


def dtype_named(name: str) -> DType | None:
    """The format of that name or alias (``torch.`` prefix allowed), or None."""
    bare = name.removeprefix("torch.")
    return BY_NAME.get(ALIASES.get(bare, bare))
