"""Steps under fully_shard in a pipeline: units that the first micro-batch gathers and the last one's
reduction lets go of, and what a stage receives and sends. Line numbers are of torch 2.13
distributed/pipelining.
"""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.formulas.pipeline import in_flight
from memsheet.formulas.replay.gathered import GatheredUnit, GatheredUnits
from memsheet.formulas.replay.order import FIRST, LAST
from memsheet.formulas.replay.script import Played
from memsheet.formulas.replay.tape_logs import REDUCES
from memsheet.formulas.sharding.per_parameter_shards import fsdp_wrapping
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
        self.sent: list[int | None] = []  # outputs of micro-batches in flight, in order
        self.output: list[int] = []  # what is still named of the last stage's
        for placed in self.placed.values():
            placed.stays = not self.plan.reshard_after_forward

    def load(self) -> None:
        """With a buffer for each micro-batch of what comes from either side (stage.py:329, 2251). What the
        first layer keeps of a micro-batch in flight is one of them.
        """
        super().load()
        if not self.layers:
            return
        size, count = int(self.layers[-1].part.output), int(self.plan.accumulation)
        flying = int(in_flight(self.plan.schedule, self.plan.mesh.pp, self.told.stage, count))
        flying *= self.layers[0].part.keeps_input
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
                self.later = True
            else:
                waiting.append(self.forward())
                self._name_output(waiting[-1][1])
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
        steady = count - warm if fsdp_wrapping(plan).keeps_outputs else min(count - warm, AHEAD)
        return [False] * warm + [True, False] * steady + [True] * warm

    def send_output(self, output: int) -> None:
        """Kept until its backward (stage.py, forward_one_chunk)."""
        self.sent.append(output)

    def _name_output(self, loss: Played | None) -> None:
        """What the loss was taken of stays though the loss has no use of it, and the one before goes, unless
        all are kept to the end.
        """
        if loss is None:
            return
        if not fsdp_wrapping(self.plan).keeps_outputs:
            self.script.give(self.output)
            self.output = []
        if loss_reduces_head(self.plan):
            self._reduce_in_loss(self.placed[LAST])
        there = loss.part.own.tape.handed & {*loss.held}
        self.sent.append(None if there else self._take_output())

    def _take_output(self) -> int:
        assert self.walk.head is not None
        return self.script.take(int(self.walk.head.part.output))

    def part_backward(
        self, played: Played, gradient: int | None, workspace: int = 0
    ) -> tuple[list[int], int | None]:
        """Of the loss: what it was taken of stays."""
        found = super().part_backward(played, gradient, workspace)
        if self.sent and self.sent[0] is None:
            self.sent[0] = self._take_output()
        return found

    # ---- gradients, which wait whole -----------------------------------------------------------------------

    def take_gradients(self, number: int, made: Sequence[int]) -> None:
        placed = self.placed[number]
        if number == LAST and loss_reduces_head(self.plan):
            self.script.give(made)
            return
        if self.root is not None and number == LAST:
            self.waiting = list(made)
            return
        if self.root is not None and number == FIRST:
            made, self.waiting = [*self.waiting, *made], []
        self._add_whole(placed, made)

    def backward(self, played: list[Played], loss: Played | None, chunk: int = 0) -> None:
        """The root's gradients are added when all others are, where no embeddings are behind them."""
        super().backward(played, loss, chunk)
        done, self.sent = [one for one in self.sent[:1] if one is not None], self.sent[1:]
        if loss is None:
            self.script.give(done)
        else:
            self.output += done
        if self.root is not None and self.waiting:
            made, self.waiting = self.waiting, []
            self._add_whole(self.root, made)

    def _add_whole(self, placed: GatheredUnit, made: Sequence[int]) -> None:
        """To what waits."""
        if id(placed) in self.unreduced:
            self.script.give(made)
        else:
            self.unreduced[id(placed)] = self.widened(placed.unit, made)

    def _reduce_in_loss(self, placed: GatheredUnit) -> None:
        """The loss has reduced the head's gradient, which is added to that of earlier micro-batches, and let
        go of the head.
        """
        self.reshard(placed)
        shard = self.script.take(placed.unit.reduced, REDUCES)
        if id(placed) in self.unreduced:
            self.script.give((shard,))
        else:
            self.unreduced[id(placed)] = []
            self.gradients.append(shard)

    def _reduce_all(self) -> None:
        """One unit after another, in the order of the model's modules (stage.py:1184-1191)."""
        placed = [
            self.placed[number] for number in (FIRST, *range(len(self.layers)), LAST) if number in self.placed
        ]
        self.unreduced = {key: own for key, own in self.unreduced.items() if own}
        placed = [each for each in placed if id(each) in self.unreduced]
        for each in {id(one): one for one in placed}.values():
            self._reduce_unit(each)
        self.end_backward()

    def _reduce_unit(self, placed: GatheredUnit) -> None:
        self.reshard(placed)
        self.reduce_whole(placed.unit, self.unreduced.pop(id(placed)))


RUN = StagedUnits
