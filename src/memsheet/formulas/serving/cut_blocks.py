"""Weights in eight bits that share a scale a block: what tensor-parallel ranks cut through a block, and what
a server makes of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd, isqrt

from memsheet.arith import Count
from memsheet.errors import InputError, Problem
from memsheet.formulas.states.held_shapes import held_shape
from memsheet.formulas.states.params import parameter_tensors
from memsheet.frozen import dataclass
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import ModelSpec, Role, Weight
from memsheet.plan.plan import Mesh, Plan
from memsheet.plan.stored_dtypes import parameter_storage_dtype

MERGED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Projections that both servers join, each of which keeps blocks of its own."""
FINEST = 32
"""The least elements of the finer blocks that a server gives experts which are cut inside one."""


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


Refuses = Callable[[CutBlock, Plan], bool]
"""Whether a server refuses to load such a weight."""


def cut_blocks(part: ModelSpec, plan: Plan) -> Iterator[CutBlock]:
    """Every weight in blocks that is cut inside one, of a checkpoint that was released so or is asked for. A
    weight that has less than one block along the cut is none: releases leave it whole (NVIDIA/srt-slurm
    c88ef731 recipes/qwen3.5 serve Qwen3.5-397B-A17B-FP8, whose in_proj_b has 64 rows, on four ranks).
    """
    if plan.quantization is None:
        return
    for path, weight, times in parameter_tensors(part):
        dtype = parameter_storage_dtype(path, weight, plan)
        if dtype.name != "fp8-block" or weight.cut is None or len(weight.shape) < 2:
            continue
        side, mesh = isqrt(dtype.scales[0].block), _mesh_of(weight, plan)
        shape, routed = held_shape(weight, mesh), weight.role is Role.EXPERT
        gates = 2 if routed and "gate_up" in path else 1
        elements = int(shape[weight.cut]) // gates
        if int(weight.shape[weight.cut]) // gates < side:
            continue
        if elements % side and (mesh.etp if routed else mesh.tp) > 1:
            yield CutBlock(path, shape, weight.cut, elements, side, routed, times)


def _mesh_of(weight: Weight, plan: Plan) -> Mesh:
    """The ranks that share a weight: those of a group for attention, and for a layer without experts too
    unless all groups cut it.
    """
    mesh, groups_cut = plan.mesh, engine_of(plan).serving.cuts_dense_over_groups
    own = "attn" in weight.path or "attention" in weight.path or not groups_cut
    tp = 1 if plan.options.dp_dense and not own else mesh.attention_tp if own else mesh.tp
    return Mesh(tp=tp, ep=mesh.ep, etp=mesh.etp)


def check_cut_blocks(part: ModelSpec, plan: Plan, *, vendor: str | None, refuses: Refuses) -> None:
    """Raise InputError where the server is known to refuse what is cut inside a block. ``refuses``: whether
    it does on cards of NVIDIA.
    """
    refused = [one for one in cut_blocks(part, plan) if _is_refusal_certain(one, plan, vendor, refuses)]
    if refused:
        raise InputError(tuple(_cut_block_problem(one, plan, part) for one in refused[:1]))


def _is_refusal_certain(one: CutBlock, plan: Plan, vendor: str | None, refuses: Refuses) -> bool:
    """On AMD's cards kernels pad experts."""
    return not (vendor == "AMD" and one.routed) and refuses(one, plan)


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
    return Problem(
        field="mesh.tp", value=plan.mesh.tp, reason=reason, hint=f"--tp {fewer}{whole}", refused=True
    )


def cut_block_notes(part: ModelSpec, plan: Plan, vendor: str | None, refuses: Refuses) -> Iterator[str]:
    """What to know of weights that are cut inside a block and may load."""
    said = {
        (one.routed, one.elements, one.side, one.refined)
        for one in cut_blocks(part, plan)
        if not _is_refusal_certain(one, plan, vendor, refuses) and not one.joined
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
