"""A plan under three witnesses."""

from __future__ import annotations

from memsheet.plan.options import Document, File
from memsheet.questions.verification import ladder
from memsheet.report.shared.verification import Verification
from memsheet.trace.parent import TIME_S
from memsheet.units import parse_bytes


def verify(
    plan: File | Document,
    *,
    model: str | None = None,
    device: str = "cpu",
    processes: int = 2,
    steps: int = 1,
    operations: float = ladder.CPU_OPERATIONS,
    slurm: str | None = None,
    per_node: int = 8,
    memory_limit: str | None = None,
    time_limit: float = TIME_S,
) -> Verification:
    """A plan predicted, traced and measured side by side, as far as this machine can run it.

    ``plan``: a file or an object of memsheet/plan/1; ``model``: where the plan names none; ``processes``:
    ranks that run at once; ``steps``: timed on each rung; ``operations``: floating-point operations that a
    processor's step may take; ``slurm``: a partition for the whole plan, on nodes of ``per_node`` GPUs.
    Raises InputError for what cannot be verified.
    """
    how = ladder.Options(
        device=device,
        processes=processes,
        steps=steps,
        operations=operations,
        time_s=time_limit,
        slurm=slurm,
        per_node=per_node,
        memory_bytes=parse_bytes(memory_limit, "memory_limit") if memory_limit is not None else None,
    )
    return ladder.run_verification_ladder(plan, how, model=model)
