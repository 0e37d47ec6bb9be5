"""What layers know of a plan, and what was made of that: plans that differ in their states alone have the
same layers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

from memsheet.arith import is_array
from memsheet.formulas.alike_rows import PlanCode, plan_code
from memsheet.formulas.model_code import model_code
from memsheet.frozen import dataclass, field, field_values, replace
from memsheet.plan.engine import Engine
from memsheet.plan.plan import Gathers, Plan, Spread
from memsheet.plan.workload import Training


@dataclass(frozen=True, slots=True, eq=False)
class LayersOfPlan:
    """A plan without what its layers do not know, of any routing, and what they have been made into so far:
    ``groups``, each of a block of a stack, and ``walks``, each of a stage under a routing (``groups.py``).
    """

    plan: Plan
    engine: Engine
    code: PlanCode
    places: int  # plans that its counts are of
    groups: dict[Hashable, Any] = field(default_factory=dict)
    walks: deque[tuple[Any, ...]] = field(default_factory=lambda: deque(maxlen=MOST_WALKS))


MOST_WALKS = 64
_recent: tuple[LayersOfPlan, ...] = ()
MOST_PLACES = 1 << 14
"""Places of arrays in plans of which layers are kept; the last one's are whatever they have."""
MOST_PLANS = 48


def layers_of_plan(plan: Plan, engine: Engine) -> LayersOfPlan:
    """Layers made for a plan that knows the same of them, kept for those asked about one after another:
    stages and their chunks, choices of a search that divide or keep states in another way.
    """
    global _recent  # noqa: PLW0603 - one value, replaced as a whole
    own = plan_of_any_routing(plan if model_code(engine.layers).knows_shards else plan_of_layers(plan))
    code = plan_code(own)
    for known in _recent:
        if known.engine is engine and known.code == code:
            return known
    found = LayersOfPlan(own, engine, code, number_of_plans(own))
    kept, places = [found], found.places
    for known in _recent[: MOST_PLANS - 1]:
        places += known.places
        if places > MOST_PLACES:
            break
        kept.append(known)
    _recent = tuple(kept)
    return found


def plan_of_layers(plan: Plan) -> Plan:
    """A plan without what its layers do not know: how states are kept and divided, and how many micro-batches
    and stages there are.
    """
    return replace(
        plan,
        zero=0,
        reshard_after_forward=False,
        gathers=Gathers(),
        optimizer=None,
        offload=replace(plan.offload, optimizer=0, parameters=0),
        mesh=replace(plan.mesh, dp_replicate=1, dp_shard=1, pp=1, vpp=1),
        workload=replace(plan.training, global_batch=None)
        if isinstance(plan.workload, Training)
        else plan.workload,
        schedule=None,
        layers_per_stage=None,
    )


def plan_of_any_routing(plan: Plan) -> Plan:
    """One plan for all that differ in how tokens are routed alone, which nothing but their experts knows."""
    routing = plan.routing
    if routing is None or not isinstance(routing.spread, Spread) or routing.spread is Spread.EXPECTED:
        return plan
    return replace(plan, routing=replace(routing, spread=Spread.EXPECTED))


def number_of_plans(plan: Plan) -> int:
    """Of how many plans a plan's counts are arrays."""
    counts = (*field_values(plan.mesh), *field_values(plan.workload))
    return max((len(count) for count in counts if is_array(count)), default=1)
