"""What routing of tokens to experts decides of a training job's memory: the figure when it is even, at a
published imbalance, and at the worst.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from memsheet.account import PeakBytes, account_rank, step_peak_bytes
from memsheet.budget import Result, Verdict, judge_on
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import MAX_VIOLATION, Plan, Spread
from memsheet.sheet import Sheet
from memsheet.units import format_bytes

DECIDES = 1.05
"""How much more the worst routing has to take than an even one to be worth a line."""


def routing_notes(
    model: ModelSpec,
    plan: Plan,
    cluster: Cluster,
    sheets: tuple[Sheet, ...],
    verdict: Verdict,
    *,
    replays: bool,
) -> tuple[str, ...]:
    """The three figures of the rank that the verdict is about, named by what is assumed of the routing;
    nothing where routing is even by decree. ``replays``: as the sheets were accounted.
    """
    routing = plan.routing
    if routing is None or routing.balanced or routing.padded or int(plan.mesh.ep) == 1:
        return ()
    sheet = next((sheet for sheet in sheets if sheet.rank == verdict.rank), sheets[0])

    balanced, fullest, moderate = (
        replace(plan, routing=replace(routing, spread=spread))
        for spread in (Spread.BALANCED, Spread.WORST, Spread.UNEVEN)
    )
    evenly, most = (step_peak_bytes(model, one, cluster, sheet.stage) for one in (balanced, fullest))
    if most.device < evenly.device * DECIDES:
        return ()

    @cache
    def even_sheet(stage: int, *, replays: bool) -> Sheet:
        return account_rank(model, balanced, cluster, stage, replays=replays)

    low, value, high = int(verdict.device.low), int(verdict.device.value), int(verdict.device.high)
    # as a question of that routing is answered
    asked = even_sheet(sheet.stage, replays=True).device.value if replays else evenly.device
    even = max(low, min(int(asked), value))
    between = step_peak_bytes(model, moderate, cluster, sheet.stage)
    uneven = max(even, min(_with_slack_of(sheet, between), high))
    worst = max(uneven, min(_with_slack_of(sheet, most), high))
    shares = f"{1 + MAX_VIOLATION:g} times an even share"
    decree = "--moe-balanced accounts the first (force_load_balancing, or what the router learned)"
    bound = "--moe-capacity-factor bounds the last by dropping tokens"
    decides = (
        "decides"
        if verdict.result is not Result.FITS and _fits_when_even(even_sheet, plan, cluster, replays=replays)
        else "matters"
    )
    room = ", which fits," if uneven <= cluster.device.framework_low_bytes else ""
    said = (
        f"expert routing {decides}: {format_bytes(even)} a GPU when even, {format_bytes(uneven)}{room} "
        f"where a rank is given {shares} (the fullest "
        f"expert under an auxiliary loss, over all batches: MaxVio {MAX_VIOLATION:g}, arXiv:2408.15664, "
        f"table 2), {format_bytes(worst)} where all tokens choose its experts; "
        f"{decree}; {bound}"
    )
    return (said,)


def _with_slack_of(sheet: Sheet, routed: PeakBytes) -> int:
    """The need of another routing, with the allocator's slack in the proportion of the job's own."""
    outside = routed.device - routed.reserved
    return int(routed.allocated * sheet.reserved.value // sheet.allocated.value + outside)


def _fits_when_even(even: Callable[..., Sheet], plan: Plan, cluster: Cluster, *, replays: bool) -> bool:
    """Whether the whole job is sure to fit where each rank is given an even share, so that nothing else is
    unsure. ``even``: the sheet of a stage then, its step replayed or not.
    """
    result = Result.UNCERTAIN
    for replayed in (False, True)[: 1 + replays]:
        result = judge_on(
            tuple(even(stage, replays=replayed) for stage in range(plan.mesh.pp)), cluster
        ).result
        if result is Result.DOES_NOT_FIT:
            return False
    return result is Result.FITS
