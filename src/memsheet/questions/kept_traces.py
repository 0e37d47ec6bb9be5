"""Traces of models by the question that was asked: a child runs the real code once, and its answer is kept
for as long as libraries and our own code are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.errors import InputError
from memsheet.plan.packages import TRANSFORMERS
from memsheet.questions.user_cache import keep_document, key_of, read_kept
from memsheet.trace.parent import Traced, answer_of_child, read_answer

KIND = "traces"
LIBRARIES = (
    "torch",
    TRANSFORMERS,
    "accelerate",
    "peft",
    "bitsandbytes",
    "torchao",
    "liger-kernel",
    "kernels",
    "numpy",
)
"""Whose code a traced step runs."""  # fmt: skip
TRACER = ("trace", "run", "plan", "engines", "timeline.py")
MOST_KEPT = 64
"""Some hundred KiB each."""
SAYS_NOTHING = ("debug", "progress")
"""Of a request: what changes nothing in its answer."""


def traced_once(
    asked: Mapping[str, Any], *, memory_bytes: int, time_s: float, fresh: bool = False
) -> list[Traced]:
    """As ``trace.parent.trace_in_child``, of the user's cache where the same was traced before. ``fresh``:
    run it in any case.
    """
    limits = {"memory_bytes": memory_bytes, "time_s": time_s}
    said = {key: value for key, value in asked.items() if key not in SAYS_NOTHING} | limits
    name = key_of(said, LIBRARIES, TRACER)
    if not fresh and (kept := _kept_trace(name)):
        return kept
    document = answer_of_child(asked, memory_bytes=memory_bytes, time_s=time_s)
    found = read_answer(document)
    keep_document(KIND, name, document, most=MOST_KEPT)
    return found


def _kept_trace(name: str) -> list[Traced]:
    """An answer of the user's cache; none where it is a stranger's, which is made anew."""
    document = read_kept(KIND, name)
    try:
        return read_answer(document) if isinstance(document, dict) else []
    except (InputError, KeyError, TypeError):
        return []
