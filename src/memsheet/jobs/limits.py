"""What of a job of several models can be solved for, and what was found."""

from __future__ import annotations

from memsheet.budget import Answer
from memsheet.frozen import dataclass

SHARE, ROWS, BATCH = "gpu-memory-utilization", "row-tokens", "micro-batch-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimit:
    """``largest``: the most of ``what`` with which every phase surely fits, None where the least does not; a
    share or tokens. ``counted``: the tokens that the document has, None of a share. ``answer``: at it, or at
    the least; ``beyond``: at the next one, None where there is none.
    """

    what: str
    largest: float | None
    counted: int | None
    answer: Answer
    beyond: Answer | None
