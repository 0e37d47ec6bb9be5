"""Layers that are recomputed together: what is kept between forward and backward, and what there is while
backward passes through.

Layers are numbered in order of execution.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Moment
from memsheet.frozen import dataclass
from memsheet.plan.plan import Plan
from memsheet.references import SUBLINEAR, formula


@formula(
    cites=SUBLINEAR,
    at="section 4: only the input of each segment is kept; a segment is computed again before its backward",
)
def segment_length(layers: int, plan: Plan) -> int:
    """The longest stretch: every k layers, or the stack cut into k segments that differ by one at most."""
    recompute = plan.recompute
    if recompute.segments:
        return -(-layers // recompute.segments)
    return recompute.every


@dataclass(frozen=True, slots=True, eq=False)
class RecomputeSegments:
    """The first layer of each stretch, and all layers."""

    starts: tuple[int, ...]
    layers: tuple[Group, ...]

    def kept_inputs(self, first: int, after: int) -> Moment:
        """The inputs that forward keeps of layers ``first`` to ``after``."""
        number = bisect_left(self.starts, after) - bisect_left(self.starts, first)
        return [(number, self.layers[first].part.retained if number else EMPTY)]

    def start(self, index: int) -> int:
        """The first layer of the stretch of one."""
        return self.starts[bisect_right(self.starts, index) - 1]

    def entered(self, index: int) -> Moment:
        """What the stretch was entered with, which its code names until it is through, where nothing else
        keeps it.
        """
        first = self.layers[self.start(index)]
        return [(1, first.part.arriving)] if first.part.hosted and self.start(index) < index else []

    def inside(self, index: int) -> Moment:
        """What the layers of its stretch that come before a layer keep while its own backward runs; the
        stretch's input is kept besides.
        """
        start = self.start(index)
        kept: list[tuple[int, BytesByPath]] = [
            (1, group.plain.retained) for group in self.layers[start:index]
        ]
        return [*kept, *_without_input(self.layers[start])] if kept else []

    def bodies(self, index: int) -> tuple[Moment, ...]:
        """Candidates for the largest moment of a layer's own backward: the last of a stretch runs its forward
        again before.
        """
        group, first = self.layers[index], self.start(index) == index
        behind: Moment = [
            (1, group.part.behind),
            *([(1, group.part.retained)] if first and not group.plain.keeps_input else []),
        ]
        last = index + 1 == len(self.layers) or index + 1 in self.starts
        named = [] if self.layers[self.start(index)].plain.keeps_input else self.entered(index)
        return (behind, [(1, group.part.again), *named]) if last else (behind,)


def _without_input(group: Group) -> Moment:
    return [(-1, group.part.retained)] if group.plain.keeps_input else []


def recompute_segments(walk: StageLayers, plan: Plan) -> RecomputeSegments | None:
    """The stretches of a stage; None where every layer is by itself."""
    if not plan.recompute.stretched:
        return None
    layers = tuple(group for run in walk.layers for _ in range(run.count) for group in run.pattern)
    if segment_length(len(layers), plan) == 1:
        return None
    return RecomputeSegments(plan.recompute.starts(len(layers)), layers)
