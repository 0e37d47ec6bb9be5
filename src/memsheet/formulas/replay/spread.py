"""Steps of one card of several that one process has: what comes from the card before is copied there, and
goes when the layers behind have it (accelerate 1.15.0 hooks.py, AlignDevicesHook.pre_forward).
"""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.formulas.groups import Group
from memsheet.formulas.replay.whole import WholeModel
from memsheet.plan.plan import Plan, Schedule


class CardOfSeveral(WholeModel):
    """The layers of one card, with whole parameters."""

    @classmethod
    def plays(cls, plan: Plan) -> bool:
        return plan.schedule is Schedule.NAIVE and super().plays(plan)

    @property
    def has_inputs(self) -> bool:
        return self.walk.embeddings is not None

    def prepare(self) -> None:
        super().prepare()
        self.copies: dict[int, list[int]] = {}

    def receive_input(self) -> int | None:
        return self._take_hidden(0)

    def receive_gradient(self) -> int | None:
        return self._take_hidden(-1)

    def _take_hidden(self, layer: int) -> int | None:
        return self.script.take(int(self.layers[layer].part.output)) if self.layers else None

    def enter(self, group: Group, number: int) -> None:
        super().enter(group, number)
        if self.told.copies and number >= 0:
            self.copies[number] = self.script.take_all(self.told.copies)

    def take_gradients(self, number: int, made: Sequence[int]) -> None:
        super().take_gradients(number, made)
        self.script.give(self.copies.pop(number, []))

    def leave_forward(self) -> None:
        super().leave_forward()
        if self.told.returned:
            self.script.give((self.script.take(self.told.returned),))


RUN = CardOfSeveral
