"""What a real step allocates on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from memsheet.plan.options import InferOptions, Model
from memsheet.questions import measured as measuring
from memsheet.questions.trace import OWN_FILE
from memsheet.report.answer import Answer, public_answer
from memsheet.trace.parent import TIME_S
from memsheet.units import parse_bytes


def measure(
    model: Model | Callable[[], Any] | None = None,
    *,
    device: str = "cpu",
    steps: int | None = None,
    data: str | None = None,
    vary_length: bool = False,
    memory_limit: str | None = None,
    time_limit: float = TIME_S,
    **options: Unpack[InferOptions],
) -> Answer:
    """What real steps allocate on this machine, random weights, nothing downloaded.

    ``model``: as for ``memsheet.train``, "FILE.py:FUNCTION", or a function, which runs in this process.
    ``device``: "cpu" or "cuda"; ``steps``: how many are timed; ``data``: a text file to train on;
    ``vary_length``: steps of varied lengths; ``memory_limit``, ``time_limit`` (seconds): what each process
    may take. Raises InputError for what cannot be measured here.
    """
    if callable(model):
        return public_answer(measuring.measure_step(model, device=device, steps=steps or measuring.STEPS))
    how = measuring.Options(
        device=device,
        steps=steps,
        data=data,
        vary_length=vary_length,
        time_s=time_limit,
        memory_bytes=parse_bytes(memory_limit, "memory_limit") if memory_limit is not None else None,
    )
    if isinstance(model, str) and OWN_FILE in model:
        return public_answer(measuring.measure_file(model, how)[0])
    return public_answer(measuring.measure_with_timeline(model, how, **options)[0])
