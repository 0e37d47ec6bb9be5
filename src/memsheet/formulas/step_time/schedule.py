"""From micro-batches to a step: pipeline schedules with unequal stages, and what they wait for."""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.formulas.step_time.numbers import Real, larger
from memsheet.plan.plan import Schedule
from memsheet.references import PIPELINE_1F1B, ZERO_BUBBLE, formula

FILLED = {Schedule.ZERO_BUBBLE: 1 / 3, Schedule.DUALPIPE: 1 / 3}
"""Of the bubble of 1F1B what is left when weight gradients fill it: (F + B - 2W) / (F + B) with W = F = B/2;
DualPipe's (p/2 - 1)(FB + B - 3W) is as much of half as many stages, kept at the same share.
"""


@formula(cites=ZERO_BUBBLE, at="section 2: (p-1)(F+B-2W)")
def bubble_share(schedule: Schedule | None) -> float:
    return FILLED.get(schedule, 1.0) if schedule is not None else 1.0


@formula(
    cites=PIPELINE_1F1B,
    at=(
        "section 2.2: the first and last micro-batch pass all stages, the others the slowest one; 1/v of "
        "it with v chunks; one process that has all stages passes each micro-batch through all of them"
    ),
)
def pipeline_s(
    stages: Sequence[Real], microbatches: Real, chunks: int, schedule: Schedule | None
) -> tuple[Real, Real]:
    """(seconds of the passes, of them the bubble). ``stages``: forward and backward of one micro-batch
    through all chunks of each stage.
    """
    slowest, total = stages[0], stages[0]
    for one in stages[1:]:
        slowest, total = larger(slowest, one), total + one
    if schedule is Schedule.NAIVE:
        return microbatches * total, microbatches * (total - slowest)
    bubble = (total - slowest) * bubble_share(schedule) / chunks
    return microbatches * slowest + bubble, bubble


def exposed_pipeline_sends(stages: int, chunks: int, microbatches: Real, schedule: Schedule | None) -> Real:
    """Sends that nothing runs beside: to the last stage and back for each chunk; without chunks also each way
    of every micro-batch, as sends and receives of neighbours meet there (Megatron-Core
    pipeline_parallel/schedules.py, forward_backward_pipelining_without_interleaving).
    """
    if stages == 1:
        return 0
    there_and_back = 2 * (stages - 1) * chunks
    return there_and_back + (2 * microbatches if chunks == 1 and schedule is not Schedule.DUALPIPE else 0)
