"""Experts of four bits as the kernels of a server keep them: padded, with scales in a layout of their own."""

from __future__ import annotations

from functools import reduce

from memsheet.arith import Count, ceil_div, maximum, minimum, round_up
from memsheet.formulas.states.held import HeldTensor, module_of
from memsheet.frozen import dataclass
from memsheet.plan.dtypes import BF16, FP32, MXFP4, NVFP4
from memsheet.plan.model import Role
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import NOTHING, Bytes

PADDED_TO, SCALE_ROWS, SCALE_COLUMNS, SHARE = 256, 256, 2, 32
"""Sizes that FlashInfer's kernels of MXFP4 pad to, the most of all (v0.11.0 mxfp4.py:184); those of triton's
scales (v0.14.0 third_party/triton_kernels/tensor_details/layout_details/hopper_scale.py:25); elements that
share a scale.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What kernels of experts pad the inner and the hidden size to on a rank; ``swizzles``: into scales of
    triton's layout; ``wide_bias``: biases become fp32.
    """

    inner: int
    hidden: int = 1
    swizzles: bool = False
    wide_bias: bool = True


TRITON = Kernel(inner=64, swizzles=True)
MARLIN = Kernel(inner=128, hidden=256, wide_bias=False)
TENSORRT = Kernel(inner=128, hidden=256)
"""v0.11.0 model_executor/layers/quantization/mxfp4.py:168, 184, 200 and v0.33.0
fused_moe/oracle/mxfp4.py:837-916.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How a release and a card keep such experts. ``kernels``: those that may run, the usual one first, whose
    bytes are the value; ``closed``: no other runs; ``keeps_scales``: the checkpoint's stay beside triton's;
    ``scale_columns``: shares that triton's are padded to; ``pads_rows``: kernels of NVFP4 pad an expert's
    rows, None where nobody knows.
    """

    kernels: tuple[Kernel, ...] = (TRITON,)
    closed: bool = False
    keeps_scales: bool = True
    scale_columns: int = SCALE_COLUMNS
    pads_rows: bool | None = None


ANY_KERNEL = Packing()


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 mxfp4.py:599: triton's kernels get their scales in a layout of their own, and those of "
        "the checkpoint stay (:612 deletes the weights) until v0.25.0 fused_moe/oracle/mxfp4.py:1155; "
        "v0.26.0 utils/mxfp4_utils.py pads shares to four"
    ),
)
def swizzled_scales_bytes(shape: tuple[Count, ...], columns: int = SCALE_COLUMNS) -> Count:
    """Bytes of a copy of the scales of (experts, in, out), one a share of the input."""
    experts, inputs, outputs = shape
    return experts * round_up(outputs, SCALE_ROWS) * round_up(ceil_div(inputs, SHARE), columns)


def padded_experts(held: tuple[HeldTensor, ...], packing: Packing = ANY_KERNEL) -> dict[str, Bytes]:
    """Ranges of expert matrices in MXFP4, by module path: as stored, as the usual kernel keeps them (the
    value), and as the kernels that pad most. Which one runs depends on the card and on what is installed.
    """
    found: dict[str, Bytes] = {}
    for one in held:
        if one.role is Role.EXPERT and one.dtype is MXFP4:
            size = _kernel_range(one, packing)
            found[module_of(one.path)] = found.get(module_of(one.path), NOTHING) + size
    for one in held:
        if one.role is Role.EXPERT_BIAS and module_of(one.path) in found:
            found[module_of(one.path)] += _bias_range(one, packing)
    return {**found, **_padded_rows(held, packing)}


BLOCK_ROWS = 128
"""Rows that scales of NVFP4 are laid out in (v0.33.0 quantization/utils/nvfp4_utils.py:36)."""


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 quantization/utils/flashinfer_fp4_moe.py:414-452: gates and inner size to 128 rows of scales",
)
def padded_block_elements(shape: tuple[Count, ...], gates: int, *, downward: bool) -> Count:
    """Elements of (experts, out, in) in NVFP4 with the inner size padded; ``gates`` lie in one output."""
    experts, outputs, inputs = shape
    if downward:
        return experts * outputs * round_up(inputs, BLOCK_ROWS // gates)
    return experts * round_up(outputs, BLOCK_ROWS) * inputs


def _padded_rows(held: tuple[HeldTensor, ...], packing: Packing) -> dict[str, Bytes]:
    """Ranges of expert matrices in NVFP4, by module path, where kernels that pad may run: FlashInfer's."""
    found: dict[str, Bytes] = {}
    if packing.pads_rows is False:
        return found
    for one in held:
        if one.role is Role.EXPERT and one.dtype is NVFP4:
            gates = 2 if any("gate" in other.path for other in held if other.role is Role.EXPERT) else 1
            stored = one.times * one.dtype.nbytes(one.elements)
            padded = one.times * one.dtype.nbytes(
                padded_block_elements(one.shape, gates, downward=_is_downward(one.path))
            )
            size = Bytes(stored, padded if packing.pads_rows else stored, padded)
            found[module_of(one.path)] = found.get(module_of(one.path), NOTHING) + size
    return {path: size for path, size in found.items() if size.low != size.high}


def _kernel_range(one: HeldTensor, packing: Packing) -> Bytes:
    downward = _is_downward(one.path)
    sizes = [
        one.times * kernel_expert_bytes(one.shape, packing, k, downward=downward) for k in packing.kernels
    ]
    value = sizes[0]
    if packing.closed:
        return Bytes(reduce(minimum, sizes), value, reduce(maximum, sizes))
    stored = one.times * one.dtype.nbytes(one.elements)
    padded = one.times * one.dtype.nbytes(_most_padded_elements(one))
    return Bytes(stored, value, maximum(value, padded))


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.11.0 mxfp4.py:168-210, 599 and v0.33.0 fused_moe/oracle/mxfp4.py:837, 1440-1471",
)
def kernel_expert_bytes(
    shape: tuple[Count, ...], packing: Packing, kernel: Kernel, *, downward: bool = False
) -> Count:
    """Bytes of (experts, in, out) as a kernel keeps them. ``downward``: from the inner size."""
    padded = _padded_shape(shape, kernel, downward=downward)
    experts, inputs, outputs = padded
    whole: Count = MXFP4.nbytes(experts * inputs * outputs)
    if not kernel.swizzles:
        return whole
    own = experts * outputs * ceil_div(inputs, SHARE)
    swizzled = swizzled_scales_bytes(padded, packing.scale_columns)
    return whole + swizzled if packing.keeps_scales else whole - own + swizzled


def _is_downward(path: str) -> bool:
    return "down" in path


def _padded_shape(shape: tuple[Count, ...], kernel: Kernel, *, downward: bool) -> tuple[Count, Count, Count]:
    """The shape with the inner and the hidden size padded; both gates lie in one output."""
    experts, inputs, outputs = shape
    if downward:
        return experts, round_up(inputs, kernel.inner), round_up(outputs, kernel.hidden)
    return experts, round_up(inputs, kernel.hidden), round_up(outputs, 2 * kernel.inner)


def _bias_range(one: HeldTensor, packing: Packing) -> Bytes:
    """Biases of a kernel, which triton's and FlashInfer's read in fp32 (v0.11.0 mxfp4.py:581, v0.33.0
    fused_moe/oracle/mxfp4.py:1440).
    """
    experts, outputs = one.shape
    sizes = []
    for kernel in packing.kernels:
        rows = round_up(outputs, kernel.hidden if _is_downward(one.path) else 2 * kernel.inner)
        sizes.append(one.times * (FP32 if kernel.wide_bias else BF16).nbytes(experts * rows))
    value = sizes[0]
    if packing.closed:
        return Bytes(reduce(minimum, sizes), value, reduce(maximum, sizes))
    plain = one.times * BF16.nbytes(one.elements)
    return Bytes(plain, value, maximum(value, 2 * plain))


def _most_padded_elements(held: HeldTensor) -> Count:
    """Elements of (experts, in, out) where both sizes are padded to the most of all kernels."""
    experts, inputs, outputs = _padded_shape(
        held.shape, Kernel(inner=PADDED_TO, hidden=PADDED_TO), downward=_is_downward(held.path)
    )
    return experts * inputs * outputs
