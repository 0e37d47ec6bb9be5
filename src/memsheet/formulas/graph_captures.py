"""What an engine says of the CUDA graphs that it captures of a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memsheet.arith import Count, agreed, ceil_div, minimum
from memsheet.formulas.pipeline import in_flight
from memsheet.frozen import dataclass
from memsheet.plan.model import Block, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import MEGATRON, formula
from memsheet.sheet import Bytes, Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What an engine's graphs hold beside what layers keep anyway. ``static``: tensors, by path. ``outputs``:
    segments of the pool that nothing else gets, in which torch counts no tensor between two replays. ``pooled``:
    whether a tensor lies in the pool, by its component and path. ``whole``: no layer computes outside of graphs;
    ``step``: neither does anything else between the first forward and the last backward. ``captures``: how many
    micro-batches have graphs of their own.
    """

    static: Mapping[str, Bytes]
    outputs: Bytes
    pooled: Callable[[Component, str], bool]
    whole: bool
    step: bool
    captures: Count
    notes: tuple[str, ...] = ()


@formula(
    cites=MEGATRON,
    at=(
        "d98e8a6 transformer/cuda_graphs.py:2322 _get_sample_arguments: buffers of a micro-batch whose backward "
        "is over are taken again, so there are as many as it has in flight; schedules.py: 2 (p - r - 1) + (v - 1) "
        "p forwards of chunks come first"
    ),
)
def chunks_in_flight(plan: Plan, stage: Count) -> Count:
    """Micro-batches whose static buffers a stage has at once, each of one chunk of its layers."""
    mesh, each = plan.mesh, plan.accumulation
    if agreed(mesh.pp == 1):
        return 1
    if agreed(mesh.vpp == 1):
        return in_flight(plan.schedule, mesh.pp, stage, each)
    return minimum(each * mesh.vpp, 2 * (mesh.pp - stage - 1) + (mesh.vpp - 1) * mesh.pp + 1)


def every_layer_bytes(spec: ModelSpec, plan: Plan, flights: Count, one: Callable[[Block], Count]) -> Count:
    """Bytes of all layers of a rank, each chunk of them in ``flights``."""
    found: Count = sum(
        run.count * one(block) for stack in spec.stacks for run in stack.runs for block in run.pattern
    )
    return ceil_div(flights * found, plan.mesh.vpp)
