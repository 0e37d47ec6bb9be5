"""Steps under fully_shard in a pipeline: units that the first micro-batch gathers and the last one's reduction
lets go of, and what a stage receives and sends. Line numbers are of torch 2.13 distributed/pipelining.
"""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.formulas.pipeline import in_flight
from memsheet.formulas.replay.gathered import GatheredUnits, Placed
from memsheet.formulas.replay.order import FIRST, LAST
from memsheet.formulas.replay.script import REDUCES, Played
from memsheet.formulas.sharding.per_parameter_sizes import loss_reduces_head
from memsheet.plan.plan import Plan, Schedule

AHEAD = 2
"""Micro-batches beyond those that warm a stage up, from which on all are alike."""
PLAYED = frozenset({Schedule.ONE_F_ONE_B, Schedule.GPIPE})


class StagedUnits(GatheredUnits):
    """A stage that has one chunk of layers."""

    stages = True

    @classmethod
    def plays(cls, plan: Plan) -> bool:
        """Of states on the device, under schedules whose order is written down."""
        known = super().plays(plan) and plan.schedule in PLAYED and plan.mesh.vpp == 1
        return known and not plan.offload.parameters

    def prepare(self) -> None:
        super().prepare()
        self.sent: list[int] = []  # outputs of micro-batches in flight, in order
        self.output: list[int] = []  # what the schedule still names of the last stage's
        for placed in self.placed.values():
            placed.stays = not self.plan.reshard_after_forward

    def load(self) -> None:
        """With a buffer for each micro-batch of what comes from either side (stage.py:329, 2251). That of a
        micro-batch in flight is its first layer's input.
        """
        super().load()
        if not self.layers:
            return
        size, count = int(self.layers[-1].part.output), int(self.plan.accumulation)
        flying = int(in_flight(self.plan.schedule, self.plan.mesh.pp, self.told.stage, count))
        if self.walk.embeddings is None:
            self.script.take_all([size] * (count - flying))
        if self.walk.head is None:
            self.script.take_all([size] * count)

    def step(self) -> None:
        """Forwards until the stages behind have theirs, then one backward and one forward in turn
        (schedules.py:1050-1160).
        """
        self.script.give(self.gradients)
        self.gradients, self.later = [], False
        waiting = list[tuple[list[Played], Played | None]]()
        for backward in self._order():
            if backward:
                self.backward(*waiting.pop(0))
                self.script.give(self.sent[:1])
                self.sent, self.later = self.sent[1:], True
            else:
                waiting.append(self.forward())
                self.script.give(self.output)
                self.output = []
        self._reduce_all()
        self._optimize()
        self.script.give([*self.named, *self.output])
        self.named, self.output = [], []

    def _order(self) -> list[bool]:
        """Of micro-batches, whether each pass is backward."""
        plan, count = self.plan, int(self.plan.accumulation)
        if plan.schedule is Schedule.GPIPE:
            return [False] * count + [True] * count
        warm = min(count, plan.mesh.pp - self.told.stage)
        steady = min(count - warm, AHEAD)
        return [False] * warm + [True, False] * steady + [True] * warm

    def send_output(self, output: int) -> None:
        """Kept until its backward (stage.py, forward_one_chunk)."""
        self.sent.append(output)

    def part_backward(
        self, played: Played, gradient: int | None, workspace: int = 0
    ) -> tuple[list[int], int | None]:
        """Of the loss: what it was taken of is named until the next forward is over."""
        found = super().part_backward(played, gradient, workspace)
        if self.walk.head and self.walk.loss and played.part is self.part(self.walk.loss):
            self.output = [self.script.take(int(self.walk.head.part.output))]
        return found

    # ---- gradients, which wait whole -----------------------------------------------------------------------

    def take_gradients(self, number: int, made: Sequence[int]) -> None:
        placed = self.placed[number]
        if number == LAST and loss_reduces_head(self.plan):
            self.reshard(placed)
            self._add_reduced(placed, made)
            return
        if self.root is not None and number == LAST:
            self.waiting = list(made)
            return
        waiting, self.waiting = (self.waiting, []) if number == FIRST else ([], self.waiting)
        if id(placed) in self.unreduced:
            self.script.give([*waiting, *made])  # added to what waits
        else:
            self.unreduced[id(placed)] = self.widened(placed.unit, [*waiting, *made])

    def _add_reduced(self, placed: Placed, made: Sequence[int]) -> None:
        """The loss has reduced the head's gradient, which is added to that of earlier micro-batches."""
        self.script.give(made)
        shard = self.script.take(placed.unit.reduced, REDUCES)
        if id(placed) in self.unreduced:
            self.script.give((shard,))
        else:
            self.unreduced[id(placed)] = []
            self.gradients.append(shard)

    def _reduce_all(self) -> None:
        """One unit after another, in the order of the model's modules (stage.py:1184-1191)."""
        placed = [self.placed[number] for number in (FIRST, *range(len(self.layers)), LAST) if number in self.placed]
        self.unreduced = {key: own for key, own in self.unreduced.items() if own}
        placed = [each for each in placed if id(each) in self.unreduced]
        for each in {id(one): one for one in placed}.values():
            self._reduce_unit(each)
        self.end_backward()

    def _reduce_unit(self, placed: Placed) -> None:
        self.reshard(placed)
        self.reduce_whole(placed.unit, self.unreduced.pop(id(placed)))
