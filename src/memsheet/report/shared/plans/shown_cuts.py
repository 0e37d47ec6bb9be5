"""Which ways to cut a model are shown."""

from __future__ import annotations

from memsheet.search.serve.cuts import Deployment, best_plan_per_cut
from memsheet.search.serve.load import Served

STAGED = 4


def select_table_plans(found: Deployment, *, full: bool = False) -> list[Served]:
    """Plans for a table: by size of group, then those with stages, the best first."""
    if full:
        return list(found.plans)
    plain = list(best_plan_per_cut(found))
    others = [one for one in found.plans if one not in plain and one.plan.mesh.pp > 1]
    first = [found.plans[0]] if found.plans[0] not in plain and found.plans[0].plan.mesh.pp == 1 else []
    return [*first, *plain, *_one_plan_per_mesh(others)[:STAGED]]


def _one_plan_per_mesh(plans: list[Served]) -> list[Served]:
    """One plan a mesh of replicas, ranks and stages: how experts lie says little with stages."""
    found: dict[tuple[int, int], Served] = {}
    for one in plans:
        found.setdefault((int(one.plan.mesh.tp), int(one.plan.mesh.pp)), one)
    return list(found.values())
