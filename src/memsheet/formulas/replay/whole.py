"""Steps of a model that every rank has whole: gradients stay where autograd leaves them, and ranks of
DistributedDataParallel hold a flat copy of them in buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from memsheet.formulas.replay.optimizer_step import STATES_FROM_START, state_sizes
from memsheet.formulas.replay.order import Run
from memsheet.formulas.replay.script import Played, play_backward
from memsheet.formulas.states.held import HeldTensor, gradient_dtype
from memsheet.formulas.states.optimizers import fused_backward_step
from memsheet.units import MIB

BUCKET, FIRST_BUCKET = 25 * MIB, MIB
"""bucket_cap_mb, and the size of the first (torch 2.13 nn/parallel/distributed.py:688, 1193-1200)."""


class WholeModel(Run):
    """Every parameter as it is."""

    steps_early = stretches_layers = True

    def prepare(self) -> None:
        self.tied: int | None = None  # the head's part of a table's gradient
        self.early = self.plan.optimizer_in_backward
        self.fresh: dict[int, list[HeldTensor]] = {}  # parameters that have no states yet, by their elements
        name = self.plan.optimizer.name if self.plan.optimizer else None
        for h in self.all_parameters() if self.early and name not in STATES_FROM_START else ():
            self.fresh.setdefault(int(h.elements), []).append(h)

    @property
    def adds(self) -> bool:
        return self.early or super().adds

    def part_backward(
        self, played: Played, gradient: int | None, workspace: int = 0
    ) -> tuple[list[int], int | None]:
        """Where parameters are stepped in backward, with what hooks do as soon as a gradient is there."""
        if not self.early:
            return super().part_backward(played, gradient, workspace)
        stops = [(at, partial(self._arrive, played, index)) for at, index in played.part.own.arrivals]
        return play_backward(self.script, played, gradient, adds=True, workspace=workspace, stops=stops)

    def _arrive(self, played: Played, index: int, held: dict[int, int]) -> None:
        """A gradient of a tied table waits for that of the look-ups, which joins it."""
        own, walk = played.part.own, self.walk
        entry, number = own.tape.entries[index], held.pop(index)
        elements = int(own.sizes[index] // entry.dtype.nbytes(1))
        if walk.tied and walk.embeddings and elements == walk.embeddings.parameters[0].elements:
            if self.tied is None:
                self.tied = number
                return
            self.script.give([self.tied])
        self._step_one(elements)
        self.script.give([number])

    def _step_one(self, elements: int) -> None:
        plan, script = self.plan, self.script
        waiting = self.fresh.get(elements)
        if waiting:
            sizes = state_sizes(waiting.pop(), elements, plan, self.told.head_elements)
            self.states += script.take_all([size for size in sizes if size])
        how = fused_backward_step(plan)
        script.give(script.take_all([int(how.dtype.nbytes(elements))] * how.copies))

    def end_backward(self) -> None:
        self.tied = None

    def load_beside(self) -> None:
        """DistributedDataParallel's buckets, which are filled in the order in which gradients are ready."""
        if int(self.plan.mesh.dp_replicate) > 1:
            for size in bucket_sizes(
                [
                    int(gradient_dtype(h, self.plan).nbytes(h.elements))
                    for h in reversed(self.all_parameters())
                    if h.trains
                ]
            ):
                self.script.take(size)


def bucket_sizes(gradients: Sequence[int]) -> list[int]:
    """Bytes of the buckets of gradients in the order in which they are ready: a bucket is closed as soon as
    it holds its size (torch csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size).
    """
    found, held, most = list[int](), 0, FIRST_BUCKET
    for size in gradients:
        held += size
        if held >= most:
            found.append(held)
            held, most = 0, BUCKET
    return [*found, *([held] if held else [])]


RUN = WholeModel
