"""Weights in eight bits that share a scale a block: what tensor-parallel ranks cut through a block, and what
a server makes of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, isqrt

from memsheet.arith import Count
from memsheet.errors import InputError, Problem
from memsheet.formulas.states.held import module_of, parameter_storage_dtype
from memsheet.formulas.states.held_shapes import held_shape
from memsheet.formulas.states.params import parameter_tensors
from memsheet.frozen import dataclass
from memsheet.plan.dtypes import FP32
from memsheet.plan.hardware import version_of
from memsheet.plan.model import ModelSpec, Role, Weight
from memsheet.plan.plan import Mesh, Plan
from memsheet.references import VLLM, formula
from memsheet.sheet import Bytes

MERGED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Projections that both servers join, each of which keeps blocks of its own."""
JOINS_SINCE = (0, 14, 0)
"""From when on vLLM lets joined projections end inside a block (vllm-project/vllm#30836 of December 2025:
linear.py _maybe_allow_fp8_block_shape_mismatch); others are refused (v0.11.0
layers/quantization/utils/fp8_utils.py validate_fp8_block_shape).
"""
REFUSED_TO, REFINED_FROM, FINEST = (0, 26, 0), (0, 31, 0), 32
"""vLLM refuses experts that are cut inside a block (fp8.py Fp8MoEMethod.create_weights: "is not divisible by
weight quantization block_n") in all that was read to 0.25 (July 2026); from 0.31 on at the latest it gives
them finer blocks of 32 elements or more where those divide everything, and pads them else
(fused_moe/oracle/fp8.py refine_fp8_moe_block_shape, pad_tp_shard_to_weight_blocks, documented in September
2026). SGLang refuses them (v0.5.23 layers/quantization/fp8.py create_fp8_moe_weight_), but on AMD's cards,
where its kernels pad.
"""


@dataclass(frozen=True, slots=True)
class CutBlock:
    """A weight whose part on a rank, of ``elements`` along the cut, is no multiple of a block's ``side``.
    ``times``: layers that have it.
    """

    path: str
    shape: tuple[Count, ...]
    cut: int
    elements: int
    side: int
    routed: bool
    times: int

    @property
    def joined(self) -> bool:
        return self.path.split(".")[-2] in MERGED

    @property
    def refined(self) -> int:
        """The side of the finest blocks that divide the part on a rank, the checkpoint's blocks and the other
        dimension.
        """
        others = (int(size) for place, size in enumerate(self.shape[1:], 1) if place != self.cut)
        return gcd(self.side, self.elements, *others)


def cut_blocks(part: ModelSpec, plan: Plan) -> Iterator[CutBlock]:
    """Every weight of a released checkpoint in blocks that is cut inside one."""
    if part.quantization is None or part.quantization.weights != "fp8-block" or plan.quantization is None:
        return
    for path, weight, times in parameter_tensors(part):
        dtype = parameter_storage_dtype(path, weight, plan)
        if dtype.name != "fp8-block" or weight.cut is None or len(weight.shape) < 2:
            continue
        side, mesh = isqrt(dtype.scales[0].block), _mesh_of(weight, plan)
        shape, routed = held_shape(weight, mesh), weight.role is Role.EXPERT
        gates = 2 if routed and "gate_up" in path else 1
        elements = int(shape[weight.cut]) // gates
        if elements % side and (mesh.etp if routed else mesh.tp) > 1:
            yield CutBlock(path, shape, weight.cut, elements, side, routed, times)


def _mesh_of(weight: Weight, plan: Plan) -> Mesh:
    """The ranks that share a weight: those of a group for attention, and in vLLM for a layer without experts
    too.
    """
    mesh = plan.mesh
    own = "attn" in weight.path or "attention" in weight.path or plan.engine == "vllm"
    tp = 1 if plan.dp_dense and not own else mesh.attention_tp if own else mesh.tp
    return Mesh(tp=tp, ep=mesh.ep, etp=mesh.etp)


def check_cut_blocks(part: ModelSpec, plan: Plan, *, vendor: str | None) -> None:
    """Raise InputError where the server is known to refuse what is cut inside a block."""
    refused = [one for one in cut_blocks(part, plan) if _is_refusal_certain(one, plan, vendor)]
    if refused:
        raise InputError(tuple(_cut_block_problem(one, plan, part) for one in refused[:1]))


def _is_refusal_certain(one: CutBlock, plan: Plan, vendor: str | None) -> bool:
    version = version_of(plan.engine_version)
    if vendor == "AMD" and one.routed:
        return False
    if plan.engine == "sglang":
        return True
    if one.routed:
        return version < REFUSED_TO
    return version < (JOINS_SINCE if one.joined else REFINED_FROM)


def _cut_block_problem(one: CutBlock, plan: Plan, part: ModelSpec) -> Problem:
    what = "its experts' inner size" if one.routed else one.path.removesuffix(".weight").split("*.")[-1]
    reason = (
        f"leaves {one.elements} elements of {what} on a rank, no multiple of the {one.side} that share a "
        f"scale in {part.name}'s weights: "
        f"{plan.engine} refuses to load them"
    )
    fewer = next(
        (
            tp
            for tp in range(int(plan.mesh.tp) - 1, 0, -1)
            if plan.mesh.tp % tp == 0 and not (one.elements * plan.mesh.tp // tp) % one.side
        ),
        1,
    )
    whole = f", or --ep {plan.mesh.tp}, which leaves experts whole" if one.routed else ""
    return Problem(field="mesh.tp", value=plan.mesh.tp, reason=reason, hint=f"--tp {fewer}{whole}")


def cut_block_notes(part: ModelSpec, plan: Plan, vendor: str | None) -> Iterator[str]:
    """What to know of weights that are cut inside a block and may load."""
    said = {
        (one.routed, one.elements, one.side, one.refined)
        for one in cut_blocks(part, plan)
        if not _is_refusal_certain(one, plan, vendor) and not one.joined
    }
    for routed, elements, side, refined in sorted(said):
        what = "experts" if routed else "a projection"
        does = (
            (
                f"its newest releases give them blocks of {refined} (Triton's kernels alone), older ones "
                "refuse to load them"
            )
            if routed and refined >= FINEST
            else "releases that do not pad them refuse to load them"
        )
        yield (
            f"a rank has {elements} elements of {what}, no multiple of the {side} that share a scale: "
            f"{does}; fewer ranks or --ep leave blocks whole"
        )


@formula(
    cites=VLLM,
    at="fused_moe/oracle/fp8.py: scales of finer blocks, else the part on a rank padded to whole blocks",
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
