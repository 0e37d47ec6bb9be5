"""Matrices that Megatron-Core's layer-wise optimizer deals to ranks whole, to be orthogonalized by Muon.

Read at Megatron-LM d98e8a64ddf34856e74b24714e3bedb2f5a39553 (core 0.20; megatron/core/optimizer:
layer_wise_optimizer.py, emerging_optimizers.py) and NVIDIA-NeMo/Emerging-Optimizers
fd7729267109a8848709e9406bf19e53e970c3f4. Embeddings, head and what is no matrix stay with the distributed
optimizer, byte by byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import lcm

from memsheet.arith import Count, at_least, ceil_div, maximum, minimum, round_up, where
from memsheet.formulas.states.held import HeldTensor
from memsheet.plan.dtypes import BF16, FP32
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Role
from memsheet.plan.plan import OptimizerName, Plan
from memsheet.references import MEGATRON, formula

Matrix = tuple[int, int, int]
"""Rows, columns, and how many there are of it."""
PARAMETER_ALIGNMENT, BUCKET_ALIGNMENT = 64, 128
"""Elements that a parameter starts at a multiple of, and that a bucket is padded to beside the ranks
(param_and_grad_buffer.py:555-582).
"""
UNEVEN_PERCENT = 130
"""Elements that a rank is dealt at most, of its even share, while another one has room
(layer_wise_optimizer.py:343, _NUMEL_EPSILON).
"""


SHARDED_LAYOUT = 18
"""The first minor release of core 0 whose buffers have a shard a rank, each with whole matrices in it."""


def stated_release(plan: Plan) -> int | None:
    """The minor release of Megatron-Core 0 that a plan names, where it names one."""
    found = re.search(r"\b0\.(\d+)", plan.engine_version or "")
    return int(found[1]) if found and plan.engine_version != engine_of(plan).tested else None


def deals_without_layout(plan: Plan) -> bool:
    """Whether all parameters are dealt one by one, to be gathered flat: core 0.17 and before, where a plan
    says so.
    """
    release = stated_release(plan)
    return release is not None and release < SHARDED_LAYOUT


def steps_with_muon(plan: Plan) -> bool:
    return plan.optimizer is not None and plan.optimizer.name is OptimizerName.MUON


def is_orthogonalized(held: HeldTensor, plan: Plan) -> bool:
    """Whether Muon steps a tensor: matrices of layers, each expert's too; not embeddings, nor the head."""
    return steps_with_muon(plan) and held.role in (Role.LINEAR, Role.EXPERT, Role.ROUTER)


@formula(
    cites=MEGATRON,
    at=(
        "d98e8a6 optimizer/layer_wise_optimizer.py:332-378: the costliest matrix first, to the rank with the "
        "least work of those that have room, else to the one with the fewest elements"
    ),
    counts="int",
)
def largest_dealt_elements(matrices: Sequence[Matrix], ranks: int) -> int:
    """Elements of the rank that is dealt most matrices, as they lie in the buffer."""
    total = sum(rows * columns * times for rows, columns, times in matrices)
    room = total * UNEVEN_PERCENT // (100 * ranks)
    dealt, work = [0] * ranks, [0] * ranks
    for rows, columns, times in sorted(matrices, key=lambda m: -m[0] * m[1] * min(m[:2])):
        size, cost = rows * columns, rows * columns * min(rows, columns)
        for _ in range(times):
            ends = [round_up(taken, PARAMETER_ALIGNMENT) + size for taken in dealt]
            fitting = [rank for rank in range(ranks) if ends[rank] <= room]
            rank = min(fitting, key=work.__getitem__) if fitting else min(range(ranks), key=dealt.__getitem__)
            dealt[rank], work[rank] = ends[rank], work[rank] + cost
    return max(dealt)


def dealt_elements(matrices: Sequence[tuple[Count, Count, Count]], ranks: Count) -> Count:
    """The same, as a shard of the buffer; an even share where several plans are asked about at once."""
    counts = [number for matrix in matrices for number in matrix]
    if not all(isinstance(number, int) for number in (ranks, *counts)):
        return ceil_div(sum(rows * columns * times for rows, columns, times in matrices), ranks)
    if ranks == 1:
        return sum(rows * columns * times for rows, columns, times in matrices)
    aligned = lcm(PARAMETER_ALIGNMENT, lcm(ranks, BUCKET_ALIGNMENT) // ranks)
    return round_up(largest_dealt_elements(matrices, ranks), aligned)


SPLIT_BY_COLUMNS = ("linear_proj", "linear_fc2", "experts.linear_fc2")
UNSPLIT = ("linear_q_down_proj", "linear_kv_down_proj", "router")


def whole_sides(name: str, rows: Count, columns: Count, ranks: Count) -> tuple[Count, Count]:
    """The shorter and the longer side of a matrix of which tensor-parallel ranks have a part each."""
    if name not in UNSPLIT:
        split = name in SPLIT_BY_COLUMNS
        rows, columns = (rows, columns * ranks) if split else (rows * ranks, columns)
    return minimum(rows, columns), maximum(rows, columns)


@formula(
    cites=MEGATRON,
    at=(
        "Emerging-Optimizers fd77292 orthogonalized_optimizers/muon_utils.py newton_schulz, "
        "newton_schulz_tp: the normed matrix in fp32 and bf16, two iterates and two Gram matrices in bf16, "
        "the result in fp32, and two multiples of it (emerging_optimizers.py:243-255)"
    ),
)
def newton_schulz_bytes(short: Count, long: Count, ranks: Count) -> Count:
    """Bytes that orthogonalizing a matrix takes, gathered of ``ranks`` of tensor parallelism (as parts, and
    joined).
    """
    whole = short * long
    gathered = where(at_least(ranks, 2), 2 * FP32.nbytes(whole), 0)
    iterates = BF16.nbytes(2 * whole + 2 * short * short)
    back = BF16.nbytes(whole) + FP32.nbytes(whole)
    scaled = FP32.nbytes(whole) + 2 * FP32.nbytes(ceil_div(whole, ranks))
    return maximum(gathered + maximum(iterates, back), scaled)
