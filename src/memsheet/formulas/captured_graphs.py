"""CUDA graphs of a training step: what they hold beside its tensors, and what their pool keeps to its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from memsheet.arith import Count, maximum
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.operators.blocks import block_operators, summed_widths
from memsheet.formulas.sharding.resident_state import ResidentState, with_added_states
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Key
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec
from memsheet.references import CUDA_GRAPH_NODES, formula
from memsheet.sheet import Bytes, Component, Instant
from memsheet.units import KIB

if TYPE_CHECKING:
    from memsheet.formulas.graph_captures import Captured


POOLED: Key = (Component.ALLOCATOR_SLACK, "cuda_graphs/saved")
"""What the pool keeps when no tensor stands in it any more."""
WORKED_IN: Key = (Component.ALLOCATOR_SLACK, "cuda_graphs/temporaries")
"""What layers work in while they are captured, which nothing outside of graphs gets."""
OUTPUTS: Key = (Component.ALLOCATOR_SLACK, "cuda_graphs/outputs")
NODES: Key = (Component.CONTEXT, "cuda_graphs/nodes")
LAUNCH_BYTES = 64 * KIB
"""Of device memory that a launch of a graph takes with drivers before 550; later ones take less."""
PASSES = 3
"""Launches of a training step in those of a forward: backward has one for inputs and one for weights."""


@formula(
    cites=CUDA_GRAPH_NODES,
    at="'Dynamic Shape Support': 64 KB a launch until driver 550; one an operator forward, two backward",
)
def graph_node_bytes(spec: ModelSpec, captures: Count) -> Count:
    """The most that the driver keeps of the launches of a rank's layers, captured so many times."""
    launches = sum(
        run.count * (len(block_operators(block)) + 2 * len(summed_widths(block)))
        for stack in spec.stacks
        for run in stack.runs
        for block in run.pattern
    )
    return PASSES * launches * captures * LAUNCH_BYTES


def captured_temporaries(walks: Iterable[StageLayers]) -> Count:
    """The most that a layer works in beside what it keeps, forward or backward."""
    most: Count = 0
    for walk in walks:
        for group in (group for layers in walk.layers for group in layers.pattern):
            kept = group.part.retained.total
            most = maximum(most, maximum(group.part.forward.total, group.part.backward.total) - kept)
    return most


def with_graphs(
    kept: ResidentState, walks: Iterable[StageLayers], model: ModelSpec, found: Captured | None
) -> ResidentState:
    """What the engine keeps, its graphs with it."""
    if found is None:
        return kept
    worked_in = 0 if found.step else captured_temporaries(walks)
    rows = {
        **{(Component.CUDA_GRAPHS, path): size for path, size in found.static.items()},
        OUTPUTS: found.outputs,
        WORKED_IN: Bytes(0, worked_in if found.whole else 0, worked_in),
        NODES: Bytes(0, 0, graph_node_bytes(model, found.captures)),
    }
    added = with_added_states(kept, BytesByPath.of((key, size.value) for key, size in rows.items()))
    before = {(Component.CUDA_GRAPHS, path): size for path, size in found.before.items()}
    added = with_added_states(added, BytesByPath.of((key, 0) for key in before))
    ends = {key: (size.low, size.high) for key, size in (rows | before).items()}
    return replace(added, ranges={**kept.ranges, **ends}, notes=(*kept.notes, *found.notes))


def pooled_at_step(
    peaks: Mapping[Instant, BytesByPath], kept: ResidentState, found: Captured | None
) -> tuple[BytesByPath, ResidentState]:
    """Between two backwards: what was made to capture, and what a pool keeps later beyond that, which is the
    most of what was captured at any instant; with the state whose ranges hold both at once.
    """
    if found is None:
        return EMPTY, kept
    most: Count = 0
    for instant in (Instant.FORWARD, Instant.LOSS, Instant.BACKWARD):
        if instant in peaks:
            held = peaks[instant].held.items()
            most = maximum(most, sum(size for key, size in held if found.pooled(*key)))
    before = [((Component.CUDA_GRAPHS, path), size.value) for path, size in found.before.items()]
    beyond = maximum(0, most - sum(size for _, size in before))
    return BytesByPath.of([(POOLED, beyond), *before]), replace(
        kept, ranges={**kept.ranges, POOLED: (beyond, most)}
    )
