"""What states know of a plan where layers do not decide them, and what was made of that: plans that differ in
how their layers run alone keep the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from memsheet.formulas.alike_rows import hash_of_single
from memsheet.formulas.layers_of_plan import equal_plans, number_of_plans
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Loss, Plan, Recompute

T = TypeVar("T")
NOTHING_RECOMPUTED = Recompute()


def plan_of_states(plan: Plan) -> Plan:
    """A plan without what its states do not know: what is recomputed, and how the loss is."""
    return replace(plan, recompute=NOTHING_RECOMPUTED, loss=Loss.PLAIN)


class RecentStates(Generic[T]):
    """What was made of the states of the last plans: of so many at the most, and of so many places of arrays;
    the last one's are whatever they have.
    """

    def __init__(self, most_plans: int, most_places: int) -> None:
        self._most_plans, self._most_places = most_plans, most_places
        self._recent: tuple[tuple[ModelSpec, Plan, int | None, int, T], ...] = ()

    def made_of(self, model: ModelSpec, plan: Plan, make: Callable[[Plan], T]) -> T:
        """What ``make`` makes of the plan that the states know."""
        own = plan_of_states(plan)
        number = hash_of_single(own)
        for spec, of, told, _, known in self._recent:
            if spec is model and told == number and equal_plans(of, own):
                return known
        made, places = make(own), number_of_plans(own)
        kept = [(model, own, number, places, made)]
        for one in self._recent[: self._most_plans - 1]:
            places += one[3]
            if places > self._most_places:
                break
            kept.append(one)
        self._recent = tuple(kept)
        return made
