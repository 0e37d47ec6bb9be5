"""What an engine says of the CUDA graphs that it captures of a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memsheet.arith import Count, agreed, ceil_div, minimum
from memsheet.formulas.pipeline import in_flight
from memsheet.frozen import dataclass, field
from memsheet.plan.model import Block, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import MEGATRON, formula
from memsheet.sheet import Bytes, Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What an engine's graphs hold beside what layers keep anyway. ``static``: tensors, by path. ``outputs``:
    segments of the pool that nothing else gets, in which torch counts no tensor between two replays.
    ``pooled``: whether a tensor lies in the pool, by its component and path. ``whole``: no layer computes
    outside of graphs; ``step``: neither does anything else between the first forward and the last backward.
    ``captures``: how many micro-batches have graphs of their own. ``before``: what stands between two steps
    when the capture begins, before the pool has anything; its high end may stay for good.
    """

    static: Mapping[str, Bytes]
    outputs: Bytes
    pooled: Callable[[Component, str], bool]
    whole: bool
    step: bool
    captures: Count
    before: Mapping[str, Bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@formula(
    cites=MEGATRON,
    at=(
        "23e00ed pipeline_parallel/schedules.py:650-760: 2 (p - r - 1) + (v - 1) p forwards of chunks come "
        "first, then one forward and one backward in turn"
    ),
)
def interleaved_in_flight(stages: Count, chunks: Count, stage: Count, microbatches: Count) -> Count:
    """Micro-batches of single chunks that a stage (0 is the first) keeps at its peak."""
    return minimum(microbatches * chunks, 2 * (stages - stage - 1) + (chunks - 1) * stages + 1)


def chunks_in_flight(plan: Plan, stage: Count) -> Count:
    """Micro-batches whose static buffers a stage has at once, each of one chunk of its layers: buffers of one
    whose backward is over are taken again (Megatron-LM d98e8a6 transformer/cuda_graphs.py:2322,
    _get_sample_arguments).
    """
    mesh = plan.mesh
    if agreed(mesh.pp == 1):
        return 1
    if agreed(mesh.vpp == 1):
        return in_flight(plan.schedule, mesh.pp, stage, plan.accumulation)
    return interleaved_in_flight(mesh.pp, mesh.vpp, stage, plan.accumulation)


def every_layer_bytes(spec: ModelSpec, plan: Plan, flights: Count, one: Callable[[Block], Count]) -> Count:
    """Bytes of all layers of a rank, each chunk of them in ``flights``."""
    found: Count = sum(
        run.count * one(block) for stack in spec.stacks for run in stack.runs for block in run.pattern
    )
    return ceil_div(flights * found, plan.mesh.vpp)
