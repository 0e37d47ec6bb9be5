"""Weights in blocks that vLLM's ranks cut inside one: from when on it loads them, and what it makes of
experts.
"""

from __future__ import annotations

from memsheet.engines.vllm.facts import REFINED_FROM
from memsheet.formulas.serving.cut_blocks import FINEST, CutBlock, cut_blocks
from memsheet.formulas.states.held import module_of
from memsheet.plan.dtypes import FP32
from memsheet.plan.hardware import version_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes

JOINS_SINCE = (0, 14, 0)
"""From when on vLLM lets joined projections end inside a block (vllm-project/vllm#30836 of December 2025:
linear.py _maybe_allow_fp8_block_shape_mismatch); others are refused (v0.11.0
layers/quantization/utils/fp8_utils.py validate_fp8_block_shape).
"""
REFUSED_TO = (0, 26, 0)
"""vLLM refuses experts that are cut inside a block (fp8.py Fp8MoEMethod.create_weights: "is not divisible by
weight quantization block_n") in all that was read to 0.25 (July 2026); from REFINED_FROM on at the latest it
gives them finer blocks of 32 elements or more where those divide everything, and pads them else
(fused_moe/oracle/fp8.py refine_fp8_moe_block_shape, pad_tp_shard_to_weight_blocks, documented in September
2026).
"""


def refuses_cut_block(one: CutBlock, plan: Plan) -> bool:
    """Whether the release is known to refuse a weight that is cut inside a block."""
    version = version_of(plan.engine_version)
    if one.routed:
        return version < REFUSED_TO
    return version < (JOINS_SINCE if one.joined else REFINED_FROM)


@formula(
    cites=PAGED_SERVER_CODE,
    at="fused_moe/oracle/fp8.py: scales of finer blocks, else the part on a rank padded to whole blocks",
    counts="int",
)
def refined_experts(part: ModelSpec, plan: Plan) -> dict[str, Bytes]:
    """Bytes by module path of experts that are cut inside a block: with scales of finer blocks, and at the
    most padded to whole ones.
    """
    found: dict[str, Bytes] = {}
    for one in cut_blocks(part, plan):
        if not one.routed:
            continue
        experts, rows, columns = (int(size) for size in one.shape)
        elements, gates = experts * rows * columns, int(one.shape[one.cut]) // one.elements
        whole = -(-one.elements // one.side) * one.side * gates
        padded = elements // int(one.shape[one.cut]) * whole
        large = padded + FP32.nbytes(-(-padded // one.side**2))
        fine = elements + FP32.nbytes(elements // one.refined**2) if one.refined >= FINEST else large
        path = module_of(one.path)
        low, value, high = sorted((fine, fine, large))
        found[path] = found.get(path, Bytes(0, 0, 0)) + Bytes(
            one.times * low, one.times * value, one.times * high
        )
    return found
