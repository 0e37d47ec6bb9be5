"""What routing of tokens to experts decides of a training job's memory: the figure when it is even, at a
published imbalance, and at the worst.
"""

from __future__ import annotations

from dataclasses import replace

from memsheet.account import account_rank
from memsheet.budget import Result, Verdict, judge_on
from memsheet.plan.device import Cluster
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import MAX_VIOLATION, Plan, Spread
from memsheet.sheet import Sheet
from memsheet.units import format_bytes

DECIDES = 1.05
"""How much more the worst routing has to take than an even one to be worth a line."""


def routing_notes(
    model: ModelSpec, plan: Plan, cluster: Cluster, sheets: tuple[Sheet, ...], verdict: Verdict
) -> tuple[str, ...]:
    """The three figures of the rank that the verdict is about, named by what is assumed of the routing;
    nothing where routing is even by decree.
    """
    routing = plan.routing
    if routing is None or routing.balanced or routing.padded or int(plan.mesh.ep) == 1:
        return ()
    stage = next((sheet.stage for sheet in sheets if sheet.rank == verdict.rank), 0)
    even, uneven, worst = (
        int(
            account_rank(
                model, replace(plan, routing=replace(routing, spread=spread)), cluster, stage
            ).device.value
        )
        for spread in (Spread.BALANCED, Spread.UNEVEN, Spread.WORST)
    )
    if worst < even * DECIDES:
        return ()
    shares = f"{1 + MAX_VIOLATION:g} times an even share"
    decree = "--moe-balanced accounts the first (force_load_balancing, or what the router learned)"
    bound = "--moe-capacity-factor bounds the last by dropping tokens"
    worst = min(worst, int(verdict.device.high))  # whose allocator has nothing beyond it
    decides = (
        "decides"
        if verdict.result is not Result.FITS and _fits_when_even(model, plan, cluster)
        else "matters"
    )
    said = (
        f"expert routing {decides}: {format_bytes(even)} a GPU when even, {format_bytes(uneven)} where a "
        f"rank is given {shares} (the fullest "
        f"expert under an auxiliary loss, over all batches: MaxVio {MAX_VIOLATION:g}, arXiv:2408.15664, "
        f"table 2), {format_bytes(worst)} where all tokens choose its experts; "
        f"{decree}; {bound}"
    )
    return (said,)


def _fits_when_even(model: ModelSpec, plan: Plan, cluster: Cluster) -> bool:
    """Whether the whole job is sure to fit where each rank is given an even share, so that nothing else is
    unsure.
    """
    even = replace(plan, routing=replace(plan.routing, balanced=True)) if plan.routing else plan
    return (
        judge_on(
            tuple(account_rank(model, even, cluster, stage) for stage in range(plan.mesh.pp)), cluster
        ).result
        is Result.FITS
    )
