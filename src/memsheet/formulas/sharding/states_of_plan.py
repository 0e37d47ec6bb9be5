"""What states know of a plan where layers do not decide them, and what was made of that: plans that differ in
how their layers run alone keep the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from memsheet.arith import is_symbol
from memsheet.formulas.alike_rows import PlanCode, hash_of_single, plan_code
from memsheet.formulas.layers_of_plan import number_of_plans
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Loss, Plan, Recompute

T = TypeVar("T")
NOTHING_RECOMPUTED = Recompute()


def plan_of_states(plan: Plan) -> Plan:
    """A plan without what its states do not know: what is recomputed, and how the loss is."""
    return replace(plan, recompute=NOTHING_RECOMPUTED, loss=Loss.PLAIN)


def plan_of_any_length(plan: Plan) -> Plan:
    """A plan without the lengths of its sequences, which what engines keep between steps does not know; a
    stratum as it is, whose plans share them.
    """
    lengths = plan.training
    if hash_of_single(plan) is None or is_symbol(lengths.seq_len):
        return plan
    return replace(plan, workload=replace(lengths, seq_len=1, image_tokens=0, varied=False))


class RecentStates(Generic[T]):
    """What was made of the states of the last plans: of so many at the most, and of so many places of arrays;
    the last one's are whatever they have. ``known``: a plan without what they do not know.
    """

    def __init__(
        self, most_plans: int, most_places: int, known: Callable[[Plan], Plan] = plan_of_states
    ) -> None:
        self._most_plans, self._most_places, self._known = most_plans, most_places, known
        self._recent: tuple[tuple[ModelSpec, PlanCode, object, int, T], ...] = ()

    def made_of(self, model: ModelSpec, plan: Plan, make: Callable[[Plan], T], by: object = None) -> T:
        """What ``make`` makes of the plan that the states know; ``by``: who makes it, where several do."""
        own = self._known(plan)
        code = plan_code(own)
        for spec, told, maker, _, known in self._recent:
            if spec is model and maker is by and told == code:
                return known
        made, places = make(own), number_of_plans(own)
        kept = [(model, code, by, places, made)]
        for one in self._recent[: self._most_plans - 1]:
            places += one[3]
            if places > self._most_places:
                break
            kept.append(one)
        self._recent = tuple(kept)
        return made
