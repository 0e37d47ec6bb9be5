"""What is not sure because a checkpoint may name what its cache is kept in."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.budget import Answer, Result
from memsheet.exchange.shared.file_format import FileReading
from memsheet.plan.dtypes import FP8
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.hardware import version_of

NAMES_CACHES = frozenset({"modelopt"})
"""Methods whose checkpoints mostly name a cache of eight bits (``kv_cache_quant_algo``), which no model's
name says.
"""


def unsaid_cache(reads: Mapping[str, FileReading], answer: Answer) -> str:
    """That a server keeps keys and values in what a checkpoint names, of which only the model's name is
    known; empty where the files say a cache, where the whole of it fits, and where nothing is kept in more
    than eight bits.
    """
    model, plan = answer.model, answer.plan
    stored, engine = model.quantization, find_engine(plan.engine)
    said = any(read.request.get("serving.kv_dtype") for read in reads.values())
    fits = answer.verdict is None or answer.verdict.result is Result.FITS
    named = bool(model.source.assumed) and stored is not None and stored.method in NAMES_CACHES
    if said or fits or not named or stored is None or stored.cache is not None or engine is None:
        return ""
    heeded = engine.serving.heeded_caches.get(stored.method)
    if heeded is None or version_of(plan.engine_version) < heeded.since or plan.cache.kv_dtype in (None, FP8):
        return ""
    held = plan.cache.kv_dtype.name if plan.cache.kv_dtype else ""
    return (
        f"checkpoints such as {model.name} may name fp8 for their cache, and its config was not read: the "
        f"sheet is of {held}: --kv-cache-dtype says it, or --model with its config.json"
    )
