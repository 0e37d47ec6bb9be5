"""Keys of a plan that contradict one another, or say nothing without another: seen in the request alone,
before it is resolved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memsheet.errors import Problem
from memsheet.plan.check import Request
from memsheet.plan.defaults import (
    CACHE_DTYPES,
    NEEDS_METHOD,
    NEEDS_RANK,
    NEEDS_WEIGHTS,
    PRECISION_DTYPES,
    RANKLESS,
)
from memsheet.plan.dtypes import FP8, MXFP8, dtype_named
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import find_engine

SIZES = (
    "microbatch",
    "global_batch",
    "serving.batch",
    "serving.max_sequences",
    "serving.max_model_len",
    "serving.prompt_tokens",
)
SEQUENCES = ("serving.max_sequences", "serving.batch", "microbatch")  # three names for what is served at once


def contradiction_problems(request: Request, task: str) -> Iterator[Problem]:
    """Every problem of two keys that cannot both be meant, and of sizes and dtypes that no job has."""
    if request.get("adapter.kind") not in RANKLESS:
        yield from _orphan_key_problems(
            request,
            "adapter.rank",
            NEEDS_RANK,
            "needs a rank: without one there is no adapter",
            "add --lora-rank 16",
        )
    yield from _orphan_key_problems(
        request,
        "quantization.weights",
        NEEDS_WEIGHTS,
        "needs a format of the weights",
        "add for example --quantize nf4",
    )
    yield from _orphan_key_problems(
        request,
        "speculative.method",
        NEEDS_METHOD,
        "needs a method of speculative decoding",
        "add for example --speculative draft",
    )
    yield from _dtype_problems(request)
    if request.get("phase") == "load":  # weights alone: there are no sequences to count
        return
    for key in [key for key in SIZES if key in request]:
        if request[key] == 0:
            yield Problem(
                field=key, value=0, reason="is no size of a job", hint="give 1 or more, or leave it out"
            )
    if task == "infer":
        yield from _length_problems(request)
        engine = _modelled_engine(request)
        yield from _disagreeing_key_problems(
            request, SEQUENCES[:1] if engine is not None and engine.one_cache else SEQUENCES
        )


def _modelled_engine(request: Request) -> Engine | None:
    """The engine that is named, where it is modelled."""
    return find_engine(request.get("engine") or "")


def _orphan_key_problems(
    request: Request, needed: str, keys: tuple[str, ...], reason: str, hint: str
) -> Iterator[Problem]:
    """Details of something that is not there."""
    if request.get(needed) is None:
        for key in [key for key in keys if key in request]:
            value = request[key]
            if value is not None and value not in ([], ()):
                yield Problem(field=key, value=value, reason=reason, hint=hint)


def _dtype_problems(request: Request) -> Iterator[Problem]:
    engine = _modelled_engine(request)
    cache = engine.cache_names if engine is not None else CACHE_DTYPES
    dtypes = {**PRECISION_DTYPES, "serving.kv_dtype": cache, "serving.k_dtype": cache}
    for key in [key for key in dtypes if key in request]:
        value, known = request[key], dtypes[key]
        found = dtype_named(value) if value is not None else None
        if (
            found in (FP8, MXFP8)
            and key in ("precision.compute", "precision.parameters")
            and request.get("fp8.recipe")
        ):
            continue  # products and their weights alone, by an engine that models the recipe
        if found is not None and found.name not in known:
            yield Problem(
                field=key, value=value, reason="is not modelled there", hint=f"modelled: {', '.join(known)}"
            )


def _length_problems(request: Request) -> Iterator[Problem]:
    longest, engine = request.get("serving.max_model_len"), _modelled_engine(request)
    pools = engine is not None and engine.serving.pools_cache
    if not pools or (longest or 0) < (request.get("seq_len") or 0):
        yield from _disagreeing_key_problems(request, ("serving.max_model_len", "seq_len"))
    prompt, output = request.get("serving.prompt_tokens"), request.get("serving.output_tokens")
    length = request.get("serving.max_model_len") or request.get("seq_len")
    if length is not None and prompt is not None and prompt > length:
        yield Problem(field="serving.prompt_tokens", value=prompt, reason=f"exceeds max_model_len {length}")
    shared, whole = request.get("serving.shared_prefix_tokens"), length if prompt is None else prompt
    if shared and whole is not None and shared > whole:
        reason = f"exceeds {'max_model_len' if prompt is None else 'the prompt of'} {whole}"
        yield Problem(field="serving.shared_prefix_tokens", value=shared, reason=reason)
    if length and output is not None and (prompt or 0) + output > length:
        asked = f"after a prompt of {prompt} " if prompt else ""
        yield Problem(
            field="serving.output_tokens", value=output, reason=f"{asked}exceeds max_model_len {length}"
        )


def _disagreeing_key_problems(request: Request, keys: tuple[str, ...]) -> Iterator[Problem]:
    """Names of one thing that do not agree on it."""
    given: list[tuple[str, Any]] = [(key, request[key]) for key in keys if request.get(key)]
    for key, value in given[1:]:
        if value != given[0][1]:
            yield Problem(
                field=key,
                value=value,
                reason=f"contradicts {given[0][0]} = {given[0][1]}",
                hint="give one of them",
            )
