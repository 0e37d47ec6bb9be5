"""What the real code allocates, on fake tensors: no GPU, no weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from memsheet.plan.options import InferOptions, Model
from memsheet.questions import traced as tracing
from memsheet.report.answer import Answer, public_answer
from memsheet.trace.parent import MEMORY_BYTES, TIME_S
from memsheet.units import parse_bytes

OWN_FILE = ".py:"


def trace(
    model: Model | Callable[[], Any] | None = None,
    *,
    device: str = "cuda",
    scratch: bool = True,
    full: bool = False,
    rank: int = 0,
    all_stages: bool = False,
    cache: str | None = None,
    memory_limit: str | None = None,
    time_limit: float = TIME_S,
    fresh: bool = False,
    **options: Unpack[InferOptions],
) -> Answer:
    """Every allocation of two steps of the real code, as a sheet of a rank.

    ``model``: as for ``memsheet.train``, or a step of one's own as "FILE.py:FUNCTION", or the function
    itself, which runs in this process. ``device``: allocate as on "cuda" (none is needed) or "cpu";
    ``scratch``: count what kernels take inside an operation; ``full``: run every layer, not one of each kind;
    ``rank``, ``all_stages``: whose sheet; ``cache``: "dynamic", "static" or "quantized"; ``memory_limit`` (4
    GiB), ``time_limit`` (seconds): what the child may take; ``fresh``: run it even where the same was traced
    before by the same libraries. Raises InputError for what cannot be run.
    """
    if callable(model):
        return public_answer(tracing.trace_step(model, device=device, scratch=scratch))
    how = tracing.Options(
        device=device,
        scratch=scratch,
        full=full,
        rank=rank,
        all_stages=all_stages,
        cache=cache,
        time_s=time_limit,
        fresh=fresh,
        memory_bytes=parse_bytes(memory_limit, "memory_limit") if memory_limit is not None else MEMORY_BYTES,
    )
    if isinstance(model, str) and OWN_FILE in model:
        return public_answer(tracing.trace_file(model, how)[0])
    return public_answer(tracing.trace_with_timelines(model, how, **options)[0])
