"""What routing of tokens to experts decides of a training job's memory: the figure when it is even, at a published imbalance, and at the worst."""

from __future__ import annotations

from dataclasses import replace

from memsheet.account import account
from memsheet.budget import Verdict
from memsheet.formulas.model_code.megatron.experts import MAX_VIOLATION
from memsheet.sheet import Sheet
from memsheet.spec.device import Cluster
from memsheet.spec.model import ModelSpec
from memsheet.spec.plan import Plan, Spread
from memsheet.units import format_bytes

DECIDES = 1.05
"""How much more the worst routing has to take than an even one to be worth a line."""


def routing_notes(model: ModelSpec, plan: Plan, cluster: Cluster, sheets: tuple[Sheet, ...], verdict: Verdict) -> tuple[str, ...]:
    """The three figures of the rank that the verdict is about, named by what is assumed of the routing; nothing where routing is even by decree."""
    routing = plan.routing
    if plan.task != "train" or routing is None or routing.balanced or routing.padded or int(plan.mesh.ep) == 1:
        return ()
    stage = next((sheet.stage for sheet in sheets if sheet.rank == verdict.rank), 0)
    even, uneven, worst = (
        int(account(model, replace(plan, routing=replace(routing, spread=spread)), cluster, stage).device.value)
        for spread in (Spread.BALANCED, Spread.UNEVEN, Spread.WORST)
    )
    if worst < even * DECIDES:
        return ()
    shares = f"{1 + MAX_VIOLATION:g} times an even share"
    decree = "--moe-balanced accounts the first (force_load_balancing, or what the router learned)"
    bound = "--moe-capacity-factor bounds the last by dropping tokens"
    worst = min(worst, int(verdict.device.high))  # whose allocator has nothing beyond it
    said = (
        f"expert routing decides: {format_bytes(even)} a GPU when even, {format_bytes(uneven)} where a rank is given {shares} (the largest load "
        f"under an auxiliary loss, MaxVio {MAX_VIOLATION:g}: arXiv:2408.15664, table 2), {format_bytes(worst)} where all tokens choose its experts; "
        f"{decree}; {bound}"
    )  # fmt: skip
    return (said,)
